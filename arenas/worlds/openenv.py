"""Environments that an OpenEnv server offers: ``openenv:http://localhost:8000``."""

import json
import random
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from importlib import import_module
from typing import Any, cast

import httpx

from arenas.worlds import HELD_OUT, World, take_arena_settings
from legos import Arena, Client, Forfeit, Table, Task, Void

__all__ = ["OpenEnv", "world"]

openenv: Any = import_module("openenv")

ABOUT_PLAY = {"done", "reward", "metadata", "messages", "legal_actions", "seat", "rewards"}
READ = {"integer": int, "number": float}  # how a field of an action is read; others are text


@lru_cache(maxsize=64)
def world(name: str) -> type[Arena]:
    """The class of the arena of a server, by its address.

    Raises:
        httpx.HTTPError: no OpenEnv server answers there.
    """
    url = name.rstrip("/")
    answer = httpx.get(f"{url}/schema", timeout=30, trust_env=False).raise_for_status()
    action = answer.json()["action"]
    fields = {"source": url, "action": action, "__doc__": f"The OpenEnv environment at {url}."}
    return type("OpenEnv", (OpenEnv,), fields)


class OpenEnv(World):
    """An environment of an OpenEnv server; the reward is the sum of the rewards of all steps.

    An observation's messages, or else its fields, are shown, and the answer without thinking is the
    action: the only field of the action that is required, or a JSON object. ``legal_actions`` of an
    observation are the choices. A server with several seats (``arenas.worlds.as_openenv``) says
    whose turn it is, and what each seat earned.
    """

    scheme = "openenv"
    action: Mapping[str, Any] = {}

    def __init__(
        self,
        client: Client | None = None,
        *,
        roles: str = "player",
        steps: int = 200,
        timeout_s: float = 60.0,
        **settings: Any,
    ) -> None:
        """Make the arena.

        Args:
            client: client of every seat.
            roles: the seats that the environment names, with commas between them.
            steps: number of steps after which a play is void.
            timeout_s: seconds that a step may take.
            settings: settings of ``Arena``, and arguments of the environment's ``reset``.
        """
        super().__init__(client, **take_arena_settings(settings))
        self.roles = tuple(role.strip() for role in roles.split(","))
        self._steps = steps
        self._timeout_s = timeout_s
        self._reset = settings
        properties: Mapping[str, Any] = self.action.get("properties", {})
        required = self.action.get("required") or [f for f in properties if f != "metadata"]
        self._field: str | None = required[0] if len(required) == 1 else None
        self._read: Callable[[str], Any] = READ.get(
            properties.get(self._field or "", {}).get("type", ""), str
        )

    def held_out(self, rng: random.Random) -> Sequence[Task]:
        """Plays with the seeds that ``tasks`` leaves out."""
        return [Task(id=f"held out/{seed}", seed=seed) for seed in range(HELD_OUT)]

    async def play(self, t: Table) -> Mapping[str, float]:
        """Answer observations until the environment is done."""
        total = 0.0
        server = openenv.GenericEnvClient(base_url=self.source, message_timeout_s=self._timeout_s)
        async with server:
            result = await server.reset(**{"seed": t.task.seed, **self._reset})
            for _ in range(self._steps):
                if result.done:
                    break
                role, action = await self._ask(t, result.observation)
                try:
                    result = await server.step(action)
                except RuntimeError as error:
                    if "VALIDATION_ERROR" in str(error):
                        raise Forfeit(role, f"the environment refused {action}") from error
                    raise
                total += result.reward or 0.0
        if result.done:
            return self._rewards(result.observation, total)
        raise Void(f"not done after {self._steps} steps")

    async def _ask(self, t: Table, observation: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        """The role whose turn it is, and its action.

        Raises:
            RuntimeError: the environment asks a role that the arena does not have.
        """
        role = observation.get("seat") or self.roles[0]
        if role not in self.roles:
            raise RuntimeError(
                f"the environment asks seat {role!r}; the arena has {', '.join(self.roles)}: name "
                "all seats of the environment in --play.options.roles"
            )
        actions = (str(action).strip() for action in observation.get("legal_actions") or ())
        legal = [action for action in dict.fromkeys(actions) if action]
        shown = _text(observation)
        if self._field is None:
            schema = json.dumps(self.action, ensure_ascii=False)
            shown += f"\nAnswer with a JSON object of this schema: {schema}"
        if legal:
            reply = await t.ask(role, shown, choices=legal)
            return role, self.parsed(reply.move or "")
        return role, (await t.ask(role, shown, parse=self.parsed)).parsed

    def parsed(self, answer: str) -> dict[str, Any]:
        """The action of an answer.

        Raises:
            ValueError: the answer is not an action.
        """
        text = answer.strip().removeprefix("```json").removeprefix("```").removesuffix("```")
        try:
            value = json.loads(text)
        except ValueError:
            value = None
        if isinstance(value, dict):
            return cast("dict[str, Any]", value)
        if self._field is None:
            raise ValueError("Answer with a JSON object.")
        return {self._field: self._read(answer.strip())}

    def _rewards(self, observation: Mapping[str, Any], total: float) -> Mapping[str, float]:
        """Role -> reward.

        Raises:
            Void: a server of ours says that the play has no result.
            RuntimeError: the environment reports an error, or not one reward for each role.
            ValueError: a reward is no number.
        """
        metadata = observation.get("metadata") or {}
        if "error" in metadata:
            raise RuntimeError(f"the environment reports: {metadata['error']}")
        if metadata.get("void"):
            raise Void(f"the environment reports no result: {metadata.get('notes')}")
        if len(self.roles) == 1:
            return {self.roles[0]: total}
        rewards = observation.get("rewards") or {}
        if set(rewards) != set(self.roles):
            expected = f"a reward for each of --play.options.roles: {', '.join(self.roles)}"
            raise RuntimeError(f"the environment rewards {rewards}; expected {expected}")
        return {role: float(rewards[role]) for role in self.roles}


def _text(observation: Mapping[str, Any]) -> str:
    """An observation as text: its messages, or its fields and legal actions."""
    if messages := observation.get("messages"):
        return "\n\n".join(message["content"] for message in messages)
    fields = {
        field: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        for field, value in observation.items()
        if field not in ABOUT_PLAY and value not in (None, "", [], {})
    }
    lines = [*fields.values()] if len(fields) == 1 else [f"{f}: {v}" for f, v in fields.items()]
    if legal := observation.get("legal_actions"):
        lines.append("Legal actions: " + " ".join(map(str, legal)))
    return "\n".join(lines)
