"""Plays of a pure game advance together; they must be the plays that coroutines would play."""

import asyncio
import gc
from collections.abc import Mapping, Sequence
from dataclasses import replace as changed
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from fakes import FakeEngine
from msgspec.structs import replace

from arenas.kuhn import Kuhn
from arenas.nim import Nim
from legos.arena.arena import GameArena
from legos.arena.endings import Draw, Void
from legos.arena.game import Game
from legos.arena.matchmaker import ArenaSeats
from legos.chat.load import load_tokenizer
from legos.chat.tokenizer import ChatTokenizer
from legos.clients.engine import EngineClient
from legos.credit import GRPOCredit
from legos.errors import ArenaError, EngineError, PlayTimeoutError, RequestError
from legos.fakes import Asked, ScriptedClient
from legos.play.positions import Ask
from legos.play.step import play_all
from legos.play.table import Table
from legos.protocols import Client, Deliver, Seat, Seating
from legos.records.episode import Episode, Task
from legos.records.message import Completion, Sampling
from legos.records.request import Request


@pytest.fixture(scope="module")
def tokenizer(tiny_models: Mapping[str, Path]) -> ChatTokenizer:
    return load_tokenizer(tiny_models["llama"])


PLAYS = 80


class ByCoroutine(GameArena):
    """The same plays, each as a coroutine of its own."""

    async def play(self, t: Table) -> Mapping[str, float]:
        return await super().play(t)


class Moody(Nim):
    """Nim whose rules raise at some positions."""

    name = "nim"

    def play(self, state: Any, move: str) -> Any:
        if state[0] == 5 and move == "1":
            raise Draw("nobody wins")
        if state[0] == 5 and move == "2":
            raise Void("start again")
        if state[0] == 4 and move == "2":
            raise KeyError("a defect")
        return super().play(state, move)


class Bids(Game):
    """Two bid at once, twice; a coin decides first which bids are on offer."""

    roles = ("ann", "bob")

    def starts(self) -> Sequence[tuple[tuple[str, ...], float]]:
        return [((), 1.0)]

    def chance(self, state: tuple[str, ...]) -> Sequence[tuple[tuple[str, ...], float]]:
        return () if len(state) % 3 else [((*state, coin), 0.5) for coin in "ht"]

    def turn(self, state: tuple[str, ...]) -> Sequence[str] | None:
        return ("bob", "ann") if len(state) < 5 else None

    def view(self, state: tuple[str, ...], role: str) -> str:
        return f"{role} {' '.join(state)}"

    def legal(self, state: tuple[str, ...], role: str) -> Sequence[str]:
        return ("1", "2") if state[-1] == "h" else ("2", "3", "4")

    def play_all(self, state: tuple[str, ...], moves: Mapping[str, str]) -> tuple[str, ...]:
        return (*state, moves["ann"], moves["bob"])

    def payoff(self, state: tuple[str, ...]) -> Mapping[str, float]:
        return {"ann": float(state[1]), "bob": float(state[2])}


def answer(asked: Asked) -> str:
    """A legal move, a wrong one, or one after thinking, by the seed of the question."""
    choices, seed = asked.sampling.choices, asked.sampling.seed
    if seed % 11 == 0:
        return "pass"
    if seed % 7 == 0:
        raise RequestError("too long")
    move = choices[seed % len(choices)]
    return f"<think>hm</think>{move}" if seed % 5 == 0 else move


def episodes_of(kind: type[GameArena], game: Game, **settings: Any) -> list[Episode]:
    arena = kind(game, ScriptedClient(answer), credit_assigner=GRPOCredit(), seed=3)
    arena.tasks_per_step = PLAYS
    for name, value in settings.items():
        setattr(arena, name, value)
    batch = asyncio.run(arena.step(concurrency=64))
    return list(batch.episodes)


@pytest.mark.parametrize(
    "game", [Nim(), Kuhn(), Moody(), Bids()], ids=["nim", "kuhn", "raises", "at once"]
)
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"illegal": "retry", "retries": 1},
        {"illegal": "random"},
        {"remember": True},
        {"remember": True, "continue_tokens": False, "illegal": "retry"},
        {"system": {"second": "Be brief."}},
    ],
    ids=lambda settings: ",".join(settings) or "default",
)
def test_plays_are_those_of_coroutines(game: Game, settings: Mapping[str, Any]) -> None:
    if "system" in settings:
        settings = {"system": {game.roles[1]: "Be brief."}}
    together = episodes_of(GameArena, game, **settings)
    alone = episodes_of(ByCoroutine, game, **settings)
    assert len(together) == PLAYS
    assert [e.failure for e in together] == [e.failure for e in alone]
    for one, other in zip(together, alone, strict=True):
        assert without_error_and_times(one) == without_error_and_times(other)
        assert last_line(one) == last_line(other)


