"""Trackers that receive the metrics of a run: a file, the terminal, a service of experiments."""

from legos.track.beside import TrackerBeside
from legos.track.console import ConsoleTracker
from legos.track.experiment import ExperimentTracker
from legos.track.jsonl import JsonlTracker
from legos.track.many import ManyTrackers

__all__ = [
    "ConsoleTracker",
    "ExperimentTracker",
    "JsonlTracker",
    "ManyTrackers",
    "TrackerBeside",
]
