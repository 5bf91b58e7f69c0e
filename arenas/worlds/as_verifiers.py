"""An arena as an environment of verifiers, so that ``vf-eval`` and prime-rl can play it.

A module of three lines is the environment; its name is what verifiers calls it::

    from arenas.worlds.as_verifiers import load_environment

    Tasks, Env, Harness = load_environment("nim")
    __all__ = ["Env", "Harness", "Tasks"]

Each role is an agent: ``--env.second.model NAME`` gives it a model of its own.
"""

import asyncio
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from importlib import import_module
from itertools import count
from typing import Any, cast

from pydantic import create_model

from arenas.worlds.verifiers_chat import Chat
from legos import (
    Arena,
    Client,
    Completion,
    Forfeit,
    Message,
    RunError,
    Task,
    make_arena,
    play_task,
)

__all__ = ["load_environment"]

vf: Any = import_module("verifiers.v1")


def load_environment(
    arena: str | Arena, *, clients: Mapping[str, Client] | None = None
) -> tuple[type, type, type]:
    """The task set, the environment and the harness of an arena.

    Args:
        arena: an arena, or the name of one, as ``--arena`` takes it.
        clients: role -> the client that plays it; the other roles are agents of the environment.

    Raises:
        ArenaError: the arena is not found.
    """
    played = make_arena(arena, None) if isinstance(arena, str) else arena
    others = dict(clients or {})
    agent = vf.AgentConfig(runtime=vf.SubprocessConfig())
    left = {role: (vf.AgentConfig, agent) for role in played.roles if role not in others}
    config: Any = create_model("ArenaConfig", __base__=vf.EnvConfig, **cast("Any", left))

    class Tasks(ArenaTasks):
        """The tasks of the arena."""

        arena = played

    class Env(ArenaEnv, vf.Env[config]):
        """The arena."""

        arena = played
        clients = others
        roles = tuple(left)

    class Harness(Asked):
        """Sends what the arena asks."""

    for made in (Tasks, Env, Harness):
        made.__module__ = __name__
    return Tasks, Env, Harness


class TasksConfig(vf.TasksetConfig):
    """Settings of the tasks: ``--env.taskset.held-out``."""

    seed: int = 0
    """Seed of the tasks and of their plays."""
    held_out: bool = False
    """Play the tasks that are only evaluated; an arena without any has its usual ones."""


class Start(vf.TaskData):
    """What starts a play: the task of the arena is the one at ``idx``."""

    play_seed: int


class ArenaTask(vf.Task[Start]):
    """A task of the arena; it has no prompt, because the arena asks."""


class ArenaTasks(vf.Taskset[ArenaTask, TasksConfig]):
    """The tasks of an arena, without end."""

    INFINITE = True
    arena: Arena

    def __init__(self, config: Any) -> None:
        """Take the settings."""
        parent: Any = super()
        parent.__init__(config)
        self._stream = self._tasks()
        self._drawn: list[Task] = []

    def load(self) -> Iterator[Any]:
        """The tasks, in the order of the arena."""
        for number in count():
            drawn = self.drawn(number)
            draws = random.Random(f"{self.config.seed}/{number}")
            yield ArenaTask(Start(id=drawn.id, play_seed=draws.getrandbits(63)), self.config.task)

    def drawn(self, number: int) -> Task:
        """The task of the arena with this number."""
        while len(self._drawn) <= number:
            self._drawn.append(next(self._stream))
        return self._drawn[number]

    def _tasks(self) -> Iterator[Task]:
        """The tasks as the arena has them; a finite list starts again."""
        draws, task = random.Random(self.config.seed), None
        while True:
            tasks = self.arena.held_out(draws) if self.config.held_out else None
            for task in self.arena.tasks(draws) if tasks is None else tasks:
                yield task
            if task is None:
                raise RunError(f"{type(self.arena).__name__} has no tasks to play here")


class ArenaEnv:
    """Plays a task of an arena; its agents answer for their roles."""

    arena: Arena
    clients: Mapping[str, Client]
    roles: Sequence[str]
    taskset: Any

    async def run(self, task: Any, agents: Any) -> None:
        """Play, and give each agent its reward, in the arena's named parts if it has some."""
        async with AsyncExitStack() as stack:
            seats = {
                role: AgentSeat(
                    role, await stack.enter_async_context(getattr(agents, role).interaction(task))
                )
                for role in self.roles
            }
            episode = await play_task(
                self.arena,
                self.taskset.drawn(task.data.idx),
                {**self.clients, **seats},
                seed=task.data.play_seed,
            )
        if episode.error is not None:
            raise RuntimeError(episode.error)
        for role, seat in seats.items():
            trace = seat.interaction.trace
            for name, value in episode.metrics.items():
                trace.record_metric(name, value)
            trace.record_metric("void", float(episode.void))
            own = episode.parts.get(role)  # may be empty
            weights = self.arena.reward_weights if own else {"reward": 1.0}
            parts = own or {"reward": episode.rewards.get(role, 0.0)}
            for name, value in parts.items():
                trace.record_reward(name, value, weights[name])


class AgentSeat:
    """An agent of verifiers as the client of a seat."""

    def __init__(self, role: str, interaction: Any) -> None:
        """Take the agent's conversation, which is open."""
        self.role = role
        self.interaction = interaction
        self._turns = asyncio.Lock()  # child plays may ask at the same time

    async def complete(self, prompt: Any, sampling: Any, *, adapter: str = "") -> Completion:
        """Ask the agent all messages of the prompt.

        Raises:
            Forfeit: verifiers has ended the agent's part, for instance at its limit of turns.
        """
        messages: Sequence[Message] = prompt
        sent = [{"role": message.role, "content": message.content} for message in messages]
        async with self._turns:
            segment = await self.interaction.turn(sent)
        if segment.terminated:
            trace = self.interaction.trace
            reason = trace.last_error.message if trace.last_error else trace.stop_condition
            raise Forfeit(self.role, f"verifiers has ended its part: {reason}")
        return Completion(text=segment.last_reply)


class Asked(Chat):
    """Sends the messages of each question as they are, since the arena says what a seat sees."""

    async def resume(self, *session: Any) -> Any:
        """Ask the model these messages alone; the arguments are those of ``Harness.resume``."""
        *reach, data, messages, _ = session
        return await self.launch(*reach, data.model_copy(update={"prompt": messages}))
