"""Exact evaluations: the policy that is scored is the one that plays."""

import asyncio
import math
from typing import Any

import pytest

from legos import GameArena, Trainer, TrainingConfig, load_model
from legos.arena.game import Game
from legos.games.exact import GameTree
from legos.games.scored import scored_policy
from legos.records.message import Message, Sampling

MOVES = ("1", "10", "100", "23", "hit", "hold")


class Names(Game):
    """One move, whose names begin alike or are parts of each other."""

    roles = ("one",)

    def starts(self) -> Any:
        return [(0, 1.0)]

    def turn(self, state: int) -> str | None:
        return None if state else "one"

    def view(self, state: int, role: str) -> str:
        return "Go."

    def legal(self, state: int, role: str) -> Any:
        return MOVES

    def play(self, state: int, move: str) -> int:
        return 1

    def payoff(self, state: int) -> Any:
        return {"one": 1.0}


@pytest.mark.slow
def test_the_policy_of_an_arena_that_samples_legal_moves_alone_is_that_of_its_plays() -> None:
    """Each token of a move is drawn among those that may follow, and not the move as a whole."""
    trainer = Trainer(model=load_model(), config=TrainingConfig())
    client = trainer.client()
    arena, free = (GameArena(Names(), client) for _ in range(2))
    arena.restrict_choices = True
    tree = GameTree(arena.game)
    [point] = tree.graph.points
    question = [Message("user", point.prompt)]

    async def found() -> Any:
        await trainer.publish_weights()
        scored = [
            await scored_policy(tree, each, client, {"one": "policy"}) for each in (arena, free)
        ]
        draws = (
            Sampling(choices=MOVES, restrict=True, max_tokens=None, seed=n) for n in range(200)
        )
        said = await asyncio.gather(*(client.complete(question, each) for each in draws))
        return scored, {one.text: math.exp(sum(one.logprobs)) for one in said}

    ((policy, illegal), (unrestricted, outside)), played = asyncio.run(found())
    trainer.close()
    [shares] = policy.values()
    assert len(played) >= 4
    assert {move: shares[move] for move in played} == pytest.approx(played, abs=1e-5)
    assert sum(shares.values()) == pytest.approx(1.0)
    assert illegal == pytest.approx(outside, abs=1e-6)
    assert [*unrestricted.values()] != [pytest.approx(shares, abs=1e-3)]
