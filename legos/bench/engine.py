"""``legos bench engine``: generation alone, on a random model of 5 million parameters."""

import statistics
import tempfile
import threading
import time
from collections.abc import Mapping
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

from legos.bench.engine_bench import EngineBench
from legos.bench.models import write_bench_model
from legos.bench.rounds import medians
from legos.clients.submit import submit_all
from legos.data.limits import EngineLimits
from legos.data.names import BASE, POLICY
from legos.data.request import Request

__all__ = ["bench_engine"]

ROWS, PROMPT, TOKENS = 32, 64, 64


def bench_engine(seconds: float) -> Mapping[str, Any]:
    """Measure.

    Args:
        seconds: time to measure, roughly.
    """
    with tempfile.TemporaryDirectory() as folder:
        model = write_bench_model("5m", Path(folder) / "model")
        plain = _against_bare(model, seconds * 0.35)
        with closing(EngineBench(model, EngineLimits(max_rows=ROWS))) as bench:
            return {
                **plain,
                "ratios": {
                    "engine_vs_bare": plain["bare_s"] / plain["engine_s"],
                    "group_prefill_share": _group_share(bench),
                    "multiturn_prefill_share": _multiturn_share(bench),
                    "adapters4_vs_1": _four_adapters(bench, seconds * 0.25),
                    **_swaps(bench, seconds * 0.25),
                },
            }


def _against_bare(model: Path, seconds: float) -> dict[str, float]:
    """64 prompts of 64 tokens, 64 completion tokens each, 32 at once, without a prefix cache."""
    with closing(EngineBench(model, EngineLimits(max_rows=ROWS, prefix_bytes=0))) as bench:
        prompts = bench.prompts(2 * ROWS, PROMPT)
        requests = [
            Request(prompt_ids=prompt, max_tokens=TOKENS, seed=number, adapter=BASE)
            for number, prompt in enumerate(prompts)
        ]
        ours_s, bare_s = medians(
            lambda: bench.run(requests), lambda: bench.bare(prompts, max_tokens=TOKENS), seconds
        )
    return {
        "engine_s": ours_s,
        "bare_s": bare_s,
        "tokens_per_s": len(prompts) * TOKENS / ours_s,
    }


def _group_share(bench: EngineBench) -> float:
    """Prompt tokens computed for 8 samples of one prompt of 512 tokens, as a share of 8 prompts."""
    (prompt,) = bench.prompts(1, 512, seed=1)
    before = bench.computed()
    bench.run(
        [Request(prompt_ids=prompt, max_tokens=8, seed=number, adapter=BASE) for number in range(8)]
    )
    return (bench.computed() - before) / (8 * len(prompt))


def _multiturn_share(bench: EngineBench) -> float:
    """Prompt tokens computed in a conversation of 10 turns, per new prompt token."""
    questions = bench.prompts(10, 48, seed=2)
    prompt: tuple[int, ...] = ()
    before = bench.computed()
    for turn, question in enumerate(questions):
        prompt += question
        request = Request(prompt_ids=prompt, max_tokens=32, seed=turn, adapter=BASE)
        (answer,) = submit_all(bench.engine, [request]).result()
        prompt += answer.token_ids
    return (bench.computed() - before) / sum(map(len, questions))


def _four_adapters(bench: EngineBench, seconds: float) -> float:
    """Decoding speed with four adapters in one batch, against one adapter for all rows."""
    names = [f"rival{number}" for number in range(4)]
    for name in names:
        bench.engine.load_adapter(bench.adapter(name)).result()
    prompts = bench.prompts(ROWS, 8, seed=3)

    def requests(adapters: list[str]) -> list[Request]:
        return [
            Request(
                prompt_ids=prompt,
                max_tokens=TOKENS,
                seed=number,
                adapter=adapters[number % len(adapters)],
            )
            for number, prompt in enumerate(prompts)
        ]

    one, four = requests(names[:1]), requests(names)
    four_s, one_s = medians(lambda: bench.run(four), lambda: bench.run(one), seconds)
    for name in names:
        bench.engine.drop_adapter(name).result()
    return one_s / four_s


def _swaps(bench: EngineBench, seconds: float) -> dict[str, float]:
    """Decoding speed with one swap per second, and pauses of a stream with ten per second."""
    bench.engine.load_adapter(bench.adapter(POLICY, version=1)).result()
    requests = [
        Request(prompt_ids=prompt, max_tokens=256, seed=number, stream=number == 0)
        for number, prompt in enumerate(bench.prompts(ROWS, 8, seed=4))
    ]
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

    swapped_s, plain_s = medians(seldom, lambda: bench.run(requests), seconds * 0.6)
    medians(often, often, seconds * 0.4)
    step = statistics.median(steps)
    return {
        "decode_with_swaps": plain_s / swapped_s,
        "swap_pause_in_steps": _p99(pauses) / step - 1.0,
        "pause_in_steps_without_swap": _p99(steps) / step - 1.0,
    }


def _with_swaps(
    bench: EngineBench, requests: list[Request], beats: list[float], *, every_s: float
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
