"""The optimiser step, against bare and padded updates on the same rows.

uv run python tests/bench/train.py --json
"""

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parents[1])  # the folder of the package bench

import random
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from bench.command import Compared, Ratio, run
from bench.train_bench import TrainerProcess, program, train_bench
from model_files import ModelShape
from vocabulary import TOKENS

from legos.bench.step_bench import Cost, StepBench
from legos.machine import quiet_collector, share_cores
from legos.records.batch import row_blocks
from legos.wiring.device import Split

__all__ = ["RATIOS", "bench_train"]

RATIOS: Mapping[str, Ratio] = {
    "dense_vs_bare": Ratio("speed of a step on unrelated rows, against a bare update", 0.9),
    "dense_memory_vs_bare": Ratio("memory of that step, against it", 1.2, at_most=True),
    "train_vs_fastest": Ratio(
        "speed on unrelated rows against the fastest of the other trainers given, each at its "
        "fastest micro-batch",
        1.5,
    ),
    "train_memory_vs_fastest": Ratio("memory of that step, against it", 0.7, at_most=True),
    "group_vs_fastest": Ratio("the same speed on 8 answers to one prompt", 4),
    "group_vs_padded": Ratio("speed on 8 answers to one prompt, against padded rows", 3.5),
    "group_memory_vs_padded": Ratio("memory of that step, against them", 0.5, at_most=True),
    "mixed_vs_padded": Ratio("speed on rows of 32 to 512 tokens, against padded rows", 1.5),
    "trie_vs_rows": Ratio("speed on 1,024 answers to 21 prompts, against one row each", 10),
    "logprob_memory_vs_full": Ratio(
        "memory with a vocabulary of 150,000, against all logits at once", 0.2, at_most=True
    ),
    "logprob_speed_vs_full": Ratio("speed of that step, against it", 1),
    "checkpoint_memory_vs_plain": Ratio(
        "memory with gradient checkpointing, against without", 0.45, at_most=True
    ),
    "checkpoint_vs_plain": Ratio("speed with it, against without", 0.65),
    "checkpoint_vs_two_forward": Ratio(
        "speed with it, against a step without and one more forward pass, which it needs", 0.9
    ),
    "token_scaling_exponent": Ratio(
        "exponent with which the time of a step grows in its tokens, 1k to 32k",
        1.1,
        at_most=True,
    ),
}
"""Name of each ratio -> its meaning and target."""

Ratios = Mapping[str, float | None]
Pairs = Sequence[tuple[Cost, Cost]]
ROUNDS = 5
SMALL = ModelShape(
    hidden=128, layers=4, heads=4, kv_heads=2, head_dim=32, intermediate=384, vocab=512
)
DEEP = replace(SMALL, layers=16)
WIDE = ModelShape(hidden=64, layers=1, heads=2, kv_heads=2, intermediate=128, vocab=150_000)
HEADED = replace(SMALL, vocab=32_000)
BUDGETS = (512, 1024, 2048, 4096)  # padded tokens of a micro-batch
NEAR = 1.05  # times of two micro-batch sizes whose ratio is below are held to be equal
ROWS = (1, 2, 4, 8)  # rows of a micro-batch of another trainer
NO_PEER = "no other trainer was given with --peer; see docs/log/training_step.md"


def bench_train(work: Compared) -> Mapping[str, Any]:
    """Run every comparison; every figure is the median of one to five rounds.

    Returns:
        ``ratios``, which can be compared between machines, the reasons of missing ones, and in
        ``trainers`` the speed and memory of the kit as ratios to each other trainer.
    """
    quiet_collector()
    threads = share_cores(2)
    ratios: dict[str, float | None] = {}
    trainers: dict[str, Mapping[str, Any]] = {}
    with tempfile.TemporaryDirectory() as root:
        for measure in _CASES:
            name = measure.__name__.strip("_")
            case = _TrainCase(Path(root) / name, work.part(1 / len(_CASES)), threads)
            ratios |= measure(case)
            if case.trainers:
                trainers[name] = case.trainers
    missing = {name: NO_PEER for name, ratio in ratios.items() if ratio is None}
    return {"ratios": ratios, "trainers": trainers, "not_measured": missing}


