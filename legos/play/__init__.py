"""Run plays of arenas: seats, turns, limits and outcomes."""
