"""Generation alone, on a random model of 5 million parameters; memory of checks and of layers.

uv run python tests/bench/engine.py --json
"""

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parents[1])  # the folder of the package bench

import random
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from itertools import pairwise
from typing import Any

from bench.command import Ratio, run
from bench.numbered import numbered_requests
from bench.rounds import Workload
from cache_bytes import counted
from delta_peaks import memory_vs_loop
from load_peaks import load_check_peak
from msgspec.structs import replace

from legos.bench.engine_bench import EngineBench
from legos.bench.models import HEAD, write_bench_model
from legos.bench.turns import medians
from legos.clients.submit import submit_all
from legos.records.limits import EngineLimits
from legos.records.names import BASE, POLICY
from legos.records.request import Request
from legos.wiring.device import Row

__all__ = ["RATIOS", "bench_engine"]

_BARE = "speed against mlx-lm's BatchGenerator alone"
RATIOS: Mapping[str, Ratio] = {
    "engine_vs_bare": Ratio(f"{_BARE}, 64 prompts, 64 tokens each", 0.9),
    "group_prefill_share": Ratio(
        "prompt tokens computed for 8 samples of one prompt, as a share of 8 prompts; 1/8 "
        "computes every token once",
        0.15,
        at_most=True,
    ),
    "group_cache_bytes_vs_copies": Ratio(
        "bytes of the KV cache at its fullest, with 8 samples of one prompt of 512 tokens and "
        "answers of 64, as a share of 8 prompts and answers",
        0.35,
        at_most=True,
    ),
    "multiturn_prefill_share": Ratio(
        "prompt tokens computed in a conversation, per new prompt token", 1.1, at_most=True
    ),
    "adapters4_vs_1": Ratio("speed with four adapters in one batch, against one", 0.8),
    "rows_admitted_vs_reserved": Ratio(
        "rows decoded at once, of answers that take a quarter of max_tokens, against those that "
        "fit if each held max_tokens",
        2.5,
    ),
    "cache_bytes_vs_written": Ratio(
        "bytes that go into the KV cache, over those of new tokens, while 64 answers of random "
        "lengths are decoded 8 at a time",
        1.2,
        at_most=True,
    ),
    "load_check_peak_vs_weights": Ratio(
        "peak of memory while a model in bfloat16 is checked, over its weights", 1.3, at_most=True
    ),
    "gated_delta_memory_vs_loop": Ratio(
        "peak of memory of both passes through a layer with the gated delta rule, 2,048 tokens, as "
        "a share of that of mlx-lm's loop over tokens",
        0.125,
        at_most=True,
    ),
    "decode_ahead": Ratio(
        "speed with every step launched before the last one is read, against reading each at "
        "once; a gain on a GPU, a loss on a CPU, where it is off by default",
        0.75,
    ),
    "decode_with_swaps": Ratio("speed with one new adapter a second, against none", 0.9),
    "swap_pause_in_steps": Ratio(
        "p99 pause of a stream at ten new adapters a second, in decoding steps", 2, at_most=True
    ),
    "pause_in_steps_without_swap": Ratio("the same with no new adapter", 2, at_most=True),
}
"""Name of each ratio -> its meaning and target."""

PROMPT = 64  # tokens


def bench_engine(work: Workload) -> Mapping[str, Any]:
    """Measure generation against a bare loop, shared prompts, and adapter swaps."""
    rows, tokens = work.size((32, 64), (8, 16))
    limits = EngineLimits(max_rows=rows)
    with tempfile.TemporaryDirectory() as folder:
        model = write_bench_model("5m", Path(folder) / "model")
        plain = _against_bare(model, limits, work.part(0.25), tokens)
        ahead = _ahead(model, limits, work.part(0.15), tokens)
        admitted = _admitted(model, work)
        moved = _cache_bytes(model, work)
        checked = load_check_peak(write_bench_model("40m", Path(folder) / "checked"))
        with closing(EngineBench(model, limits)) as bench:
            return {
                **plain,
                "ratios": {
                    "decode_ahead": ahead,
                    "rows_admitted_vs_reserved": admitted,
                    "cache_bytes_vs_written": moved,
                    "load_check_peak_vs_weights": checked,
                    "gated_delta_memory_vs_loop": memory_vs_loop(work.size(2048, 512)),
                    "engine_vs_bare": plain["bare_s"] / plain["engine_s"],
                    "group_prefill_share": _group_share(bench),
                    "group_cache_bytes_vs_copies": _group_bytes(model),
                    "multiturn_prefill_share": _multiturn_share(bench),
                    "adapters4_vs_1": _four_adapters(bench, rows, tokens, work.part(0.2)),
                    **_swaps(bench, rows, work.part(0.25)),
                },
            }


