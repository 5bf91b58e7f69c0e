"""``legos doctor``: facts about this machine and checks of its device, as a report to paste."""

import json
import os
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from legos.apps.markdown import table_head, table_line
from legos.arena.registry import advice
from legos.bench.models import write_bench_model
from legos.bench.self_test import CHECKS, Check, SelfTest
from legos.config.resolve import resolve
from legos.errors import LegosError
from legos.mac import MACS_GB, mac_facts
from legos.records.limits import TrainingSize
from legos.run.folder import RUNS
from legos.wiring.device import find_device, rows_on_macs
from legos.wiring.machine import blas_hint

__all__ = ["SMALL", "Report", "examine", "mac_table"]

SMALL = "small"  # a model with random weights
_ENVIRONMENT = ("LD_PRELOAD", "OPENBLAS_NUM_THREADS", "HF_HOME", "MLX_")  # beginnings of names
_STATUSES = ("pass", "fail", "skip")


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Facts about the machine and the results of the checks."""

    facts: Mapping[str, Any]
    model: str | None  # model of the checks; None: no checks were run
    checks: Sequence[Check]

    @property
    def healthy(self) -> bool:
        """Whether no check failed."""
        return all(check.status != "fail" for check in self.checks)

    def as_dict(self) -> dict[str, Any]:
        """Facts and checks as JSON values."""
        checks = {check.name: asdict(check) for check in self.checks}
        return {**self.facts, "model": self.model, "checks": checks, "healthy": self.healthy}

    def text(self) -> str:
        """The results of the checks, a line for each; empty where none were run."""
        if self.model is None:
            return ""
        counts = [f"{sum(c.status == s for c in self.checks)} {s}" for s in _STATUSES]
        lines = ["", f"self-test on {self.model}", *map(_line, self.checks), ", ".join(counts)]
        return "\n".join(lines) + "\n"


def examine(*, self_test: bool = False, long: bool = False, model: str = SMALL) -> Report:
    """Collect the facts and, with ``self_test``, run the checks.

    Args:
        self_test: whether to run the checks, which takes up to a minute.
        long: whether the checks of memory and exits take minutes instead.
        model: model of the checks: a folder, a name on the hub, "builtin", or "small" (random
            weights, five million parameters).
    """
    facts = _facts()
    if not self_test:
        return Report(facts=facts, model=None, checks=())
    if model != SMALL:
        return Report(facts=facts, model=model, checks=_checks(model, long))
    with tempfile.TemporaryDirectory() as folder:
        checks = _checks(str(write_bench_model("5m", Path(folder) / "model")), long)
    return Report(facts=facts, model="a random model of 5 million parameters", checks=checks)


def mac_table(file: Path) -> str:
    """A Markdown table of the longest rows that models train with on Macs of each size.

    Args:
        file: JSON object of names and configurations, each the content of a ``config.json``.
    """
    table = table_head(("model", "weights", *(f"{gb} GB" for gb in MACS_GB)))
    for name, config in json.loads(file.read_text()).items():
        four_bits = {"quantization": {"group_size": 64, "bits": 4}}
        for kind, fields in (("16 bits", {}), ("4 bits", four_bits)):
            rows = rows_on_macs(config | fields, TrainingSize(checkpointing=True))
            table += table_line((name, kind, *(f"{row:,}" if row else "-" for row in rows)))
    return table


def _checks(model: str, long: bool) -> list[Check]:
    try:
        test = SelfTest(model, long=long)
    except Exception as error:  # any error of a device or a library belongs in the report
        return [_failed("load", error)]
    with closing(test):
        return [_run(name, test) for name in CHECKS]


def _run(name: str, test: SelfTest) -> Check:
    started = time.perf_counter()
    try:
        check = CHECKS[name](test)
    except Exception as error:  # the same, and the other checks still run
        check = _failed(name, error)
    return replace(check, seconds=time.perf_counter() - started)


def _failed(name: str, error: Exception) -> Check:
    reason = f"{type(error).__name__}: {error}".rstrip(": ")
    return Check(name=name, status="fail", figures={}, reason=reason)


def _facts() -> dict[str, Any]:
    disk = RUNS if RUNS.is_dir() else Path()
    return {
        "legos": version("legos"),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cores": os.cpu_count(),
        "memory_gib": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30,
        "mac": mac_facts(),
        "device": _device(),
        "blas": _blas(),
        "disk_free_gib": shutil.disk_usage(disk).free / 2**30,
        "settings": _settings(),
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


def _blas() -> str:
    if sys.platform != "linux":
        return "Accelerate"
    return blas_hint() or "OpenBLAS"


def _settings() -> str:
    """Whether the default settings of ``legos train`` are valid on this machine."""
    try:
        config = resolve(recommend=advice).config
    except LegosError as error:
        return f"{error}"
    return f"valid (model {config.model}, arena {config.title})"


def _line(check: Check) -> str:
    figures = ", ".join(f"{name} {value:.4g}" for name, value in check.figures.items())
    reason = f"; {check.reason}" if check.reason and figures else check.reason
    return f"{check.status}  {check.name:<14} {figures}{reason} ({check.seconds:.1f} s)"
