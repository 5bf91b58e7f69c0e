"""The command line; thin, because what the commands do stands in ``legos.apps``."""

from legos.cli.process import main

__all__ = ["main"]