def _against_bare(
    model: Path, limits: EngineLimits, work: Workload, tokens: int
) -> dict[str, float]:
    """Twice as many prompts of 64 tokens as run at once, without a prefix cache."""
    with closing(EngineBench(model, replace(limits, prefix_bytes=0))) as bench:
        prompts = bench.prompts(2 * limits.max_rows, PROMPT)
        requests = numbered_requests(prompts, tokens, BASE)
        pairs = work.in_turn(
            lambda: bench.run(requests), lambda: bench.bare(prompts, max_tokens=tokens)
        )
    ours_s, bare_s = medians(pairs)
    return {
        "engine_s": ours_s,
        "bare_s": bare_s,
        "tokens_per_s": len(prompts) * tokens / ours_s,
    }


def _ahead(model: Path, limits: EngineLimits, work: Workload, tokens: int) -> float:
    """Decoding speed with steps launched before the last one is read, against steps read at once.

    On a CPU the second also samples with NumPy, which is faster there than on MLX's device.
    """
    with (
        closing(EngineBench(model, replace(limits, decode_ahead="on"))) as on,
        closing(EngineBench(model, replace(limits, decode_ahead="off"))) as off,
    ):
        requests = numbered_requests(on.prompts(limits.max_rows, 8, seed=5), 2 * tokens, BASE)
        on_s, off_s = medians(work.in_turn(lambda: on.run(requests), lambda: off.run(requests)))
    return off_s / on_s


def _admitted(model: Path, work: Workload) -> float:
    """Rows decoded at once in a small cache, against those that fit with all their tokens."""
    reserved, most = work.size((8, 1024), (4, 1024))
    with closing(EngineBench(model, EngineLimits())) as bench:
        engine: Any = bench.engine
        token_bytes = engine.capabilities.sizes.token_bytes
    limits = EngineLimits(cache_bytes=reserved * (8 + most) * token_bytes)
    with closing(EngineBench(model, limits)) as bench:
        rows: list[float] = []

        def ended(tokens: Sequence[int]) -> bool:
            rows.append(bench.engine.stats()["rows_decoding"])
            return len(tokens) >= most // 4

        requests = numbered_requests(bench.prompts(3 * reserved, 8, seed=6), most, BASE)
        bench.run([replace(request, stops=ended) for request in requests])
    return statistics.mean(rows) / reserved


