"""Environments of verifiers: ``verifiers:gsm8k-v1``, ``verifiers:best-of-n+my-taskset``."""

import os
import random
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from functools import lru_cache
from importlib import import_module
from itertools import islice
from statistics import fmean
from typing import Any

from arenas.worlds import World, take_arena_settings
from arenas.worlds.verifiers_chat import InProcess
from legos import Arena, Client, Seat, Table, Task

__all__ = ["VerifiersEnv", "world"]

vf: Any = import_module("verifiers.v1")
loaders: Any = import_module("verifiers.v1.utils.loaders")

EVALUATED = "eval_"  # start of an option of the tasks that are held out
ORDER = 0x5EED  # seed by which held-out tasks are chosen, the same in every run
PLAIN = "bash"  # the harness of verifiers for tasks that bring none


@lru_cache(maxsize=64)
def world(name: str) -> type[Arena]:
    """The class of the arena of TASKSET, or of ENVIRONMENT+TASKSET, by their ids in verifiers."""
    environment, _, taskset = name.rpartition("+")
    config = loaders.env_config_type(taskset, environment)
    fields = config.model_fields.items()
    roles = tuple(field for field, info in fields if isinstance(info.default, vf.AgentConfig))
    kind = type("InProcess", (InProcess, loaders.environment_class(taskset, environment)), {})
    fields = {
        "source": name,
        "ids": (environment, taskset),
        "kind": kind,
        "config": config,
        "roles": roles,
        "__doc__": f"{name} of verifiers.",
    }
    return type("VerifiersEnv", (VerifiersEnv,), fields)


