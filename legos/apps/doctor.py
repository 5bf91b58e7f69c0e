"""``legos doctor``: facts about this machine and checks of its device, as a report to paste."""

import os
import platform
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from legos.apps.markdown import four_digits, table_head, table_line
from legos.bench.models import write_bench_model
from legos.checks.device import Check, run_checks
from legos.installed import own_version
from legos.mac import mac_facts
from legos.machine import blas, blas_hint
from legos.run.folder import RUNS
from legos.wiring.device import find_device, tried_architectures

SMALL = "small"  # a model with random weights
ASKED = """
legos is tested without a Mac, so these lines show what its tests cannot. Please send all of them,
from the first, in one issue, with what these print, the last of which needs a clone:
uv run legos doctor --models
uv run legos bench
uv run pytest -m "slow or nightly" tests/mlx/test_device_checks.py"""
_ENVIRONMENT = ("LD_PRELOAD", "OPENBLAS_NUM_THREADS", "HF_HOME", "MLX_")  # beginnings of names
_COLUMNS = {"architecture": 21, "trains": 9, "checkpointing": 13, "serves": 6}


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Facts about the machine and the results of the checks."""

    facts: Mapping[str, Any]
    model: str | None  # model of the checks; None: no checks were run
    checks: Sequence[Check]

    @property
    def healthy(self) -> bool:
        """Whether no check failed."""
        return all(check.passed for check in self.checks)

    def as_dict(self) -> dict[str, Any]:
        """Facts and checks as JSON values."""
        checks = {check.name: asdict(check) for check in self.checks}
        return {**self.facts, "model": self.model, "checks": checks, "healthy": self.healthy}

    def text(self) -> str:
        """The results of the checks, a line for each; empty where none were run."""
        if self.model is None:
            return ""
        passed = f"{sum(check.passed for check in self.checks)} of {len(self.checks)} pass"
        lines = ["", f"self-test on {self.model}", *map(_line, self.checks), passed]
        return "\n".join([*lines, ASKED if self.facts["mac"] else "", ""])


def examine(*, self_test: bool = False, model: str = SMALL) -> Report:
    """Collect the facts and, with ``self_test``, run the checks.

    Args:
        self_test: whether to run the checks, which takes some seconds.
        model: model of the checks: a folder, a name on the hub, "builtin", or "small" (random
            weights, five million parameters).
    """
    facts = _facts()
    if not self_test:
        return Report(facts=facts, model=None, checks=())
    if model != SMALL:
        return Report(facts=facts, model=model, checks=run_checks(model))
    with tempfile.TemporaryDirectory() as folder:
        checks = run_checks(str(write_bench_model("5m", Path(folder) / "model")))
    return Report(facts=facts, model="a random model of 5 million parameters", checks=checks)


def try_architectures(
    names: Sequence[str], *, show: Callable[[str], object] = lambda _: None
) -> list[dict[str, str]]:
    """Try architectures of mlx-lm on small random models; all of them take minutes.

    Args:
        names: names of the architectures; none: all.
        show: receives the lines of a Markdown table as they come, and then the reasons.

    Returns:
        One row per architecture; see ``legos.mlx.checks.architectures``.

    Raises:
        ModelError: there is no architecture of a name.
    """
    rows: list[dict[str, str]] = []
    for row in tried_architectures(names):
        if not rows:
            show(table_head([f"{name:<{width}}" for name, width in _COLUMNS.items()]))
        rows.append(row)
        show(table_line([f"{row.get(name, '-'):<{width}}" for name, width in _COLUMNS.items()]))
    show("".join(f"\n- {row['architecture']}: {row['reasons']}" for row in rows if row["reasons"]))
    return rows


def _facts() -> dict[str, Any]:
    disk = RUNS if RUNS.is_dir() else Path()
    return {
        "legos": own_version(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cores": os.cpu_count(),
        "memory_gib": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30,
        "mac": mac_facts(),
        "device": _device(),
        "blas": blas_hint() or blas(),
        "disk_free_gib": shutil.disk_usage(disk).free / 2**30,
        "environment": {
            name: value
            for name, value in sorted(os.environ.items())
            if name.startswith(_ENVIRONMENT)
        },
    }


def _device() -> Mapping[str, Any]:
    try:
        return find_device().facts()
    except Exception as error:  # the library is not installed, or finds no device
        return {"error": f"{type(error).__name__}: {error}"}


def _line(check: Check) -> str:
    metrics = ", ".join(f"{name} {four_digits(value)}" for name, value in check.metrics.items())
    reason = f"; {check.reason}" if check.reason and metrics else check.reason
    result = "pass" if check.passed else "fail"
    return f"{result}  {check.name:<10} {metrics}{reason} ({check.seconds:.1f} s)"
