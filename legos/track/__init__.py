"""Trackers that receive the metrics of a run: a file, the terminal, Weights & Biases."""

from legos.track.console import ConsoleTracker
from legos.track.jsonl import JsonlTracker
from legos.track.many import ManyTrackers
from legos.track.wandb import WandbTracker

__all__ = ["ConsoleTracker", "JsonlTracker", "ManyTrackers", "WandbTracker"]
