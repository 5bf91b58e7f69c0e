"""Worlds that others wrote, each behind a package that is installed when it is needed."""