def _cache_bytes(model: Path, work: Workload) -> float:
    """Bytes written into the cache over those of new tokens, in a steady state.

    From the first answer until no prompt waits, rows end and are refilled all the time. Prompts
    have 16 to 64 tokens and answers up to a quarter of ``max_tokens``, as nobody knows their
    length.
    """
    rows, most = work.size((8, 1024), (4, 256))
    rng = random.Random(7)
    limits = EngineLimits(max_rows=rows, prefix_bytes=0)
    with closing(EngineBench(model, limits)) as bench, counted(HEAD) as cache:
        seen: list[tuple[float, float]] = []  # bytes, and tokens that have a place in the cache

        def stop_after(length: int) -> Callable[[Sequence[int]], bool]:
            def stops(tokens: Sequence[int]) -> bool:
                stats = bench.engine.stats()
                if stats["requests_answered_total"] and stats["requests_waiting"]:
                    drawn = stats["tokens_generated_total"] - stats["requests_answered_total"]
                    seen.append((cache.total, drawn + stats["prefill_tokens_total"]))
                return len(tokens) >= length

            return stops

        lengths = [(rng.randint(16, 64), rng.randint(1, most // 4)) for _ in range(8 * rows)]
        prompts = [bench.prompts(1, length, seed=n)[0] for n, (length, _) in enumerate(lengths)]
        requests = numbered_requests(prompts, most, BASE)
        stops = [stop_after(length) for _, length in lengths]
        bench.run([replace(one, stops=stop) for one, stop in zip(requests, stops, strict=True)])
        engine: Any = bench.engine
        token_bytes = engine.capabilities.sizes.token_bytes
    (first_bytes, first_tokens), (last_bytes, last_tokens) = seen[0], seen[-1]
    return (last_bytes - first_bytes) / ((last_tokens - first_tokens) * token_bytes)


def _computed(bench: EngineBench) -> float:
    """Prompt tokens that went through the model so far."""
    return bench.engine.stats()["prefill_tokens_total"]


def _group_share(bench: EngineBench) -> float:
    """Prompt tokens computed for 8 samples of one prompt of 512 tokens, as a share of 8 prompts."""
    prompts = 8 * bench.prompts(1, 512, seed=1)
    before = _computed(bench)
    bench.run(numbered_requests(prompts, 8, BASE))
    return (_computed(bench) - before) / sum(map(len, prompts))


def _group_bytes(model: Path) -> float:
    """Bytes of the KV cache for 8 samples of one prompt, as a share of what copies take."""
    samples, prompt, answer = 8, 512, 64
    with closing(EngineBench(model, EngineLimits())) as bench:
        engine: Any = bench.engine
        held: list[int] = []

        def ended(_: Sequence[int]) -> bool:
            held.append(engine._scheduler._rows.cache.nbytes)
            return False

        requests = numbered_requests(samples * bench.prompts(1, prompt, seed=1), answer, BASE)
        bench.run([replace(request, stops=ended) for request in requests])
        token_bytes = engine.capabilities.sizes.token_bytes
    return max(held) / (samples * (prompt + answer) * token_bytes)


def _multiturn_share(bench: EngineBench) -> float:
    """Prompt tokens computed in a conversation of 10 turns, per new prompt token."""
    questions = bench.prompts(10, 48, seed=2)
    prompt: Row = ()
    before = _computed(bench)
    for question in questions:
        prompt += question
        (answer,) = submit_all(bench.engine, numbered_requests([prompt], 32, BASE)).result()
        prompt += answer.token_ids
    return (_computed(bench) - before) / sum(map(len, questions))


def _four_adapters(bench: EngineBench, rows: int, tokens: int, work: Workload) -> float:
    """Decoding speed with four adapters in one batch, against one adapter for all rows."""
    names = [f"rival{number}" for number in range(4)]
    for name in names:
        bench.engine.load_adapter(bench.adapter(name)).result()
    prompts = bench.prompts(rows, 8, seed=3)
    four, one = (numbered_requests(prompts, tokens, *given) for given in (names, names[:1]))
    four_s, one_s = medians(work.in_turn(lambda: bench.run(four), lambda: bench.run(one)))
    for name in names:
        bench.engine.drop_adapter(name).result()
    return one_s / four_s


def _swaps(bench: EngineBench, rows: int, work: Workload) -> dict[str, float]:
    """Decoding speed with one swap per second, and pauses of a stream with ten per second."""
    bench.engine.load_adapter(bench.adapter(POLICY, version=1)).result()
    requests = numbered_requests(bench.prompts(rows, 8, seed=4), work.size(256, 128), POLICY)
    steps: list[float] = []  # seconds between tokens
    pauses: list[float] = []  # the same across a swap

    def often() -> float:
        beats: list[float] = []
        took, swapped = _with_swaps(bench, requests, beats, every_s=0.1)
        for before, after in pairwise(beats):
            swap = any(before < moment < after for moment in swapped)
            (pauses if swap else steps).append(after - before)
        return took

    def seldom() -> float:
        return _with_swaps(bench, requests, [], every_s=1.0)[0]

    swapped_s, plain_s = medians(work.part(0.6).in_turn(seldom, lambda: bench.run(requests)))
    work.part(0.4).in_turn(often, often)
    step = statistics.median(steps)
    return {
        "decode_with_swaps": plain_s / swapped_s,
        "swap_pause_in_steps": _p99(pauses) / step - 1.0,
        "pause_in_steps_without_swap": _p99(steps) / step - 1.0,
    }


def _with_swaps(
    bench: EngineBench, requests: Sequence[Request], beats: list[float], *, every_s: float
) -> tuple[float, list[float]]:
    """Seconds of the requests while adapters are swapped, and the time of each swap."""
    ended, swapped = threading.Event(), list[float]()
    adapters = [bench.adapter(POLICY, version=version) for version in (2, 3)]
    _ = [adapter.digest for adapter in adapters]  # computed before the clock starts

    def swap() -> None:
        while not ended.wait(every_s):
            bench.engine.load_adapter(adapters[len(swapped) % 2]).result()
            swapped.append(time.perf_counter())

    thread = threading.Thread(target=swap)
    thread.start()
    took = bench.run(requests, beats)
    ended.set()
    thread.join()
    return took, swapped


def _p99(seconds: list[float]) -> float:
    """The 99th percentile."""
    return statistics.quantiles(seconds, n=100, method="inclusive")[98]


if __name__ == "__main__":
    run(bench_engine, RATIOS)
