"""``legos bench train``: the optimiser step, against bare and padded updates on the same rows."""

import random
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from legos.bench.rounds import in_turn
from legos.bench.train_bench import Cost, TrainBench
from legos.builtin.files import ModelShape, random_weights, write_model
from legos.data.batch import row_blocks
from legos.data.sample import Sample
from legos.wiring.device import Split
from legos.wiring.machine import quiet_collector, share_cores

__all__ = ["bench_train"]

Ratios = dict[str, float | None]
Measure = Callable[[], Cost]
ROUNDS = 5
SMALL = ModelShape(
    hidden=128, layers=4, heads=4, kv_heads=2, head_dim=32, intermediate=384, vocab=512
)
DEEP = replace(SMALL, layers=16)
WIDE = ModelShape(hidden=64, layers=1, heads=2, kv_heads=2, intermediate=128, vocab=150_000)
HEADED = replace(SMALL, vocab=32_000)
BUDGETS = (512, 1024, 2048, 4096)  # padded tokens of a micro-batch
NOT_INSTALLED = (
    "mlx-lm-lora is not installed; 'uv run --with mlx-lm-lora legos bench train' measures it "
    "(on Linux --with 'mlx[cpu]' as well)"
)


def bench_train(seconds: float) -> Mapping[str, Any]:
    """Run every comparison.

    Args:
        seconds: time to measure, roughly; every figure is the median of one to five rounds.

    Returns:
        ``ratios``, which can be compared between machines, and the reasons of missing ones.
    """
    quiet_collector()
    share_cores(2)
    cases: Sequence[Callable[[Path, float], Ratios]] = (
        _dense,
        _mlx_lm_lora,
        _group,
        _mixed,
        _trie,
        _logprob_memory,
        _checkpoint_memory,
        _scaling,
    )
    ratios: Ratios = {}
    with tempfile.TemporaryDirectory() as folder:
        for case in cases:
            ratios |= case(Path(folder) / case.__name__, seconds / len(cases))
    missing = {name: NOT_INSTALLED for name, ratio in ratios.items() if ratio is None}
    return {"ratios": ratios, "not_measured": missing}


def _dense(folder: Path, seconds: float) -> Ratios:
    """Unrelated rows of 64 to 512 tokens, against the fastest bare update sorted by length."""
    rows = _unrelated(32)
    device = _device(folder, SMALL)
    best = _fastest(BUDGETS, lambda budget: device.bare(_blocks(rows, budget)), rounds=3)
    blocks = _blocks(rows, best)
    ours = _device(folder, SMALL, micro_batch_tokens=best)  # memory depends on the budget
    costs = _pairs(lambda: ours.step(_samples(rows)), lambda: device.bare(blocks), seconds)
    return {"dense_vs_bare": _speed(costs), "dense_memory_vs_bare": _memory(costs)}


def _mlx_lm_lora(folder: Path, seconds: float) -> Ratios:
    """The same kind of rows with a vocabulary of 32,000, against mlx-lm-lora's step.

    Both run with their default micro-batches, and with the fastest ones.
    """
    name = "train_vs_mlx_lm_lora"
    rows = sorted(_unrelated(12), key=lambda row: len(row[0]))
    device = _device(folder, HEADED)
    if device.peer([rows[:1]]) is None:
        return dict.fromkeys((name, f"{name}_memory", f"{name}_fastest"))
    kit = {budget: _device(folder, HEADED, micro_batch_tokens=budget) for budget in BUDGETS}

    def ours(budget: int) -> Cost:
        return kit[budget].step(_samples(rows))

    def theirs(count: int) -> Cost:
        cost = device.peer([rows[at : at + count] for at in range(0, len(rows), count)])
        assert cost is not None, "it was installed a moment ago"
        return cost

    our_best, their_best = _fastest(BUDGETS, ours), _fastest((1, 2, 4), theirs)
    usual = _pairs(lambda: ours(4096), lambda: theirs(4), seconds / 2)
    fastest = _pairs(lambda: ours(our_best), lambda: theirs(their_best), seconds / 2)
    return {
        name: _speed(usual),
        f"{name}_memory": _memory(usual),
        f"{name}_fastest": _speed(fastest),
    }


def _group(folder: Path, seconds: float) -> Ratios:
    """Eight completions of 64 tokens to one prompt of 512, against one padded row each."""
    rng = random.Random(1)
    prompt = _tokens(rng, 512)
    rows = [((*prompt, *_tokens(rng, 64)), 512) for _ in range(8)]
    device = _device(folder, SMALL)
    costs = _pairs(lambda: device.step(_samples(rows)), lambda: device.bare([rows]), seconds)
    return {"group_vs_padded": _speed(costs), "group_memory_vs_padded": _memory(costs)}