@pytest.mark.parametrize("kind", [GameArena, ByCoroutine])
def test_plays_that_have_ended_are_freed_at_once(kind: type[GameArena]) -> None:
    """As cycles they would wait for Python's collector, which then frees several steps at once."""
    arena = kind(Nim(), ScriptedClient(answer), credit_assigner=GRPOCredit(), seed=3)
    arena.tasks_per_step = PLAYS

    async def garbage() -> int:
        await arena.step(concurrency=64)
        gc.collect()
        await arena.step(concurrency=64)
        return gc.collect()

    gc.disable()
    try:
        assert asyncio.run(garbage()) < PLAYS / 4
    finally:
        gc.enable()


def without_error_and_times(episode: Episode) -> Episode:
    rollouts = tuple(
        replace(
            rollout,
            turns=tuple(replace(turn, asked_at=0.0, answered_at=0.0) for turn in rollout.turns),
        )
        for rollout in episode.rollouts
    )
    return replace(episode, error=None, rollouts=rollouts)


def last_line(episode: Episode) -> str:
    return (episode.error or "\n").splitlines()[-1]


class Count(Game):
    """A play of some moves; the state is how many are left."""

    roles = ("player",)

    def starts(self) -> Sequence[tuple[int, float]]:
        return [(3, 1.0)]

    def turn(self, state: int) -> str | None:
        return "player" if state > 0 else None

    def view(self, state: int, role: str) -> str:
        return f"{state} left"

    def legal(self, state: int, role: str) -> Sequence[str]:
        return ("on",)

    def play(self, state: int, move: str) -> int:
        return state - 1

    def payoff(self, state: int) -> Mapping[str, float]:
        return {"player": 1.0}


class Counting(ScriptedClient):
    """Counts the questions that wait at the same time, and never answers some."""

    def __init__(self, *, deaf_to: str = "") -> None:
        super().__init__(lambda asked: "on")
        self.waiting = 0
        self.most = 0
        self.left = 0
        self._deaf_to = deaf_to

    async def complete(self, prompt: Any, *args: Any, **options: Any) -> Completion:
        self.waiting += 1
        self.most = max(self.most, self.waiting)
        try:
            if self._deaf_to and self._deaf_to in prompt[-1].content:
                await asyncio.Event().wait()
            await asyncio.sleep(0.001)
            return await super().complete(prompt, *args, **options)
        except asyncio.CancelledError:
            self.left += 1
            raise
        finally:
            self.waiting -= 1


def plays(number: int, state: int = 3) -> list[tuple[Task, int]]:
    return [(Task(id=str(state), data=state), seed) for seed in range(number)]


def run(arena: GameArena, group: Sequence[tuple[Task, int]], slots: int) -> list[Episode]:
    return asyncio.run(play_all(arena, group, asyncio.Semaphore(slots)))


def test_no_plays_end_at_once() -> None:
    assert run(GameArena(Count, Counting()), [], 1) == []


def test_no_more_plays_run_than_there_are_slots() -> None:
    client = Counting()
    episodes = run(GameArena(Count, client), plays(20), 3)
    assert [e.rewards for e in episodes] == [{"player": 1.0}] * 20
    assert client.most == 3


def test_a_slow_play_does_not_hold_back_plays_that_wait_for_a_slot() -> None:
    """One play of the group never gets an answer; the others still use the free slot, in turn."""
    client = Counting(deaf_to="7 left")
    arena = GameArena(Count, client)
    arena.play_timeout_s = 0.5
    episodes = run(arena, [*plays(1, 7), *plays(20)], 2)
    assert [e.failure for e in episodes] == ["timed_out", *[None] * 20]
    assert client.most == 2


def test_a_play_over_its_time_is_cancelled_and_its_question_ends() -> None:
    client = Counting(deaf_to="2 left")
    arena = GameArena(Count, client)
    arena.play_timeout_s = 0.2
    (episode,) = run(arena, plays(1), 1)
    assert episode.failure == "timed_out"
    assert episode.error is not None
    assert PlayTimeoutError.__name__ in episode.error
    assert "waits for 'player' to answer" in episode.error
    assert client.left == 1
    assert [len(rollout.turns) for rollout in episode.rollouts] == [1]


def test_an_engine_that_dies_ends_the_group_and_frees_every_slot() -> None:
    def die(asked: Asked) -> str:
        if asked.prompt.startswith("1 left"):
            raise EngineError("the engine was closed")
        return "on"

    async def play() -> int:
        slots = asyncio.Semaphore(2)
        with pytest.raises(EngineError, match="the engine was closed"):
            await play_all(GameArena(Count, ScriptedClient(die)), plays(9), slots)
        free = 0
        while not slots.locked():
            await slots.acquire()
            free += 1
        return free

    assert asyncio.run(play()) == 2


