"""The lines of metrics.jsonl and evaluations.jsonl, as a run has written them."""

import json
from pathlib import Path

from legos.files.lines import has_evaluation_alone
from legos.run.metrics import Metrics

__all__ = ["read_metrics", "read_steps"]


def read_metrics(path: Path) -> list[Metrics]:
    """All complete lines in order; none if there is no file."""
    return (
        [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]] if path.exists() else []
    )


def read_steps(path: Path) -> list[Metrics]:
    """The lines of optimiser steps in metrics.jsonl, without those of evaluations alone."""
    return [line for line in read_metrics(path) if not has_evaluation_alone(line)]
