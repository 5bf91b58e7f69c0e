"""The command line: options and messages; ``legos.apps`` does the work."""
