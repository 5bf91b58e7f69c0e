"""``legos bench server``: the HTTP server against a bare loop, and against mlx-lm's own server.

The servers run in separate processes and the clients in this one, on the same cores.
"""

import asyncio
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any

import httpx

from legos.bench.engine_bench import EngineBench
from legos.bench.models import write_bench_model
from legos.bench.peers import (
    Body,
    clients,
    drop_command,
    running,
    serve_command,
    stock_command,
)
from legos.bench.rounds import Workload, medians
from legos.data.limits import EngineLimits
from legos.data.names import BASE, POLICY
from legos.weights.adapter import pack_adapter

__all__ = ["bench_server"]

CLIENTS, ROWS, PROMPT = 64, 32, 64


def bench_server(work: Workload) -> Mapping[str, Any]:
    """Measure; starting the servers takes more than the time of the workload."""
    tokens, tokens_40m = work.size((64, 24), (16, 8))  # completion tokens of each request
    twelfth = work.part(1 / 12)
    with tempfile.TemporaryDirectory() as root:
        small = write_bench_model("5m", Path(root) / "small")
        large = write_bench_model("40m", Path(root) / "large")
        speeds = {
            "server_vs_bare": _against_bare(small, work.part(1 / 2), tokens),
            "server_vs_bare_40m": _against_bare(large, work.part(1 / 4), tokens_40m),
            "server_vs_mlx_lm": _against_stock(small, twelfth, tokens, seeded=True),
            "server_vs_mlx_lm_unseeded": _against_stock(small, twelfth, tokens, seeded=False),
            "server_vs_mlx_lm_unseeded_40m": _against_stock(
                large, twelfth, tokens_40m, seeded=False
            ),
        }
        swap = _swaps(large, work.part(1 / 4))
    return {
        "tokens_per_s": {
            name: {"legos": ours, "other": theirs} for name, (ours, theirs) in speeds.items()
        },
        **swap,
        "ratios": {
            **{name: ours / theirs for name, (ours, theirs) in speeds.items()},
            "swap_vs_loopback_copy": swap["swap_s"] / swap["loopback_copy_s"],
        },
    }


def _against_bare(folder: Path, work: Workload, tokens: int) -> tuple[float, float]:
    """Tokens per second over HTTP with 64 clients and log-probabilities, and of a bare loop."""
    seeds = count()
    with (
        closing(EngineBench(folder, EngineLimits(max_rows=ROWS))) as bench,
        running(serve_command(str(folder), rows=ROWS)) as url,
        clients(url) as load,
    ):
        prompts = bench.prompts(CLIENTS, PROMPT)
        pairs = work.in_turn(
            lambda: load([_by_ids(p, tokens, next(seeds)) for p in prompts]),
            lambda: CLIENTS * tokens / bench.bare(prompts, max_tokens=tokens),
        )
        return medians(pairs)


def _against_stock(
    folder: Path, work: Workload, tokens: int, *, seeded: bool
) -> tuple[float, float]:
    """Tokens per second of requests with different sampling, here and with mlx-lm's server.

    mlx-lm's server answers requests with seeds one after the other.
    """

    def bodies(number: int) -> list[Body]:
        return [
            {
                "prompt": f"{number:03d} {n:03d} " + "what is it? " * 5,
                "max_tokens": tokens,
                "temperature": 0.7 + 0.01 * n,
                "top_p": 0.99 - 0.002 * n,
                **({"seed": CLIENTS * number + n} if seeded else {}),
            }
            for n in range(CLIENTS)
        ]

    with (
        running(serve_command(str(folder), rows=ROWS)) as our_url,
        running(stock_command(str(folder), rows=ROWS)) as their_url,
        clients(our_url) as ours,
        clients(their_url) as theirs,
    ):
        rounds = count(), count()  # both servers get the same requests, each once
        pairs = work.in_turn(
            lambda: ours(bodies(next(rounds[0]))),
            lambda: theirs(bodies(next(rounds[1]))),
            least=1 if seeded else 2,
        )
        return medians(pairs)


def _swaps(folder: Path, work: Workload) -> dict[str, float]:
    """Time to load about 20 MB over HTTP, to discard them, and of ``/health`` meanwhile."""
    with closing(EngineBench(folder, EngineLimits(), rank=56)) as bench:
        data = pack_adapter(bench.adapter(POLICY))
    path = "/adapters/load?name=policy&version=2"
    octets = {"content-type": "application/octet-stream"}
    with (
        running(serve_command(str(folder), rows=ROWS)) as ours,
        running(drop_command(), health="/") as drop,
    ):

        def post(url: str) -> float:
            started = time.perf_counter()
            httpx.post(url, content=data, headers=octets, timeout=60).raise_for_status()
            return time.perf_counter() - started

        seconds = work.seconds / 4
        swap_s, copy_s = medians(
            work.part(1 / 2).in_turn(lambda: post(ours + path), lambda: post(drop))
        )
        waits = asyncio.run(_health_waits(ours, lambda: post(ours + path), seconds))
        alone = asyncio.run(_health_waits(ours, lambda: time.sleep(0.05), seconds))
    return {
        "adapter_mb": len(data) / 1e6,
        "swap_s": swap_s,
        "loopback_copy_s": copy_s,
        "health_p99_ms_during_swaps": 1e3 * statistics.quantiles(waits, n=100)[98],
        "health_p99_ms_alone": 1e3 * statistics.quantiles(alone, n=100)[98],
    }


async def _health_waits(url: str, work: Callable[[], object], seconds: float) -> list[float]:
    """Seconds of requests to ``/health``, one after the other, while ``work`` is repeated."""
    waits: list[float] = []
    ended = time.perf_counter() + max(seconds, 2.0)

    async def ask(client: httpx.AsyncClient) -> None:
        while time.perf_counter() < ended:
            started = time.perf_counter()
            await client.get("/health")
            waits.append(time.perf_counter() - started)
            await asyncio.sleep(0.002)

    async def repeat_work() -> None:
        while time.perf_counter() < ended:
            await asyncio.to_thread(work)

    async with httpx.AsyncClient(base_url=url, timeout=60) as client, asyncio.TaskGroup() as group:
        group.create_task(ask(client))
        group.create_task(repeat_work())
    return waits


def _by_ids(prompt: tuple[int, ...], tokens: int, seed: int) -> Body:
    return {
        "prompt": list(prompt),
        "max_tokens": tokens,
        "temperature": 1.0,
        "seed": seed,
        "logprobs": 0,
        "model": BASE,
        "return_token_ids": True,
        "ignore_eos": True,  # as the bare loop does
    }
