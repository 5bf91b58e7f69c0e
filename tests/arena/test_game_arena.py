"""A game as an arena: the policy plays from the views, and the rules pay."""

import asyncio
import random
from collections import Counter
from collections.abc import Mapping, Sequence

import pytest

from arenas.kuhn import Kuhn
from arenas.nim import Nim
from legos.arena.arena import GameArena
from legos.arena.game import Game
from legos.arena.step import play_all
from legos.credit import GRPOCredit
from legos.data.episode import Episode, Task
from legos.testing import Asked, ScriptedClient


def play(arena: GameArena, state: object, seed: int = 0) -> Episode:
    async def once() -> Episode:
        plays = [(Task(id="t", data=state), seed)]
        return (await play_all(arena, plays, asyncio.Semaphore(1)))[0]

    return asyncio.run(once())


def test_a_play_by_hand() -> None:
    client = ScriptedClient(["3", "1", "2"])
    episode = play(GameArena(Nim, client), (6, 0))
    assert episode.rewards == {"first": 1.0, "second": -1.0}
    assert [asked.messages for asked in client.asked] == [
        ((asked.messages[0]),) for asked in client.asked
    ]  # views are complete: nothing is remembered
    assert [asked.prompt for asked in client.asked] == [
        "Nim: 6 left, last one wins.\nMoves: 1 2 3",
        "Nim: 3 left, last one wins.\nMoves: 1 2 3",
        "Nim: 2 left, last one wins.\nMoves: 1 2",
    ]
    assert [asked.sampling.choices for asked in client.asked] == [
        ("1", "2", "3"),
        ("1", "2", "3"),
        ("1", "2"),
    ]
    moves = [[turn.move for turn in rollout.turns] for rollout in episode.rollouts]
    assert moves == [["3", "2"], ["1"]]
    assert {asked.sampling.max_tokens for asked in client.asked} == {None}  # the longest move


def test_an_illegal_move_costs_what_the_game_says() -> None:
    arena = GameArena(Nim, ScriptedClient(["1", "pass"]))
    episode = play(arena, (5, 0))
    assert episode.rewards == {"first": 0.0, "second": arena.game.forfeit_reward}
    assert arena.game.forfeit_reward == -1.5


def test_other_rules_for_illegal_moves() -> None:
    arena = GameArena(Nim, ScriptedClient(["pass", "1"]))
    arena.illegal = "retry"
    assert play(arena, (1, 0)).rewards == {"first": 1.0, "second": -1.0}
    arena = GameArena(Nim, ScriptedClient(["pass"]))
    arena.illegal = "random"
    assert play(arena, (1, 0)).rewards == {"first": 1.0, "second": -1.0}


def test_plays_from_one_start_are_one_group() -> None:
    client = ScriptedClient(lambda asked: "1")
    arena = GameArena(Nim(largest=2), client, credit_assigner=GRPOCredit())
    batch = asyncio.run(arena.step(concurrency=300))
    assert len(batch.episodes) == 256
    groups = Counter(episode.task.id for episode in batch.episodes)
    assert set(groups) == {"nim/(1, 0)", "nim/(2, 0)"}
    assert min(groups.values()) > 90
    starts = {episode.task.id: episode.task.data for episode in batch.episodes}
    assert starts == {"nim/(1, 0)": (1, 0), "nim/(2, 0)": (2, 0)}
    assert arena.credit_assigner is not None
    assert arena.credit_assigner.state() == {"singletons": 0}


class Many(Game):
    """Starts that cannot be listed."""

    roles = ("player",)

    def start(self, rng: random.Random) -> int:
        return rng.randrange(1 << 40)

    def turn(self, state: int) -> str | None:
        return "player" if state >= 0 else None

    def view(self, state: int, role: str) -> str:
        return "go"

    def legal(self, state: int) -> Sequence[str]:
        return ("on",)

    def play(self, state: int, move: str) -> int:
        return -1

    def payoff(self, state: int) -> Mapping[str, float]:
        return {"player": 0.5}


def test_starts_that_cannot_be_listed_are_tasks_of_their_own() -> None:
    arena = GameArena(Many, ScriptedClient(lambda asked: "on"), credit_assigner=GRPOCredit())
    plays = arena.cursor.next_group("round").plays
    assert len({task.id for task, _ in plays}) == 256
    for task, _ in plays[:5]:
        assert task.id == f"many/{task.seed}"
        assert task.data == arena.game.start(random.Random(task.seed))
    again = GameArena(Many).cursor.next_group("round").plays
    assert again == plays
    assert GameArena(Many, seed=1).cursor.next_group("round").plays != plays


@pytest.mark.parametrize("game", [Nim, Kuhn])
def test_random_legal_play_ends_and_is_accounted_for(game: type[Game]) -> None:
    def answer(asked: Asked) -> str:
        choices = asked.sampling.choices
        return choices[asked.sampling.seed % len(choices)]

    arena = GameArena(game, ScriptedClient(answer), credit_assigner=GRPOCredit())
    batch = asyncio.run(arena.step(concurrency=16))
    assert batch.metrics["arena/failed"] == 0.0
    assert "arena/forfeit" not in batch.metrics
    for episode in batch.episodes:
        assert sum(episode.rewards.values()) == pytest.approx(0.0)  # both games are zero-sum
        state = episode.task.data
        turns = {rollout.role: iter(rollout.turns) for rollout in episode.rollouts}
        while (role := arena.game.turn(state)) is not None:
            state = arena.game.play(state, next(turns[role]).move or "")
        assert arena.game.payoff(state) == episode.rewards
    assert batch.tokens_generated == sum(len(s.positions) for s in batch.samples)


def test_an_arena_takes_the_games_words() -> None:
    arena = GameArena(Nim(largest=3))
    assert arena.name == "nim"
    assert arena.roles == ("first", "second")
    assert arena.game.starts() == Nim(largest=3).starts()
    assert arena.recommended == Nim.recommended