def test_a_rule_that_every_play_breaks_ends_the_group() -> None:
    class Bad(Count):
        def payoff(self, state: int) -> Mapping[str, float]:
            return {"somebody": 1.0}

    with pytest.raises(ArenaError, match="somebody"):
        run(GameArena(Bad, Counting()), plays(3), 2)


def test_states_without_a_hash_are_played() -> None:
    class Lists(Count):
        def starts(self) -> Any:
            return None

        def turn(self, state: Any) -> str | None:
            return super().turn(len(state))

        def view(self, state: Any, role: str) -> str:
            return f"{len(state)} left"

        def play(self, state: Any, move: str) -> Any:
            return state[1:]

    group: list[tuple[Task, int]] = [(Task(id="list", data=[1, 2]), 5)]
    assert run(GameArena(Lists, Counting()), group, 1)[0].rewards == {"player": 1.0}


def test_an_engine_gets_the_questions_of_all_plays_in_one_submission(
    tokenizer: ChatTokenizer,
) -> None:
    submissions: list[int] = []

    class Engine(FakeEngine):
        def submit(self, requests: Sequence[tuple[int, Request]], deliver: Deliver) -> None:
            submissions.append(len(requests))
            super().submit(requests, deliver)

    engine = Engine(lambda request: tokenizer.encode("on"))
    client: Client = EngineClient(engine, tokenizer)
    episodes = run(GameArena(Count, client), plays(50), 50)
    assert {e.rewards["player"] for e in episodes} == {1.0}
    assert submissions == [50, 50, 50]


@pytest.mark.parametrize("players", [1, 3])
def test_a_question_is_prepared_once_for_each_player(
    tokenizer: ChatTokenizer, monkeypatch: pytest.MonkeyPatch, players: int
) -> None:
    """Also where players take turns in a seat, as the snapshots of a league do."""
    prepared: list[str] = []
    prepare, taken = EngineClient.prepare, count()

    def counted(self: EngineClient, *given: Any, adapter: str) -> Any:
        prepared.append(adapter)
        return prepare(self, *given, adapter=adapter)

    monkeypatch.setattr(EngineClient, "prepare", counted)

    class Taking(ArenaSeats):
        def seats(self, arena: Seating, task: Task, seed: int) -> Mapping[str, Seat]:
            name = f"policy@{next(taken) % players}"
            (seat,) = super().seats(arena, task, seed).values()
            return {seat.role: changed(seat, name=name, adapter=name, trainable=False)}

    client = EngineClient(FakeEngine(lambda request: tokenizer.encode("on")), tokenizer)
    episodes = run(GameArena(Count, client, matchmaker=Taking()), plays(12), 4)
    assert {e.rewards["player"] for e in episodes} == {1.0}
    assert sorted(prepared) == sorted([f"policy@{n}" for n in range(players)] * 3)


def test_a_question_of_a_cancelled_play_is_cancelled_in_the_engine(
    tokenizer: ChatTokenizer,
) -> None:
    engine = FakeEngine(hold=True)
    seat = Seat(role="player", client=EngineClient(engine, tokenizer))

    async def ask() -> list[Any]:
        answers: dict[str, Any] = {}
        arrived = asyncio.Event()

        def done(key: str, answer: Any) -> None:
            answers[key] = answer
            arrived.set()

        question = Ask(seat, [5, 6], Sampling(max_tokens=1))
        end, _ = (question.begin(1, partial(done, key)) for key in ("a", "b"))
        await asyncio.sleep(0)
        end()
        end()
        engine.release()
        await arrived.wait()
        return [*answers.items()]

    ((key, completion),) = asyncio.run(ask())
    assert key == "b"
    assert isinstance(completion, Completion)
    assert len(engine.cancelled) == 1


def test_a_request_that_cannot_be_served_fails_its_play_alone(tokenizer: ChatTokenizer) -> None:
    engine = FakeEngine(lambda request: tokenizer.encode("on"))
    arena = GameArena(Count, EngineClient(engine, tokenizer))
    many = [*plays(2), (Task(id="bad", data=-1), 0)]

    class Odd(Count):
        def turn(self, state: int) -> str | None:
            return "player" if state else None

        def legal(self, state: int, role: str) -> Sequence[str]:
            return ("on",) if state > 0 else ("\ud800",)

    arena.game = Odd()
    episodes = run(arena, many, 8)
    assert [e.failure for e in episodes] == [None, None, "failed"]
