"""``legos bench scale``: thousands of simulated engines on the real line, and where designs break.

Player, buffer, batcher, pool and broadcaster are the real ones; engines, links and the trainer's
device are simulated on a virtual clock (``legos.bench.simulated_line``). Four designs are
compared: one process with its engine; one trainer's process that plays and publishes to n servers,
over its link or through a shared folder; and a Ray cluster, whose nodes play and get each adapter
once.
"""

import pickle
import time
import tracemalloc
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from legos.bench.arithmetic import adapter_bytes, engines_until, limits_of
from legos.bench.line import samples_per_minute
from legos.bench.rounds import Workload
from legos.bench.simulated_line import PROMPT, Design, one_step, simulate
from legos.data.sample import TrainingBatch
from legos.ray.record import pack_episodes, unpack_episodes

__all__ = ["LAYER", "bench_scale"]

LAYER = (  # (inputs, outputs) of the modules of a layer of Qwen2.5 1.5B
    *((1536, 1536), (1536, 256), (1536, 256), (1536, 1536)),  # q, k, v, o
    *((1536, 8960), (1536, 8960), (8960, 1536)),  # gate, up, down
)
ADAPTER = adapter_bytes(8, 16 * LAYER)  # the default rank and layers
ENGINES_PER_NODE = 8
STORE = 12.5e9  # bytes per second of a shared file system: 100 Gbit/s, ten times the trainer's link
FEW = Design(
    engines=16,
    rows=2,
    plays=32,  # one for each row, as adaptive concurrency finds
    groups_per_step=2,  # half of what the rows compute at the same time
    trainer_tokens_per_s=1e9,  # never the limit: the line is measured, not a trainer
    adapter_bytes=ADAPTER,
)
THOUSANDS, MANY = 2048, 128  # engines, in full and quick


@dataclass(frozen=True, slots=True, kw_only=True)
class _Costs:
    """What a sample costs, measured."""

    record_bytes: float  # of a sample, on its way from a Ray player
    memory_bytes: float  # of a sample that waits for its step, with its rollout
    unpack_s: float  # CPU seconds
    records_s: float  # CPU seconds in credit, buffer and batcher


def bench_scale(work: Workload) -> Mapping[str, Any]:
    """Simulate lines of few and of thousands of engines, and compute where each design breaks."""
    most, steps = work.size((THOUSANDS, 5), (MANY, 5))
    many = FEW.scaled(most)
    costs = _costs(one_step(replace(FEW, groups_per_step=16)))
    tokens = len(PROMPT) + FEW.tokens
    fast = replace(FEW, adapter_bytes=0.0)
    designs = {
        "one engine": replace(fast, engines=1, groups_per_step=1, plays=2),
        "two engines": replace(fast, engines=2, groups_per_step=1, plays=4),
        "few engines": FEW,
        "many engines, no adapters": fast.scaled(most),
        "many engines": many,
        "many engines, shared folder": replace(many, store_bytes_per_s=STORE),
        "many engines, Ray": _ray(many),
    }
    lines = {name: _line(design, steps, tokens) for name, design in designs.items()}
    cpu_s = lines["many engines, no adapters"]["cpu_s"]
    cpu_ray_s = costs.unpack_s + costs.records_s
    return {
        "costs": asdict(costs),
        "adapter_bytes": ADAPTER,
        "lines": lines,
        "breaks_at_engines": {
            "one process": 1,
            "n servers, link of the trainer": engines_until(FEW, 0.0, sample_tokens=tokens),
            "n servers, CPU of the trainer": engines_until(fast, cpu_s, sample_tokens=tokens),
            "n servers, shared folder": engines_until(
                replace(FEW, store_bytes_per_s=STORE), 0.0, sample_tokens=tokens
            ),
            "Ray, link of the trainer": engines_until(_ray(FEW), 0.0, sample_tokens=tokens),
            "Ray, CPU of the trainer": engines_until(fast, cpu_ray_s, sample_tokens=tokens),
        },
        "ratios": {
            "arithmetic_vs_simulated": max(_factor(line) for line in lines.values()),
            "two_engines_vs_one": _speed(lines, "two engines", "one engine"),
            "engine_of_many_vs_one": _speed(lines, "many engines, no adapters", "one engine")
            / most,
            "cpu_of_many_vs_few": cpu_s / lines["few engines"]["cpu_s"],
            "discarded_share": max(line["discarded"] for line in lines.values()),
        },
    }


def _factor(line: Mapping[str, Any]) -> float:
    """By which factor the simulated speed and the arithmetic differ."""
    factor = line["samples_per_s"] / line["arithmetic"]
    return max(factor, 1.0 / factor)


def _speed(lines: Mapping[str, Mapping[str, Any]], name: str, other: str) -> float:
    return lines[name]["samples_per_s"] / lines[other]["samples_per_s"]


def _ray(design: Design) -> Design:
    """The same where the link carries one copy of an adapter for each node."""
    return replace(design, adapter_bytes=design.adapter_bytes / ENGINES_PER_NODE)


def _line(design: Design, steps: int, tokens: int) -> dict[str, Any]:
    """The figures of a simulated line, and what the arithmetic says."""
    warm = design.staleness_limit + 1
    found = simulate(design, steps=max(steps, 256 // design.samples), warm=warm)
    limits = limits_of(design, 0.0, sample_tokens=tokens)
    said = {"arithmetic": limits.samples_per_s, "limited_by": limits.first}
    return {"engines": design.engines, "samples_per_step": design.samples, **said, **asdict(found)}


def _costs(step: TrainingBatch) -> _Costs:
    """What the samples of a step cost on their way."""
    size, episodes = FEW.group_size, step.episodes
    groups = [episodes[at : at + size] for at in range(0, len(episodes), size)]
    records = [pack_episodes(group) for group in groups]
    started = time.thread_time()
    for record, group in zip(records, groups, strict=True):
        unpack_episodes(record, [(episode.task, episode.seed) for episode in group])
    unpack_s = time.thread_time() - started
    samples = len(step.samples)
    return _Costs(
        record_bytes=sum(map(len, records)) / samples,
        memory_bytes=_memory(step) / samples,
        unpack_s=unpack_s / samples,
        records_s=60.0 / samples_per_minute(step.episodes),
    )


def _memory(step: TrainingBatch) -> int:
    """Bytes that a step's samples and episodes take in the memory of the trainer's process."""
    packed = pickle.dumps((step.samples, step.episodes))
    tracemalloc.start()
    try:
        _kept = pickle.loads(packed)
        return tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
