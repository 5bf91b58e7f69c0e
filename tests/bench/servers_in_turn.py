"""Our server, mlx-lm's, and those of other programs: speed, first token and memory, in turn."""

import statistics
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from bench.clients import Ask, clients, speed
from bench.rounds import Workload
from bench.server_processes import Server
from bench.streams import CHAT, chat

__all__ = ["measure_servers", "ratios_to_best"]

STREAMS = (1, 8, 32)
PROMPT = 64  # characters, each of which is one token
MODEL_NAMES = {"legos": "base", "mlx-lm": "default_model"}  # elsewhere the model's folder
Figures = Mapping[str, float]


def measure_servers(
    folder: Path, servers: Mapping[str, Server], work: Workload, *, tokens: int
) -> Mapping[str, Figures]:
    """Medians of every server; they answer one after the other.

    Args:
        folder: the model.
        servers: ours first.
        work: the time.
        tokens: length of an answer.

    Returns:
        Server -> tokens per second at each number of streams, seconds to the first token of a
        single request, and memory of its processes after the load, in MB.
    """
    with ExitStack() as stack:
        asks = {n: stack.enter_context(clients(each.url, CHAT)) for n, each in servers.items()}
        rounds = work.rounds(
            [lambda n=n: _one_round(asks[n], MODEL_NAMES.get(n, str(folder)), tokens) for n in asks]
        )
    return {
        name: _figures(server, [each[index] for each in rounds])
        for index, (name, server) in enumerate(servers.items())
    }


def ratios_to_best(figures: Mapping[str, Figures]) -> dict[str, float]:
    """Each figure of ours as a ratio to the best of the other servers."""
    ours, *others = figures.values()

    def best(name: str) -> float:
        theirs = [other[name] for other in others]
        return max(theirs) if name.startswith("tokens_per_s") else min(theirs)

    return {name: value / best(name) for name, value in ours.items()}


def _one_round(ask: Ask, model: str, tokens: int) -> list[float]:
    """Tokens per second at each number of streams, then the time to the first token."""
    measured = [
        ask([chat(PROMPT, tokens, model=model) for _ in range(number)]) for number in STREAMS
    ]
    return [*map(speed, measured), measured[0][0].first_s]


def _figures(server: Server, rounds: Sequence[Sequence[float]]) -> Figures:
    *speeds, first = map(statistics.median, zip(*rounds, strict=True))
    return {
        **{f"tokens_per_s_{n}": value for n, value in zip(STREAMS, speeds, strict=True)},
        "first_token_s": first,
        "memory_mb": server.resident_bytes() / 1e6,
    }
