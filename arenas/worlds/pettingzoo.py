"""Classic games of PettingZoo: ``pettingzoo:tictactoe_v3``, ``pettingzoo:connect_four_v3``."""

from collections.abc import Mapping
from functools import lru_cache
from importlib import import_module
from typing import Any

from arenas.worlds import World
from legos import Arena, Table

__all__ = ["PettingZooGame", "world"]


@lru_cache(maxsize=64)
def world(name: str) -> type[Arena]:
    """The class of the arena of a game, by its module in ``pettingzoo.classic``."""
    module = import_module(f"pettingzoo.classic.{name}")
    roles = tuple(module.env().possible_agents)
    fields = {"source": name, "module": module, "roles": roles, "__doc__": f"{name} of PettingZoo."}
    return type("PettingZooGame", (PettingZooGame,), fields)


class PettingZooGame(World):
    """A classic game of PettingZoo; rewards are the game's, summed over the play.

    A role sees its observation as numbers, and answers with the number of a legal action.
    """

    scheme = "pettingzoo"
    module: Any = None
    remember = False

    async def play(self, t: Table) -> Mapping[str, float]:
        """Ask whose turn it is until every role has ended."""
        game = self.module.env()
        game.reset(seed=t.task.seed)
        rewards = dict.fromkeys(self.roles, 0.0)
        for role in game.agent_iter():
            seen, _, ended, truncated, _ = game.last()
            if ended or truncated:
                game.step(None)  # a role that has ended must say so
            else:
                legal = [str(number) for number, open_ in enumerate(seen["action_mask"]) if open_]
                shown = f"You are {role}. You see:\n{_text(seen['observation'])}\nActions: "
                reply = await t.ask(role, shown + " ".join(legal), choices=legal)
                game.step(int(reply.move or legal[0]))
            for other, reward in game.rewards.items():
                rewards[other] += float(reward)
        game.close()
        return rewards


def _text(observation: Any) -> str:
    """An array as rows of numbers, its last axes together."""
    rows = observation.reshape(len(observation), -1) if observation.ndim > 1 else [observation]
    return "\n".join(" ".join(f"{number:g}" for number in row) for row in rows)
