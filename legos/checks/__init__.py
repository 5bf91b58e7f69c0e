"""Check an arena, a game or a device before a run depends on it."""

from legos.checks.arena import Finding, check_arena

__all__ = ["Finding", "check_arena"]
