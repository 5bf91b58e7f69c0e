"""A Ray cluster with players, servers and scoring workers; it runs on one machine.

    uv run --extra ray python examples/ray_cluster.py

is, with an arena from this file, the command

    uv run --extra ray legos train --ray local --players 2 --engines 2 \
        --arena examples/ray_cluster.py:Letters

Two processes play, two generate, one scores, and the trainer is the process that was started. With
``--ray HOST:PORT`` the same processes stand on the nodes of a cluster. Two CPU cores, about two
minutes for 60 steps. The reward is the share of the letter b in the answer: in ten steps it rises
from 0.17 to 0.5, where every answer is "b." and nothing more is learned.
"""

import argparse
import runpy
import sys
from collections.abc import Iterator, Mapping
from functools import cached_property
from random import Random
from typing import Any

from legos import Arena, Table, Task


class ShareOfB:
    """A reward model; it may be as slow or as large as it likes, in a process of its own."""

    def score(self, text: str) -> float:
        """The share of the letter b in a text."""
        return text.count("b") / max(1, len(text))


class Letters(Arena):
    """One answer of eight tokens, which another process scores."""

    tasks_per_step, group_size, max_tokens = 8, 8, 8

    @cached_property
    def judge(self) -> Any:
        """A process in the cluster, which all players share; Ray starts it again if it dies."""
        import ray

        options = {"get_if_exists": True, "max_restarts": -1, "max_task_retries": 3, "num_cpus": 0}
        return ray.remote(ShareOfB).options(name="share-of-b", **options).remote()

    def tasks(self, rng: Random) -> Iterator[Task]:
        """Tasks that differ in nothing but their name."""
        while True:
            yield Task(id=f"{rng.getrandbits(40):x}")

    async def play(self, t: Table) -> Mapping[str, float]:
        """Ask for an answer, and have it scored."""
        reply = await t.ask("player", "Write b.")
        return {"player": await self.judge.score.remote(reply.text)}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--ray", default="local")
    given = parser.parse_args()
    numbers = ("--players", "2", "--engines", "2", "--steps", str(given.steps))
    sys.argv = ["legos", "train", "--ray", given.ray, *numbers, "--arena", f"{__file__}:Letters"]
    runpy.run_module("legos", run_name="__main__")
