"""Engines in other processes, and publishing adapters to them."""
