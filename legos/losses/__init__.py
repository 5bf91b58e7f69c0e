"""Losses and schedules, written once over an array namespace."""
