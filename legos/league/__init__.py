"""Opponents, ratings and proof of progress: who meets whom, and who is stronger."""
