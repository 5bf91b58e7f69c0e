"""The HTTP server against its engine, and against other servers.

The servers run in separate processes and the clients in this one, on the same cores.

    uv run python tests/bench/server.py --json
"""

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parents[1])  # the folder of the package bench

import asyncio
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from itertools import count
from typing import Any

import httpx
from bench.clients import Body, clients, speed
from bench.command import Compared, Ratio, run
from bench.numbered import numbered_requests
from bench.rounds import Workload
from bench.server_processes import ROWS, Server, drop_command, running, servers_of
from bench.servers_in_turn import measure_servers, ratios_to_best
from bench.streams import CHAT, Streams, growth

from legos.bench.engine_bench import EngineBench
from legos.bench.models import write_bench_model
from legos.bench.turns import medians
from legos.machine import quiet_collector
from legos.records.limits import EngineLimits
from legos.records.names import BASE, POLICY
from legos.weights.adapter import pack_adapter
from legos.wiring.device import Row

__all__ = ["RATIOS", "bench_server"]

_FASTEST = "40 M parameters, against the fastest other server"
_STOCK = "speed of the HTTP server against mlx-lm's, 64 clients"
RATIOS: Mapping[str, Ratio] = {
    "server_vs_engine": Ratio(
        "speed over HTTP against the engine alone, 64 clients, 5 M parameters", 0.95
    ),
    "server_vs_engine_40m": Ratio("the same with 40 M parameters", 0.95),
    "server_vs_mlx_lm": Ratio(f"{_STOCK}, requests with seeds", 2),
    "server_vs_mlx_lm_unseeded": Ratio(f"{_STOCK}, different temperatures, no seeds", 1),
    "concurrency_monotone": Ratio(
        "total speed at 1, 2, 4, 8, 16 and 32 streams, the smallest ratio of neighbours", 0.97
    ),
    "fairness_spread": Ratio(
        "time of the last of 32 equal streams against the first, less 1", 0.1, at_most=True
    ),
    "mixed_prompts_vs_sequential": Ratio(
        "time of a long, a middle and a short prompt at once, against one by one",
        1.1,
        at_most=True,
    ),
    "first_token_vs_allowed": Ratio(
        "time to the first token while another stream is decoded, against 1.5 times the time "
        "alone plus one decode step of that stream",
        1,
        at_most=True,
    ),
    "streams_1_vs_best": Ratio(f"speed with 1 stream, {_FASTEST}", 1),
    "streams_8_vs_best": Ratio(f"speed with 8 streams, {_FASTEST}", 1),
    "streams_32_vs_best": Ratio(f"speed with 32 streams, {_FASTEST}", 1),
    "first_token_vs_best": Ratio(
        "time to the first token, against the fastest other server", 1, at_most=True
    ),
    "memory_vs_best": Ratio(
        "memory of the process after the same requests, against the smallest other server",
        1,
        at_most=True,
    ),
    "swap_vs_loopback_copy": Ratio(
        "time to load an adapter of about 20 MB over HTTP, against only sending its bytes",
        3,
        at_most=True,
    ),
}
"""Name of each ratio -> its meaning and target."""

CLIENTS, PROMPT = 64, 64


def bench_server(work: Compared) -> Mapping[str, Any]:
    """Measure; starting the servers takes more than the time of the workload."""
    quiet_collector()  # as the server does
    with tempfile.TemporaryDirectory() as root:
        small = write_bench_model("5m", Path(root) / "small")
        large = write_bench_model("40m", Path(root) / "large")
        with servers_of(small) as servers:
            speeds, streams = _small(small, servers, work.part(2 / 3))
        with servers_of(large, work.peers) as servers:
            tokens = work.size(24, 8)
            ours = servers["legos"]
            # First, so that every server has kept prefixes of the same requests alone.
            figures = measure_servers(large, servers, work.part(1 / 8), tokens=tokens)
            speeds["server_vs_engine_40m"] = _against_engine(large, ours, work.part(1 / 8), tokens)
            swap = _swaps(large, ours, work.part(1 / 12))
    best = ratios_to_best(figures)
    return {
        "tokens_per_s": {name: {"legos": us, "other": them} for name, (us, them) in speeds.items()},
        **streams["figures"],
        "servers": figures,
        **swap,
        "ratios": {
            **{name: us / them for name, (us, them) in speeds.items()},
            **streams["ratios"],
            "streams_1_vs_best": best["tokens_per_s_1"],
            "streams_8_vs_best": best["tokens_per_s_8"],
            "streams_32_vs_best": best["tokens_per_s_32"],
            "first_token_vs_best": best["first_token_s"],
            "memory_vs_best": best["memory_mb"],
            "swap_vs_loopback_copy": swap["swap_s"] / swap["loopback_copy_s"],
        },
    }


