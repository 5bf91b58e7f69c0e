"""Doubles for every seam, for our tests and for those of users."""