class _TrainCase:
    """Random rows and the benches of one comparison; the rows do not depend on other cases.

    Attributes:
        trainers: name of each other trainer -> the kit's speed and memory as ratios to it.
    """

    def __init__(self, folder: Path, work: Compared, threads: int) -> None:
        self.folder = folder
        self.work = work
        self.threads = threads
        self.trainers: Mapping[str, Any] = {}
        self._rng = random.Random(folder.name)

    def bench(self, shape: ModelShape, **settings: Any) -> StepBench:
        return train_bench(self.folder, shape, **settings)

    def tokens(self, count: int) -> tuple[int, ...]:
        return tuple(self._rng.randrange(1, len(TOKENS)) for _ in range(count))

    def rows(self, count: int, low: int, high: int, *, prompt: float) -> list[Split]:
        """Unrelated rows of ``low`` to ``high`` tokens; a share of each is the prompt."""
        lengths = [self._rng.randint(low, high) for _ in range(count)]
        return [(self.tokens(length), int(length * prompt)) for length in lengths]

    def group(self) -> list[Split]:
        """Eight completions of one prompt."""
        length, answer = self.work.size((512, 64), (256, 32))
        prompt = self.tokens(length)
        return [((*prompt, *self.tokens(answer)), length) for _ in range(8)]

    def fastest(self, sizes: Sequence[int], update: Callable[[int], Cost]) -> int:
        """The micro-batch size, in padded tokens or in rows, with the fastest update.

        Of ``sizes``, which rise, the first within 5 % of the fastest, because it takes less memory.
        """
        rounds = self.work.size(2, 1)
        times = {size: min(update(size).seconds for _ in range(rounds)) for size in sizes}
        return next(size for size in sizes if times[size] <= NEAR * min(times.values()))

    def in_turn(self, ours: Callable[[], Cost], theirs: Callable[[], Cost]) -> Pairs:
        return self.work.in_turn(ours, theirs, least=1, most=ROUNDS)

    def against_bare(
        self, shape: ModelShape, rows: Sequence[Split], *, block: int, pad_to: int = 0
    ) -> Pairs:
        """The kit's step, and a bare update on blocks of so many rows."""
        bench = self.bench(shape)
        blocks = _blocks(rows, block)
        return self.in_turn(lambda: bench.step(rows), lambda: bench.bare(blocks, pad_to=pad_to))

    def against_fastest(self, shape: ModelShape, rows: Sequence[Split]) -> Pairs | None:
        """The kit's step, and that of the fastest other trainer; None where none is given.

        Both sides compute as many tokens or rows at once as is fastest for them.
        """
        if not self.work.peers:
            return None
        kit = {budget: self.bench(shape, micro_batch_tokens=budget) for budget in BUDGETS}
        ours = kit[self.fastest(BUDGETS, lambda budget: kit[budget].step(rows))]
        found: dict[str, Pairs] = {}
        for python in self.work.peers:
            command = program("peer_trainer", self.folder, python=python)
            with closing(TrainerProcess(command, self.threads)) as other:
                count = self.fastest(ROWS, partial(other.step, rows))
                pairs = self.in_turn(lambda: ours.step(rows), partial(other.step, rows, count))
                found[f"{other.name}, {count} rows at once"] = pairs
        self.trainers = {
            name: {"speed": _speed(pairs), "memory": _memory(pairs)}
            for name, pairs in found.items()
        }
        return min(found.values(), key=_speed)


def _dense(case: _TrainCase) -> Ratios:
    """Unrelated rows of 64 to 512 tokens, against the fastest bare update sorted by length."""
    count, budgets = case.work.size((32, BUDGETS), (6, BUDGETS[1::2]))
    rows = case.rows(count, 64, 512, prompt=0.75)
    device = case.bench(SMALL)

    def sorted_blocks(budget: int) -> list[list[Split]]:
        return list(row_blocks(rows, budget, length=lambda row: len(row[0])))

    best = case.fastest(budgets, lambda budget: device.bare(sorted_blocks(budget)))
    ours = case.bench(SMALL, micro_batch_tokens=best)  # memory depends on the budget
    blocks = sorted_blocks(best)
    pairs = case.in_turn(lambda: ours.step(rows), lambda: device.bare(blocks))
    return {"dense_vs_bare": _speed(pairs), "dense_memory_vs_bare": _memory(pairs)}


def _dense_trainers(case: _TrainCase) -> Ratios:
    """Unrelated rows and a vocabulary of 32,000, against other trainers."""
    rows = case.rows(case.work.size(12, 4), 64, 512, prompt=0.75)
    pairs = case.against_fastest(HEADED, sorted(rows, key=lambda row: len(row[0])))
    if pairs is None:
        return dict.fromkeys(("train_vs_fastest", "train_memory_vs_fastest"))
    return {"train_vs_fastest": _speed(pairs), "train_memory_vs_fastest": _memory(pairs)}


