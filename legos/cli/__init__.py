"""The command line: options and messages; ``legos.apps`` does the work."""

from legos.cli.process import main

__all__ = ["main"]