def _mixed(folder: Path, seconds: float) -> Ratios:
    """Unrelated rows of 32 to 512 tokens, against rows padded to the longest."""
    rng = random.Random(2)
    rows = [_row(rng, length := rng.randint(32, 512), length // 2) for _ in range(32)]
    device = _device(folder, SMALL)
    blocks = [rows[first : first + 8] for first in range(0, len(rows), 8)]
    longest = max(len(tokens) for tokens, _ in rows)
    costs = _pairs(
        lambda: device.step(_samples(rows)),
        lambda: device.bare(blocks, pad_to=longest),
        seconds,
    )
    return {"mixed_vs_padded": _speed(costs)}


def _trie(folder: Path, seconds: float) -> Ratios:
    """1,024 answers of one token to 21 positions of a small game, against one row each."""
    rng = random.Random(3)
    opening = _tokens(rng, 20)
    positions = [(*opening, *_tokens(rng, 24)) for _ in range(21)]
    rows = [((*rng.choice(positions), rng.randrange(1, 10)), 44) for _ in range(1024)]
    device = _device(folder, SMALL)
    blocks = [rows[first : first + 91] for first in range(0, len(rows), 91)]
    costs = _pairs(lambda: device.step(_samples(rows)), lambda: device.bare(blocks), seconds)
    return {"trie_vs_rows": _speed(costs)}


def _logprob_memory(folder: Path, seconds: float) -> Ratios:
    """2,048 completion tokens, vocabulary 150,000, against computing all logits at once."""
    rng = random.Random(4)
    rows = [_row(rng, 513, 1) for _ in range(4)]
    device = _device(folder, WIDE)
    costs = _pairs(lambda: device.step(_samples(rows)), lambda: device.bare([rows]), seconds)
    return {"logprob_memory_vs_full": _memory(costs), "logprob_speed_vs_full": _speed(costs)}


def _checkpoint_memory(folder: Path, seconds: float) -> Ratios:
    """Four rows of 512 tokens, 16 layers: gradient checkpointing against none."""
    rng = random.Random(6)
    rows = [_row(rng, 512, 448) for _ in range(4)]
    ours, plain = (_device(folder, DEEP, gradient_checkpointing=on) for on in (True, False))
    samples = _samples(rows)
    costs = _pairs(lambda: ours.step(samples), lambda: plain.step(samples), seconds)
    return {"checkpoint_memory_vs_plain": _memory(costs), "checkpoint_vs_plain": _speed(costs)}


def _scaling(folder: Path, seconds: float) -> Ratios:
    """Exponent with which the time of a step grows in its tokens, from 1k to 32k in rows of 256."""
    rng = random.Random(5)
    device = _device(folder, SMALL)
    counts = [4 << power for power in range(6)]
    rows = [_row(rng, 257, 192) for _ in range(counts[-1])]
    device.step(_samples(rows[:4]))
    started = time.perf_counter()
    times: dict[int, list[float]] = {count: [] for count in counts}
    while not times[counts[-1]] or time.perf_counter() - started < seconds:
        for count in counts:
            times[count].append(device.step(_samples(rows[:count])).seconds)
    medians = [statistics.median(times[count]) for count in counts]
    exponent = np.polyfit(np.log(counts), np.log(medians), 1)[0]
    return {"token_scaling_exponent": float(exponent)}


def _device(folder: Path, shape: ModelShape, **options: Any) -> TrainBench:
    if not folder.exists():
        write_model(folder, shape, random_weights(shape, np.random.default_rng(0)))
    return TrainBench(folder, **options)


def _unrelated(count: int) -> list[Split]:
    """Rows of 64 to 512 tokens; the last quarter of each is the completion."""
    rng = random.Random(0)
    return [_row(rng, length := rng.randint(64, 512), length * 3 // 4) for _ in range(count)]


def _fastest(sizes: Sequence[int], update: Callable[[int], Cost], *, rounds: int = 2) -> int:
    """The micro-batch size, in padded tokens or in rows, with the fastest update."""
    times = {size: min(update(size).seconds for _ in range(rounds)) for size in sizes}
    return min(times, key=times.__getitem__)


def _tokens(rng: random.Random, count: int) -> tuple[int, ...]:
    return tuple(rng.randrange(1, SMALL.vocab) for _ in range(count))


def _row(rng: random.Random, length: int, prompt: int) -> Split:
    return _tokens(rng, length), prompt


def _samples(rows: Sequence[Split]) -> list[Sample]:
    """Rows as samples; their log-probabilities and advantages do not change the work."""
    return [
        Sample(
            token_ids=tokens,
            positions=tuple(range(prompt, len(tokens))),
            logprobs=(-6.0,) * (len(tokens) - prompt),
            versions=(0,) * (len(tokens) - prompt),
            advantages=(1.0 - 2.0 * (number % 2),) * (len(tokens) - prompt),
            legal=((),) * (len(tokens) - prompt),
        )
        for number, (tokens, prompt) in enumerate(rows)
    ]


def _blocks(rows: Sequence[Split], max_tokens: int) -> list[list[Split]]:
    """Rows sorted by length, in blocks of at most ``max_tokens`` padded tokens or one row."""
    return list(row_blocks(rows, max_tokens, length=lambda row: len(row[0])))


def _pairs(ours: Measure, bare: Measure, seconds: float) -> list[tuple[Cost, Cost]]:
    """Cost of both in each round."""
    return in_turn(ours, bare, seconds, least=1, most=ROUNDS)


def _speed(pairs: Sequence[tuple[Cost, Cost]]) -> float:
    return statistics.median(bare.seconds / ours.seconds for ours, bare in pairs)


def _memory(pairs: Sequence[tuple[Cost, Cost]]) -> float:
    return statistics.median(ours.peak_bytes / bare.peak_bytes for ours, bare in pairs)
