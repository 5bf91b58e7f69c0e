"""``legos doctor``: facts of this machine, and checks of the device, in a report to paste."""

import os
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from legos.arena.registry import advice
from legos.bench.models import write_bench_model
from legos.config.resolve import resolve
from legos.errors import LegosError
from legos.run.folder import RUNS
from legos.wiring.machine import blas_hint
from legos.wiring.self_test import CHECKS, Check, SelfTest, device

__all__ = ["SMALL", "Report", "examine"]

SMALL = "small"  # a random model made on the spot
_SETTINGS = ("LD_PRELOAD", "OPENBLAS_NUM_THREADS", "HF_HOME", "MLX_")  # of the environment


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What was found."""

    facts: Mapping[str, Any]
    model: str | None  # of the checks; None where none were asked for
    checks: Sequence[Check]

    @property
    def healthy(self) -> bool:
        """Whether nothing failed."""
        return all(check.status != "fail" for check in self.checks)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        checks = {check.name: asdict(check) for check in self.checks}
        return {**self.facts, "model": self.model, "checks": checks, "healthy": self.healthy}

    def text(self) -> str:
        """For people, to be pasted as it is."""
        facts = list(_flat(self.facts))
        width = max(len(name) for name, _ in facts)
        lines = [f"{name:<{width}}  {value}" for name, value in facts]
        if self.model is not None:
            lines += ["", f"self-test on {self.model}"]
            lines += [_line(check) for check in self.checks]
            counts = [f"{sum(c.status == s for c in self.checks)} {s}" for s in _STATUSES]
            lines.append(", ".join(counts))
        return "\n".join(lines) + "\n"


_STATUSES = ("pass", "fail", "skip")


def examine(*, self_test: bool = False, model: str = SMALL) -> Report:
    """Collect the facts and, where asked for, run the checks.

    Args:
        self_test: whether to run the checks, which takes up to a minute.
        model: what they run on: a folder, a hub name, "builtin", or "small", a random model of
            five million parameters.
    """
    facts = _facts()
    if not self_test:
        return Report(facts=facts, model=None, checks=())
    if model != SMALL:
        return Report(facts=facts, model=model, checks=_checks(model))
    with tempfile.TemporaryDirectory() as folder:
        checks = _checks(str(write_bench_model("5m", Path(folder) / "model")))
    return Report(facts=facts, model="a random model of 5 million parameters", checks=checks)


def _checks(model: str) -> list[Check]:
    try:
        test = SelfTest(model)
    except Exception as error:  # whatever a device or a library raises is a finding
        return [_failed("load", error)]
    try:
        return [_run(name, test) for name in CHECKS]
    finally:
        test.close()


def _run(name: str, test: SelfTest) -> Check:
    started = time.perf_counter()
    try:
        check = CHECKS[name](test)
    except Exception as error:  # the same: the other checks still tell something
        check = _failed(name, error)
    return replace(check, seconds=time.perf_counter() - started)


def _failed(name: str, error: Exception) -> Check:
    reason = f"{type(error).__name__}: {error}".rstrip(": ")
    return Check(name=name, status="fail", figures={}, reason=reason)


def _facts() -> dict[str, Any]:
    here = RUNS if RUNS.is_dir() else Path()
    free = shutil.disk_usage(here).free
    return {
        "legos": version("legos"),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cores": os.cpu_count(),
        "memory_gib": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30,
        "device": _device(),
        "blas": _blas(),
        "disk_free_gib": free / 2**30,
        "settings": _settings(),
        "environment": {
            name: value for name, value in sorted(os.environ.items()) if name.startswith(_SETTINGS)
        },
    }


def _device() -> Mapping[str, Any]:
    try:
        return device()
    except Exception as error:  # the library is missing, or finds no device
        return {"error": f"{type(error).__name__}: {error}"}


def _blas() -> str:
    if sys.platform != "linux":
        return "Accelerate"
    return blas_hint() or "OpenBLAS"


def _settings() -> str:
    """Whether the defaults of `legos train` hold here."""
    try:
        config = resolve(recommend=advice).config
    except LegosError as error:
        return f"{error}"
    return f"valid (model {config.model}, arena {config.arena})"


def _flat(values: Mapping[str, Any], prefix: str = "") -> Sequence[tuple[str, str]]:
    lines: list[tuple[str, str]] = []
    for name, value in values.items():
        if isinstance(value, Mapping):
            lines += _flat(value, f"{prefix}{name}.")  # pyright: ignore[reportUnknownArgumentType]
        else:
            told = f"{value:.4g}" if isinstance(value, float) else f"{value}"
            lines.append((f"{prefix}{name}", told))
    return lines


def _line(check: Check) -> str:
    figures = ", ".join(f"{name} {value:.4g}" for name, value in check.figures.items())
    reason = f"; {check.reason}" if check.reason and figures else check.reason
    return f"{check.status}  {check.name:<14} {figures}{reason} ({check.seconds:.1f} s)"
