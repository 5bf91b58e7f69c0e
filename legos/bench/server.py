"""``legos bench server``: the HTTP server against a bare loop, and against mlx-lm's own server.

The servers run in processes of their own and the clients in this one, on the same cores; both
sides of every ratio are measured in turn.
"""

import asyncio
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from itertools import count
from pathlib import Path
from typing import Any

import httpx

from legos.bench.models import write_bench_model
from legos.bench.peers import (
    Body,
    Clients,
    drop_command,
    running,
    serve_command,
    stock_command,
)
from legos.bench.rounds import in_turn
from legos.data.limits import EngineLimits
from legos.data.names import BASE, POLICY
from legos.weights.adapter import pack_adapter
from legos.wiring.engine_bench import EngineBench

__all__ = ["bench_server"]

CLIENTS, ROWS, PROMPT = 64, 32, 64
TOKENS, TOKENS_40M = 64, 24  # new ones of each request; fewer where each takes longer


def bench_server(seconds: float) -> Mapping[str, Any]:
    """Measure.

    Args:
        seconds: how long it may take, about; starting four servers comes on top.
    """
    share = seconds / 4
    with tempfile.TemporaryDirectory() as root:
        small = write_bench_model("5m", Path(root) / "small")
        large = write_bench_model("40m", Path(root) / "large")
        speeds = _against_bare(small, 2 * share, TOKENS)
        speeds_40m = _against_bare(large, share, TOKENS_40M)
        seeded = _against_stock(small, share / 3, TOKENS, seeded=True)
        stock = _against_stock(small, share / 3, TOKENS, seeded=False)
        stock_40m = _against_stock(large, share / 3, TOKENS_40M, seeded=False)
        swap = _swaps(large, share)
    return {
        "tokens_per_s": speeds[0],
        "bare_tokens_per_s": speeds[1],
        "tokens_per_s_40m": speeds_40m[0],
        "bare_tokens_per_s_40m": speeds_40m[1],
        "tokens_per_s_seeded": seeded[0],
        "mlx_lm_tokens_per_s_seeded": seeded[1],
        "tokens_per_s_mixed": stock[0],
        "mlx_lm_tokens_per_s_mixed": stock[1],
        "tokens_per_s_mixed_40m": stock_40m[0],
        "mlx_lm_tokens_per_s_mixed_40m": stock_40m[1],
        **swap,
        "ratios": {
            "server_vs_bare": speeds[0] / speeds[1],
            "server_vs_bare_40m": speeds_40m[0] / speeds_40m[1],
            "server_vs_mlx_lm": seeded[0] / seeded[1],
            "server_vs_mlx_lm_unseeded": stock[0] / stock[1],
            "server_vs_mlx_lm_unseeded_40m": stock_40m[0] / stock_40m[1],
            "swap_vs_loopback_copy": swap["swap_s"] / swap["loopback_copy_s"],
        },
    }


def _against_bare(folder: Path, seconds: float, tokens: int) -> tuple[float, float]:
    """Tokens a second over HTTP with 64 clients, log-probabilities included, and of a bare loop."""
    bench = EngineBench(folder, EngineLimits(max_rows=ROWS))
    prompts = bench.prompts(CLIENTS, PROMPT)
    seeds = count()
    try:
        with running(serve_command(str(folder), rows=ROWS)) as url, Clients(url) as clients:
            return _medians(
                lambda: clients.load([_by_ids(p, tokens, next(seeds)) for p in prompts]),
                lambda: CLIENTS * tokens / bench.bare(prompts, max_tokens=tokens),
                seconds,
            )
    finally:
        bench.close()


def _against_stock(
    folder: Path, seconds: float, tokens: int, *, seeded: bool
) -> tuple[float, float]:
    """Tokens a second where every request samples in its own way, and of mlx-lm's own server.

    Where requests have seeds, that server answers one after the other.
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
        Clients(our_url) as ours,
        Clients(their_url) as theirs,
    ):
        rounds = count(), count()  # both servers are asked the same, never twice
        return _medians(
            lambda: ours.load(bodies(next(rounds[0]))),
            lambda: theirs.load(bodies(next(rounds[1]))),
            seconds,
            least=1 if seeded else 2,
        )


def _swaps(folder: Path, seconds: float) -> dict[str, float]:
    """A swap of about 20 MB over HTTP, against a handler that drops the bytes; and what waits."""
    bench = EngineBench(folder, EngineLimits())
    data = pack_adapter(bench.adapter(POLICY, rank=56))
    bench.close()
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

        swap_s, copy_s = _medians(lambda: post(ours + path), lambda: post(drop), seconds / 2)
        waits = asyncio.run(_health_waits(ours, lambda: post(ours + path), seconds / 4))
        alone = asyncio.run(_health_waits(ours, lambda: time.sleep(0.05), seconds / 4))
    return {
        "adapter_mb": len(data) / 1e6,
        "swap_s": swap_s,
        "loopback_copy_s": copy_s,
        "health_p99_ms_during_swaps": 1e3 * statistics.quantiles(waits, n=100)[98],
        "health_p99_ms_alone": 1e3 * statistics.quantiles(alone, n=100)[98],
    }


async def _health_waits(url: str, work: Callable[[], object], seconds: float) -> list[float]:
    """Seconds that small requests wait, one after the other, while work is done all the time."""
    waits: list[float] = []
    ended = time.perf_counter() + max(seconds, 2.0)

    async def ask(client: httpx.AsyncClient) -> None:
        while time.perf_counter() < ended:
            started = time.perf_counter()
            await client.get("/health")
            waits.append(time.perf_counter() - started)
            await asyncio.sleep(0.002)

    async def keep_at_work() -> None:
        while time.perf_counter() < ended:
            await asyncio.to_thread(work)

    async with httpx.AsyncClient(base_url=url, timeout=60) as client, asyncio.TaskGroup() as group:
        group.create_task(ask(client))
        group.create_task(keep_at_work())
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
        "ignore_eos": True,  # the bare loop goes on as well
    }


def _medians(
    ours: Callable[[], float], theirs: Callable[[], float], seconds: float, *, least: int = 2
) -> tuple[float, float]:
    """Medians of both figures, in turn for about so long."""
    pairs = in_turn(ours, theirs, seconds, least=least)
    return statistics.median(a for a, _ in pairs), statistics.median(b for _, b in pairs)