Speeds = dict[str, tuple[float, float]]
"""Name of a ratio -> our tokens per second, and those of what we are compared with."""


def _small(
    folder: Path, servers: Mapping[str, Server], work: Workload
) -> tuple[Speeds, Mapping[str, Mapping[str, Any]]]:
    """Speeds, and the figures of several streams, with the model of 5 M parameters."""
    tokens, quarter = work.size(64, 16), work.part(1 / 4)
    speeds = {
        "server_vs_engine": _against_engine(folder, servers["legos"], quarter, tokens),
        "server_vs_mlx_lm": _against_stock(servers, quarter, tokens // 4, seeded=True),
        "server_vs_mlx_lm_unseeded": _against_stock(servers, quarter, tokens, seeded=False),
    }
    return speeds, _streams(servers["legos"], quarter, tokens)


def _against_engine(
    folder: Path, server: Server, work: Workload, tokens: int
) -> tuple[float, float]:
    """Tokens per second of 64 requests over HTTP, and of the same requests without a server."""
    seeds = count()
    with (
        closing(EngineBench(folder, EngineLimits(max_rows=ROWS))) as bench,
        clients(server.url) as ask,
    ):

        def prompts() -> list[Row]:
            return bench.prompts(CLIENTS, PROMPT, seed=next(seeds))  # in no prefix cache

        def engine() -> float:
            requests = numbered_requests(prompts(), tokens, BASE, stream=False)
            return CLIENTS * tokens / bench.run(requests)

        pairs = work.in_turn(
            lambda: speed(ask([_by_ids(p, tokens, n) for n, p in enumerate(prompts())])), engine
        )
        return medians(pairs)


def _streams(server: Server, work: Workload, tokens: int) -> Mapping[str, Mapping[str, Any]]:
    """Figures and ratios of several streams at our server."""
    with clients(server.url, CHAT) as ask:
        streams = Streams(ask, work.part(1 / 3), tokens)
        speeds, spread = streams.scaling()
        mixed = streams.mixed()
        alone_s, busy_s, step_s = streams.first_token()
    return {
        "figures": {
            "tokens_per_s_of_streams": speeds,
            "first_token_s": {"alone": alone_s, "with_another": busy_s, "step": step_s},
        },
        "ratios": {
            "concurrency_monotone": growth(list(speeds.values())),
            "fairness_spread": spread,
            "mixed_prompts_vs_sequential": mixed,
            "first_token_vs_allowed": busy_s / (1.5 * alone_s + step_s),
        },
    }


def _against_stock(
    servers: Mapping[str, Server], work: Workload, tokens: int, *, seeded: bool
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

    first = 500 * seeded  # both servers get the same requests, each once
    rounds = count(first), count(first)
    with clients(servers["legos"].url) as ours, clients(servers["mlx-lm"].url) as theirs:
        pairs = work.in_turn(
            lambda: speed(ours(bodies(next(rounds[0])))),
            lambda: speed(theirs(bodies(next(rounds[1])))),
            least=1 if seeded else 2,
        )
        return medians(pairs)


def _swaps(folder: Path, server: Server, work: Workload) -> dict[str, float]:
    """Time to load about 20 MB over HTTP, to discard them, and of ``/health`` meanwhile."""
    with closing(EngineBench(folder, EngineLimits(), rank=56)) as bench:
        data = pack_adapter(bench.adapter(POLICY))
    load = f"{server.url}/adapters/load?name=policy&version=2"
    octets = {"content-type": "application/octet-stream"}

    def post(url: str) -> float:
        started = time.perf_counter()
        httpx.post(
            url, content=data, headers=octets, timeout=60, trust_env=False
        ).raise_for_status()
        return time.perf_counter() - started

    seconds = work.seconds / 4
    with running(drop_command(), health="/") as drop:
        swap_s, copy_s = medians(
            work.part(1 / 2).in_turn(lambda: post(load), lambda: post(drop.url))
        )
    waits = asyncio.run(_health_waits(server.url, lambda: post(load), seconds))
    alone = asyncio.run(_health_waits(server.url, lambda: time.sleep(0.05), seconds))
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

    async with (
        httpx.AsyncClient(base_url=url, timeout=60, trust_env=False) as client,
        asyncio.TaskGroup() as group,
    ):
        group.create_task(ask(client))
        group.create_task(repeat_work())
    return waits


def _by_ids(prompt: Row, tokens: int, seed: int) -> Body:
    return {
        "prompt": list(prompt),
        "max_tokens": tokens,
        "temperature": 1.0,
        "seed": seed,
        "model": BASE,
        "return_token_ids": True,  # with their log-probabilities, as training needs
        "ignore_eos": True,  # as the engine's requests, which have no end tokens
    }


if __name__ == "__main__":
    run(bench_server, RATIOS)
