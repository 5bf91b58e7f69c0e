"""``python -m legos`` is the program ``legos``."""

import sys

from legos.cli import main

sys.exit(main())
