"""How fast one model is on this machine: generation, training and adapters, beside mlx-lm alone."""

import itertools
import random
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from legos.bench.engine_bench import EngineBench
from legos.bench.step_bench import StepBench
from legos.bench.turns import in_turn, medians, seconds_of
from legos.records.limits import EngineLimits
from legos.records.names import POLICY
from legos.records.request import Request
from legos.weights.folder import read_adapter, write_adapter
from legos.wiring.device import Row, Split, device_checks
from legos.wiring.model import load_model

STREAMS = (1, 8, 32)
PROMPT, ANSWER, GROUP = 128, 32, 8  # tokens, tokens, answers to one prompt in the optimiser step
PARTS = 2 * len(STREAMS) + 3  # measurements that share the time


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One metric of the kit, and the same of mlx-lm alone, measured in turn."""

    name: str
    unit: str  # "tokens/s", where more is better, or "MiB" and "ms", where less is
    legos: float
    mlx_lm: float

    @property
    def ratio(self) -> float:
        """The kit's metric / mlx-lm's."""
        return self.legos / self.mlx_lm

    def as_dict(self) -> dict[str, Any]:
        """Fields and ratio, as JSON values."""
        return {**asdict(self), "ratio": self.ratio}


def measure(folder: Path, seconds: float) -> Iterator[Line]:
    """Measure one model; each line comes when it is measured.

    LoRA of rank 8 is on every linear module of both sides. mlx-lm generates with its
    ``BatchGenerator``, and its optimiser step pads the rows, as a plain loop does.

    Args:
        folder: the model.
        seconds: time to measure, roughly.

    Raises:
        ModelError: the model cannot be loaded.
    """
    part = seconds / PARTS
    limits = EngineLimits(max_rows=max(STREAMS), prefix_bytes=0)
    with closing(EngineBench(folder, limits)) as bench:
        bench.engine.load_adapter(bench.adapter(POLICY)).result()
        for streams in STREAMS:
            yield from _generation(bench, streams, part)
        yield _swap(bench, part)
    with closing(load_model(folder)) as model:
        rng = random.Random(0)
        prompt = _tokens(rng, PROMPT, model.num_vocabulary)
        rows = [(prompt + _tokens(rng, ANSWER, model.num_vocabulary), PROMPT) for _ in range(GROUP)]
        yield from _training(StepBench(model, device_checks(model)), rows, 2 * part)


def _generation(bench: EngineBench, streams: int, time_s: float) -> Iterator[Line]:
    """Speed of prefill, from answers of one token, and of decoding, from the further tokens."""
    plural = "s" if streams > 1 else ""
    seeds = itertools.count()

    def prompts() -> Sequence[Row]:
        """New ones for each measurement: the engine reuses what it computed for equal ones."""
        return bench.prompts(streams, PROMPT, seed=next(seeds))

    def run(tokens: int) -> float:
        requests = [
            Request(prompt_ids=prompt, max_tokens=tokens, seed=number)
            for number, prompt in enumerate(prompts())
        ]
        return bench.run(requests)

    def seconds(tokens: int) -> tuple[float, float]:
        """Median seconds of the kit and of mlx-lm for answers of so many tokens."""
        return medians(
            in_turn(
                lambda: run(tokens),
                lambda: bench.bare(prompts(), max_tokens=tokens, lora=True),
                seconds=time_s,
            )
        )

    first = seconds(1)
    whole = seconds(1 + ANSWER)
    speeds = {
        "prefill": [streams * PROMPT / s for s in first],
        "decode": [streams * ANSWER / max(1e-9, s - f) for s, f in zip(whole, first, strict=True)],
    }
    for part, (legos, mlx_lm) in speeds.items():
        name = f"{part}, {streams} stream{plural}"
        yield Line(name=name, unit="tokens/s", legos=legos, mlx_lm=mlx_lm)


def _swap(bench: EngineBench, time_s: float) -> Line:
    """Time from an adapter's folder to the live adapter, and of MLX to read the arrays alone."""
    with tempfile.TemporaryDirectory() as root:
        folders = [Path(root) / str(version) for version in (2, 3)]
        for version, folder in enumerate(folders, 2):
            folder.mkdir()
            write_adapter(bench.adapter(POLICY, version=version), folder)
        turns = itertools.cycle(folders)

        def swap() -> float:
            folder = next(turns)
            return seconds_of(lambda: bench.engine.load_adapter(read_adapter(folder)).result())

        read = partial(bench.checks.bare_load, folders[0])
        pairs = in_turn(swap, read, seconds=time_s, least=2)
    legos, mlx_lm = medians(pairs)
    return Line(name="adapter swap", unit="ms", legos=1000 * legos, mlx_lm=1000 * mlx_lm)


def _training(bench: StepBench, rows: Sequence[Split], time_s: float) -> Iterator[Line]:
    """Speed and memory of an optimiser step on a group of answers to one prompt."""
    pairs = in_turn(lambda: bench.step(rows), lambda: bench.bare([rows]), seconds=time_s)
    tokens = sum(len(ids) for ids, _ in rows)

    def line(name: str, unit: str, figure: Callable[[Any], float]) -> Line:
        legos, mlx_lm = (median(map(figure, costs)) for costs in zip(*pairs, strict=True))
        return Line(name=name, unit=unit, legos=legos, mlx_lm=mlx_lm)

    group = f"{GROUP} answers"
    yield line(f"train, {group}", "tokens/s", lambda cost: tokens / cost.seconds)
    yield line(f"train, {group}, peak", "MiB", lambda cost: cost.peak_bytes / 2**20)


def _tokens(rng: random.Random, count: int, vocabulary: int) -> tuple[int, ...]:
    return tuple(rng.randrange(1, vocabulary) for _ in range(count))
