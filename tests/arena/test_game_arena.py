"""A game as an arena: the policy plays from the views, and the rules pay."""

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from arenas.kuhn import Kuhn
from arenas.nim import Nim
from legos.arena.arena import GameArena
from legos.arena.game import Game, State
from legos.credit import DrGRPOCredit, GRPOCredit
from legos.errors import ArenaError
from legos.fakes import Asked, ScriptedClient
from legos.play.step import play_all
from legos.records.episode import Episode, Task
from legos.records.message import Completion


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

    def legal(self, state: int, role: str) -> Sequence[str]:
        return ("on",)

    def play(self, state: int, move: str) -> int:
        return -1

    def payoff(self, state: int) -> Mapping[str, float]:
        return {"player": 0.5}


def test_moves_in_no_order_are_refused() -> None:
    class Unordered(Many):
        def legal(self, state: int, role: str) -> Any:
            return {"on", "off"}

    arena = GameArena(Unordered, ScriptedClient(lambda asked: "on"), credit_assigner=GRPOCredit())
    with pytest.raises(ArenaError, match=r"the choices for 'player' are a set; give a list"):
        asyncio.run(arena.step())


@pytest.mark.parametrize("starts", [[0, 1], {0: 0.5, 1: 0.5}])
def test_starts_without_probabilities_are_named(starts: Any) -> None:
    class Listed(Many):
        def starts(self) -> Any:
            return starts

    told = r"starts\(\) of game 'listed' holds 0, an int; expected \(state, probability\)"
    with pytest.raises(ArenaError, match=told):
        GameArena(Listed, ScriptedClient([]))


def test_starts_that_cannot_be_listed_are_tasks_of_their_own() -> None:
    arena = GameArena(Many, ScriptedClient(lambda asked: "on"), credit_assigner=GRPOCredit())
    plays = arena.cursor.next_group("round").plays
    groups = Counter(task.id for task, _ in plays)
    assert (len(groups), set(groups.values())) == (32, {8})
    for task, _ in plays[::50]:
        assert task.id == f"many/{task.seed}"
        assert task.data == arena.game.start(random.Random(task.seed))
    again = GameArena(Many).cursor.next_group("round").plays
    assert again == plays
    assert GameArena(Many, seed=1).cursor.next_group("round").plays != plays


class Deals(Many):
    """More starts than a step has plays."""

    def start(self, rng: random.Random) -> State:
        return Game.start(self, rng)

    def starts(self) -> Sequence[tuple[State, float]]:
        return [(number, 1 / 300) for number in range(300)]


@pytest.mark.parametrize("game", [Many, Deals])
def test_every_play_has_others_from_its_start_to_be_compared_with(game: type[Game]) -> None:
    class Own(GameArena):
        tasks_per_step, group_size = 4, 2

    client = ScriptedClient(lambda asked: "on")
    batch = asyncio.run(GameArena(game, client, credit_assigner=DrGRPOCredit()).step(256))
    assert len(batch.episodes) == 256
    assert batch.metrics["credit/singletons"] == 0.0
    assert (Own(game).tasks_per_step, Own(game).group_size) == (4, 2)


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
            assert isinstance(role, str)
            state = arena.game.play(state, next(turns[role]).move or "")
        assert arena.game.payoff(state) == episode.rewards
    assert batch.tokens_generated == sum(len(s.positions) for s in batch.samples)


class Auction(Game):
    """Both bid at once for a coin that is thrown after each of two rounds.

    State: (bids and coins so far, whether the coin is in the air).
    """

    roles = ("ann", "bob")
    hands: Mapping[str, Sequence[str]] = {"ann": ("1", "2"), "bob": ("2", "3", "4")}

    def starts(self) -> Sequence[tuple[tuple[str, bool], float]]:
        return [(("", True), 1.0)]

    def chance(self, state: tuple[str, bool]) -> Sequence[tuple[tuple[str, bool], float]]:
        past, in_the_air = state
        return [((past + side, False), 0.5) for side in "ht"] if in_the_air else ()

    def turn(self, state: tuple[str, bool]) -> Sequence[str] | None:
        return ("bob", "ann") if len(state[0]) < 7 else None

    def view(self, state: tuple[str, bool], role: str) -> str:
        return f"{role}: {state[0]}"

    def legal(self, state: tuple[str, bool], role: str) -> Sequence[str]:
        return self.hands[role]

    def play_all(self, state: tuple[str, bool], moves: Mapping[str, str]) -> tuple[str, bool]:
        return state[0] + moves["ann"] + moves["bob"], True

    def payoff(self, state: tuple[str, bool]) -> Mapping[str, float]:
        return {"ann": float(state[0].count("h")), "bob": float(state[0].count("t"))}


def last_move(asked: Asked) -> str:
    return asked.sampling.choices[-1]


class InPairs(ScriptedClient):
    """Answers nobody before two have asked."""

    def __init__(self, answers: Callable[[Asked], str]) -> None:
        super().__init__(answers)
        self._both = asyncio.Barrier(2)

    async def complete(self, *asked: Any, **options: Any) -> Completion:
        await asyncio.wait_for(self._both.wait(), timeout=30)
        return await super().complete(*asked, **options)


def test_roles_that_move_at_once_are_asked_before_any_has_answered() -> None:
    client = InPairs(last_move)
    episode = play(GameArena(Auction, client), ("", True))
    assert episode.error is None
    assert sum(episode.rewards.values()) == 3  # coins: at the start and after each round
    offered = {asked.prompt[:3]: asked.sampling.choices for asked in client.asked}
    assert offered == dict(Auction.hands)
    seen = [asked.prompt.partition("\n")[0][5:] for asked in client.asked]
    assert seen[0] == seen[1] in ("h", "t")
    assert seen[2] == seen[3]
    assert seen[2][:-1] == seen[0] + "24"


@pytest.mark.slow
def test_chance_in_play_follows_from_the_seed_of_the_play() -> None:
    arena = GameArena(Auction, ScriptedClient(last_move))
    rewards = [play(arena, ("", True), seed).rewards["ann"] for seed in range(200)]
    assert rewards[:9] == [play(arena, ("", True), seed).rewards["ann"] for seed in range(9)]
    counts = Counter(rewards)
    assert [counts[heads] / 200 for heads in range(4)] == pytest.approx(
        [1 / 8, 3 / 8, 3 / 8, 1 / 8], abs=0.1
    )


def test_an_arena_takes_the_games_words() -> None:
    arena = GameArena(Nim(largest=3))
    assert arena.name == "nim"
    assert arena.roles == ("first", "second")
    assert arena.game.starts() == Nim(largest=3).starts()
    assert arena.recommended == Nim.recommended
