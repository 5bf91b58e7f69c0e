"""Bots as clients: one moves at random, one plays a small game optimally."""

import random

from legos.arena.game import split_position
from legos.errors import ArenaError
from legos.games.exact import Policy
from legos.records.message import Completion, Prompt, Sampling, messages_or_ids
from legos.records.names import POLICY


class RandomBot:
    """Takes every choice equally often; the seed of the request decides."""

    async def complete(
        self, prompt: Prompt, sampling: Sampling, *, adapter: str = POLICY
    ) -> Completion:
        """Choose a move.

        Raises:
            ArenaError: the question has no choices.
        """
        if not sampling.choices:
            raise ArenaError(
                "a random bot was asked a question without choices; seat a model, me or a URL there"
            )
        move = random.Random(sampling.seed).choice(sampling.choices)
        return Completion(text=move, adapter=adapter)


class OptimalBot:
    """Plays a role of a game by a policy."""

    def __init__(self, role: str, policy: Policy) -> None:
        """Take the role and the policy, such as ``optimal_policy`` of the game."""
        self._role = role
        self._policy = policy

    async def complete(
        self, prompt: Prompt, sampling: Sampling, *, adapter: str = POLICY
    ) -> Completion:
        """Choose a move; raises as ``optimal_move``."""
        asked, _ = messages_or_ids(prompt)
        move = optimal_move(self._policy, self._role, asked[-1].content, seed=sampling.seed)
        return Completion(text=move, adapter=adapter)


def optimal_move(policy: Policy, role: str, prompt: str, *, seed: int) -> str:
    """A move of a policy for the position of a prompt, drawn with a seed.

    Raises:
        ArenaError: the prompt does not show a view of the role as ``Game.prompt`` does.
    """
    found = split_position(prompt)
    view = found[0] if found else prompt
    moves = policy.get((role, view))
    if moves is None:
        raise ArenaError(f"no optimal move for {role!r} at {view!r}; is prompt() changed?")
    return random.Random(seed).choices(list(moves), list(moves.values()))[0]
