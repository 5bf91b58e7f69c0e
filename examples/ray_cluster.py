"""A Ray cluster with players, generation workers and scoring workers; it runs on one machine.

    uv run --extra ray python examples/ray_cluster.py

is, with an arena from this file, the command

    uv run --extra ray legos train --ray local --players 2 --engines 2 \
        --arena examples/ray_cluster.py:Letters

Two processes play, two generate, two score, and the trainer is the process that was started. With
``--ray HOST:PORT`` the same processes stand on the nodes of a cluster. Two CPU cores, about two
minutes for 60 steps. The reward is the share of the letter b in the answer.
"""

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from random import Random
from typing import TYPE_CHECKING

from legos import Arena, Table, Task
from legos.cli import main

if TYPE_CHECKING:
    from legos.remote.ray.scoring import ScoringWorkers


class ShareOfB:
    """A reward model; it may be as slow or as large as it likes, since each worker has its own."""

    def score(
        self, prompts: Sequence[str], completions: Sequence[str], answers: Sequence[object]
    ) -> list[float]:
        """[N] shares of the letter b in N completions."""
        return [text.count("b") / max(1, len(text)) for text in completions]


class Letters(Arena):
    """One answer of eight tokens, which workers elsewhere score."""

    tasks_per_step, group_size, max_tokens = 8, 8, 8

    @cached_property
    def workers(self) -> "ScoringWorkers":
        """Two processes in the cluster, which all players share."""
        from legos.remote.ray.scoring import (
            ScoringWorkers,  # needs Ray, whose absence `main` reports
        )

        return ScoringWorkers(ShareOfB(), name="share-of-b", workers=2)

    def tasks(self, rng: Random) -> Iterator[Task]:
        """Tasks that differ in nothing but their name."""
        while True:
            yield Task(id=f"{rng.getrandbits(40):x}")

    async def play(self, t: Table) -> Mapping[str, float]:
        """Ask for an answer, and have it scored."""
        reply = await t.ask("player", "Write b.")
        [reward] = await self.workers.score(["Write b."], [reply.text], [None])
        return {"player": reward}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--ray", default="local")
    given = parser.parse_args()
    numbers = ("--players", "2", "--engines", "2", "--steps", str(given.steps))
    sys.exit(main(["train", "--ray", given.ray, *numbers, "--arena", f"{__file__}:Letters"]))