def _group_trainers(case: _TrainCase) -> Ratios:
    """Eight completions of one prompt, against other trainers."""
    pairs = case.against_fastest(SMALL, case.group())
    return {"group_vs_fastest": None if pairs is None else _speed(pairs)}


def _group(case: _TrainCase) -> Ratios:
    """Eight completions of 64 tokens to one prompt of 512, against one padded row each."""
    pairs = case.against_bare(SMALL, case.group(), block=8)
    return {"group_vs_padded": _speed(pairs), "group_memory_vs_padded": _memory(pairs)}


def _mixed(case: _TrainCase) -> Ratios:
    """Unrelated rows of 32 to 512 tokens, against rows padded to the longest."""
    rows = case.rows(case.work.size(32, 8), 32, 512, prompt=0.5)
    longest = max(len(tokens) for tokens, _ in rows)
    return {"mixed_vs_padded": _speed(case.against_bare(SMALL, rows, block=8, pad_to=longest))}


def _trie(case: _TrainCase) -> Ratios:
    """1,024 answers of one token to 21 positions of a small game, against one row each."""
    opening = case.tokens(20)
    positions = [(*opening, *case.tokens(24)) for _ in range(case.work.size(21, 7))]
    answers = case.tokens(case.work.size(1024, 182))
    rows = [((*positions[n % len(positions)], answer), 44) for n, answer in enumerate(answers)]
    return {"trie_vs_rows": _speed(case.against_bare(SMALL, rows, block=91))}


def _logprob_memory(case: _TrainCase) -> Ratios:
    """2,048 completion tokens, vocabulary 150,000, against computing all logits at once."""
    rows = [(case.tokens(513), 1) for _ in range(case.work.size(4, 1))]
    pairs = case.against_bare(WIDE, rows, block=4)
    return {"logprob_memory_vs_full": _memory(pairs), "logprob_speed_vs_full": _speed(pairs)}


def _checkpoint_memory(case: _TrainCase) -> Ratios:
    """Four rows of 512 tokens, 16 layers: gradient checkpointing against none."""
    rows = [(case.tokens(512), 448) for _ in range(case.work.size(4, 1))]
    ours, plain = (case.bench(DEEP, gradient_checkpointing=on) for on in (True, False))
    calls = (lambda: ours.step(rows), lambda: plain.step(rows), lambda: plain.forward(rows))
    rounds = case.work.rounds(calls, least=1, most=ROUNDS)
    pairs = [(with_it, without) for with_it, without, _ in rounds]
    most = [(without.seconds + once.seconds) / slow.seconds for slow, without, once in rounds]
    return {
        "checkpoint_memory_vs_plain": _memory(pairs),
        "checkpoint_vs_plain": _speed(pairs),
        "checkpoint_vs_two_forward": statistics.median(most),
    }


def _scaling(case: _TrainCase) -> Ratios:
    """Exponent with which the time of a step grows in its tokens, from 1k to 32k in rows of 256."""
    device = case.bench(SMALL)
    counts = [4 << power for power in range(case.work.size(6, 4))]
    rows = [(case.tokens(257), 192) for _ in range(counts[-1])]
    device.step(rows[:4])
    started = time.perf_counter()
    times: dict[int, list[float]] = {count: [] for count in counts}
    while not times[counts[-1]] or time.perf_counter() - started < case.work.seconds:
        for count in counts:
            times[count].append(device.step(rows[:count]).seconds)
    medians = [statistics.median(times[count]) for count in counts]
    exponent = np.polyfit(np.log(counts), np.log(medians), 1)[0]
    return {"token_scaling_exponent": float(exponent)}


_CASES: Sequence[Callable[[_TrainCase], Ratios]] = (
    _dense,
    _dense_trainers,
    _group_trainers,
    _group,
    _mixed,
    _trie,
    _logprob_memory,
    _checkpoint_memory,
    _scaling,
)


def _blocks(rows: Sequence[Split], size: int) -> list[Sequence[Split]]:
    """Rows in blocks of so many."""
    return [rows[first : first + size] for first in range(0, len(rows), size)]


def _speed(pairs: Pairs) -> float:
    return statistics.median(theirs.seconds / ours.seconds for ours, theirs in pairs)


def _memory(pairs: Pairs) -> float:
    return statistics.median(ours.peak_bytes / theirs.peak_bytes for ours, theirs in pairs)


if __name__ == "__main__":
    run(bench_train, RATIOS)
