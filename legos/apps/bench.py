"""``legos bench``: how fast a model is on this machine, as a table to post."""

import platform
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from legos.apps.markdown import four_digits, table_head, table_line
from legos.bench.models import write_bench_model
from legos.bench.speed import Line, measure
from legos.installed import own_version
from legos.mac import mac_facts
from legos.machine import blas_hint, quiet_collector
from legos.weights.adapter import model_name
from legos.wiring.device import find_device
from legos.wiring.model import model_place

WIDTH = 33  # of the names


def bench(
    model: str | None, seconds: float, *, write: Callable[[str], None] = lambda _: None
) -> Mapping[str, Any]:
    """Measure a model beside mlx-lm, in turn.

    Args:
        model: a folder, a name on the hub or "builtin"; None: random weights, 40 million
            parameters.
        seconds: time to measure, roughly, above 0; slow models take longer, as each metric needs a
            round.
        write: gets the lines of the table as they are measured.

    Returns:
        Machine, model and ``lines``, as JSON values.

    Raises:
        ModelError: the model cannot be loaded.
    """
    quiet_collector()  # as runs and servers do
    facts = find_device().facts()
    with tempfile.TemporaryDirectory() as root:
        if model is None:
            folder = str(write_bench_model("40m", Path(root) / "40m"))
            title = "random weights, 40 million parameters"
        else:
            folder = model_place(model)
            title = model_name(model)
        lines: list[Line] = []
        write(table_head((f"{title:<{WIDTH}}", "legos", "mlx-lm", "legos / mlx-lm")))
        for line in measure(Path(folder), seconds):
            lines.append(line)
            write(_row(line))
    hint = blas_hint()
    return {
        "legos": own_version(),
        "machine": f"{mac_facts().get('chip') or platform.machine()}",
        **facts,
        "model": title,
        "lines": [line.as_dict() for line in lines],
        **({"hint": hint} if hint else {}),
    }


def _row(line: Line) -> str:
    name = f"{line.name}, {line.unit}"
    return table_line(
        (
            f"{name:<{WIDTH}}",
            f"{four_digits(line.legos):>7}",
            f"{four_digits(line.mlx_lm):>7}",
            f"{line.ratio:.2f}",
        )
    )
