"""The command line of every bench, and the verdict on its ratios.

uv run python tests/bench/NAME.py [--seconds 60] [--quick] [--peer PATH] [--json]
"""

import inspect
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import blas  # noqa: F401, before MLX, which would be slow
import cyclopts
from bench.rounds import Workload

from legos.cli.output import results_alone, show
from legos.errors import ConfigError
from legos.machine import blas_hint, quiet_collector

__all__ = ["Compared", "Measure", "Ratio", "explained", "judged", "run", "speed_ratio"]


class Ratio(NamedTuple):
    """One ratio of two measurements, which alternate so that a busy machine slows both."""

    meaning: str
    target: float
    at_most: bool = False  # True: values up to the target are good; False: values from it on

    def verdict(self, value: float | None) -> dict[str, Any]:
        """Meaning, good values (``>= 0.9``), and whether a value is good (None: not measured)."""
        good = f"{'<=' if self.at_most else '>='} {self.target:g}"
        met = None
        if value is not None:
            met = value <= self.target if self.at_most else value >= self.target
        return {"meaning": self.meaning, "good": good, "met": met}


@dataclass(frozen=True, slots=True)
class Compared(Workload):
    """The workload of a bench that can measure programs of other projects too."""

    peers: tuple[Path, ...] = ()  # programs of servers, or Pythons with trainers
    vllm: Path | None = None  # the vllm program; None: found through LEGOS_VLLM_BIN or PATH


Measure = Callable[[Any], Mapping[str, Any]]
"""Measures a ``Workload``, or a ``Compared`` one; its result has ``ratios``."""


def judged(measure: Measure, ratios: Mapping[str, Ratio], work: Workload) -> dict[str, Any]:
    """Run a bench.

    Returns:
        Figures. ``ratios`` can be compared between machines; ``targets`` has the meaning of each
        ratio, its target, and whether the target is met (None: not measured).
    """
    quiet_collector()  # as runs and servers do
    figures = measure(work)
    targets = {name: ratios[name].verdict(value) for name, value in figures["ratios"].items()}
    return {"blas": "reference" if blas_hint() else "fast", **figures, "targets": targets}


def explained(figures: Mapping[str, Any]) -> Mapping[str, Any]:
    """The figures of a bench for people: every ratio with its target and its meaning."""
    targets = figures["targets"]

    def line(ratio: str, value: float | None) -> str:
        target = targets[ratio]
        verdict = {True: "met", False: "missed", None: "not measured"}[target["met"]]
        number = "-" if value is None else f"{value:.4g}"
        return f"{number:<8} (target {target['good']}, {verdict}) {target['meaning']}"

    ratios = {ratio: line(ratio, value) for ratio, value in figures["ratios"].items()}
    return {name: value for name, value in figures.items() if name != "targets"} | {
        "ratios": ratios
    }


def speed_ratio(seconds: Sequence[tuple[float, float]]) -> float:
    """Median over the rounds of our speed as a ratio to theirs, from the seconds of both."""
    return statistics.median(theirs / ours for ours, theirs in seconds)


def run(measure: Measure, ratios: Mapping[str, Ratio], argv: Sequence[str] | None = None) -> None:
    """Run a bench with the options of a command line and print its figures."""
    compares = inspect.signature(measure).parameters["work"].annotation is Compared

    def command(
        *,
        seconds: float = 60.0,
        quick: bool = False,
        peer: Annotated[tuple[Path, ...], cyclopts.Parameter(consume_multiple=False)] = (),
        vllm_bin: Path | None = None,
        json: bool = False,
    ) -> None:
        """Measure a part of legos against a bare loop of the same work.

        Args:
            seconds: Time to measure, roughly, in seconds.
            quick: Measure smaller workloads in fewer rounds: the ratios are rough.
            peer: Program of another project, installed in an environment of its own: a server
                (mlx-openai-server, rapid-mlx, vllm-mlx) for server.py; the Python of one with
                mlx-lm-lora, mlx-tune or inductive-mlxrl for train.py, with torch and peft for
                cuda.py. Once for each program.
            vllm_bin: The vllm program, for cuda.py; by default LEGOS_VLLM_BIN, or vllm on PATH.
            json: Print one JSON object.
        """
        work = Workload(seconds, quick)
        if compares:
            work = Compared(seconds, quick, tuple(peer), vllm_bin)
        elif peer or vllm_bin:
            raise ConfigError("this bench compares with no other program; leave out --peer")
        with results_alone():  # libraries print to standard output too
            figures = judged(measure, ratios, work)
            show(figures if json else explained(figures), json=json)

    command.__doc__ = f"{inspect.getdoc(measure)}\n\n{inspect.getdoc(command)}"
    cyclopts.App(default_command=command, help_format="plaintext")(argv)
