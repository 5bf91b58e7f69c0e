"""Arenas, tables and seats: write a play, and play it."""
