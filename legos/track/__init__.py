"""Trackers that receive the metrics of a run: a file, the terminal, a service of experiments."""
