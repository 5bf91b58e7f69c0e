"""Play one task of an arena with scripted answers."""

import asyncio
from collections.abc import Callable

from legos import Arena, Episode, Task
from legos.fakes import Asked, ScriptedClient
from legos.play.step import play_all

__all__ = ["played"]


def played(
    arena: Arena, task: Task, answer: Callable[[Asked], str], *, seed: int = 1
) -> tuple[Episode, list[str]]:
    """Play a task; returns the episode and all prompts, in the order in which they were asked."""
    client = ScriptedClient(answer)
    arena.client = client
    [episode] = asyncio.run(play_all(arena, [(task, seed)], asyncio.Semaphore(8)))
    assert episode.error is None, episode.error
    return episode, [asked.prompt for asked in client.asked]