class VerifiersEnv(World):
    """An environment of verifiers, whose agents are the roles.

    The environment plays: its agents ask the endpoints of their seats, and each of its reward
    functions is a part of the reward, with verifiers' weight. A role that has several rollouts in
    an episode gets their mean. Metrics are logged as ROLE_NAME.
    """

    scheme = "verifiers"
    ids = ("", "")  # of the environment and of the task set
    kind: Any = None
    config: Any = None

    def __init__(
        self,
        client: Client | None = None,
        *,
        harness: str = "",
        runtime: str = "subprocess",
        fixed: str = "",
        held_out: int = 64,
        **settings: Any,
    ) -> None:
        """Make the arena.

        Args:
            client: client of every seat.
            harness: id of the program that every agent runs; "": its own, or else a chat in this
                process, with the tools of the task set.
            runtime: where the program runs: subprocess, docker, prime and so on.
            fixed: roles that are not trained, with commas between them.
            held_out: number of tasks that are only evaluated, at most a quarter of them.
            settings: settings of ``Arena``, and fields of the task set's configuration; those that
                start with ``eval_`` select the tasks that are held out, such as ``eval_split``.
        """
        super().__init__(client, **take_arena_settings(settings))
        self.reward_weights: Mapping[str, float] = {}  # every part has verifiers' weight already
        self._fixed = tuple(role.strip() for role in fixed.split(",") if role.strip())
        if unknown := set(self._fixed) - set(self.roles):
            raise ValueError(f"fixed names {min(unknown)!r}; the roles are {', '.join(self.roles)}")
        self._agents = {role: self._agent(role, harness, runtime) for role in self.roles}
        other = {k.removeprefix(EVALUATED): v for k, v in settings.items() if _evaluated(k)}
        self._settings = {k: v for k, v in settings.items() if not _evaluated(k)}
        self._tasks: Any = self._environment({}).taskset
        tasks = self._environment({}, **other).taskset if other else self._tasks
        first: list[Any] = list(islice(tasks, None if tasks.bounded else 4 * held_out))
        most = min(held_out, len(first) if other else len(first) // 4)
        places = random.Random(ORDER).sample(range(len(first)), most)  # a set may be sorted
        self._held_out = [first[place] for place in places]
        self._skipped = frozenset(() if other else places)

    def tasks(self, rng: random.Random) -> Iterator[Task]:
        """The tasks that are not held out; a finite set is shuffled."""
        left: Iterable[Any] = (
            task for place, task in enumerate(self._tasks) if place not in self._skipped
        )
        if self._tasks.bounded:
            left = list(left)
            rng.shuffle(left)
        for task in left:
            yield Task(id=task.key, data=task)

    def held_out(self, rng: random.Random) -> Iterable[Task]:
        """The same tasks in every evaluation, in random order."""
        return [Task(id=f"held out/{task.key}", data=task) for task in self._held_out]

    def seats(self, task: Task) -> Mapping[str, Seat]:
        """The seats; those of fixed roles are not trained."""
        seats = super().seats(task)
        fixed = {role: replace(seats[role], trainable=False) for role in self._fixed}
        return {**seats, **fixed}

    async def play(self, t: Table) -> Mapping[str, Mapping[str, float]]:
        """Let the environment run an episode at the endpoints of the seats."""
        async with AsyncExitStack() as stack:
            clients = {r: await stack.enter_async_context(_client(t, r)) for r in self.roles}
            env = self._environment(clients)
            async with env.serving():
                context = vf.ModelContext(model="policy", client=vf.EvalClientConfig())
                episode = await env.run_episode(t.task.data, context)
        traces = [trace for trace in episode.traces if not trace.ok]
        errors = [*episode.errors, *(error for trace in traces for error in trace.errors[-1:])]
        if not episode.ok:
            raise RuntimeError("; ".join(f"{error.type}: {error.message}" for error in errors))
        return {role: self._rewards(t, role, episode) for role in self.roles}

    def _rewards(self, t: Table, role: str, episode: Any) -> dict[str, float]:
        """The means of a role's weighted rewards, and log those of its metrics, over its traces."""
        traces = episode.by_agent.get(role, [])
        if t.seats[role].trainable and not all(trace.agent.trainable for trace in traces):
            raise RuntimeError(
                f"{self.name} says that the role {role!r} is not trained; give "
                f"--play.options.fixed {role}"
            )
        parts: dict[str, float] = {}
        metrics: dict[str, list[float]] = {}
        for trace in traces:
            for name, reward in trace.rewards.items():
                value = reward.value if reward else 0.0
                parts[name] = parts.get(name, 0.0) + value / len(traces)
            for name, value in trace.metrics.items():
                if value is not None:
                    metrics.setdefault(f"{role}_{name}", []).append(value)
        t.metric(**{name: fmean(values) for name, values in metrics.items()})
        self.reward_weights = {**self.reward_weights, **dict.fromkeys(parts, 1.0)}
        return parts

    def _agent(self, role: str, harness: str, runtime: str) -> dict[str, Any]:
        """The configuration of an agent, without its client."""
        own = self.config.model_fields[role].default.harness
        chosen = harness or (own.id if own else loaders.default_harness_id(self.ids[1]))
        if not harness and not own and chosen == PLAIN:
            chosen = "null"
        return {"harness": {"id": chosen}, "runtime": {"type": runtime}}

    def _environment(self, clients: Mapping[str, Any], **changed: Any) -> Any:
        """The environment, with a client for each agent."""
        environment, taskset = self.ids
        agents = {
            role: {**agent, **({"client": clients[role]} if role in clients else {})}
            for role, agent in self._agents.items()
        }
        tasks = {**self._settings, **changed, "id": taskset}
        return self.kind(
            self.config.model_validate({"id": environment, "taskset": tasks, **agents})
        )


@asynccontextmanager
async def _client(t: Table, role: str) -> AsyncGenerator[dict[str, str]]:
    """Within the block, a client of verifiers asks the endpoint of a seat.

    Verifiers reads the key from an environment variable; its programs inherit none whose name
    contains API_KEY.
    """
    async with t.endpoint(role, required=False) as endpoint:
        variable = f"LEGOS_SEAT_{id(endpoint):x}_API_KEY"
        os.environ[variable] = endpoint.api_key
        try:
            yield {"type": "eval", "base_url": endpoint.base_url, "api_key_var": variable}
        finally:
            del os.environ[variable]


def _evaluated(option: str) -> bool:
    return option.startswith(EVALUATED)
