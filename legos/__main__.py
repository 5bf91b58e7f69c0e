"""``python -m legos`` is the program ``legos``."""

import sys

from legos.cli.process import main

sys.exit(main())
