"""Evaluation by play: how many plays, at which temperature, and plays that do not end."""

import asyncio
import math
import random
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from arenas.goofspiel import Goofspiel
from arenas.tinyhanabi import TinyHanabi
from legos.arena.arena import Arena, GameArena
from legos.arena.endings import Forfeit, Void
from legos.arena.game import Game
from legos.fakes import Asked, ScriptedClient
from legos.games.exact import GameTree
from legos.loop.evaluation import ArenaEvaluation, MixEvaluation, flat_metrics
from legos.play.table import Table
from legos.protocols import Seat
from legos.records.count import Count
from legos.records.episode import Task

Play = Callable[[Table], Awaitable[Mapping[str, float]]]


class Answering(ScriptedClient):
    """Says the seed that it is asked with, and has no probabilities to tell."""

    def __init__(self) -> None:
        super().__init__(self._say)

    @staticmethod
    def _say(asked: Asked) -> str:
        return str(asked.sampling.seed % 1000)

    async def score(self, *_: Any, **__: Any) -> Any:
        raise AssertionError("nothing is to be scored")


class Quiz(Arena):
    """A list of tasks, two roles, and a play that is given."""

    roles = ("asker", "answerer")

    def __init__(self, play: Play, *, num_tasks: int = 3, temperature: float = 0.7) -> None:
        self.scripted = Answering()
        super().__init__(self.scripted, temperature=temperature)
        self._play = play
        self._num_tasks = num_tasks

    def tasks(self, rng: random.Random) -> Iterable[Task]:
        return [Task(id=f"q{n}", data=rng.random()) for n in range(self._num_tasks)]

    async def play(self, t: Table) -> Mapping[str, float]:
        return await self._play(t)


def evaluated(arena: Quiz, **settings: Any) -> dict[str, Any]:
    return asyncio.run(ArenaEvaluation(arena, arena.scripted, **settings).metrics())


async def plain(t: Table) -> Mapping[str, float]:
    reply = await t.ask("answerer", t.task.id)
    return {"asker": -1.0, "answerer": float(reply.answer)}


def test_a_game_with_too_many_states_is_evaluated_by_play(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class First(ScriptedClient):
        score = Answering.score

    def tree(game: Game) -> GameTree:
        return GameTree(game, max_states=20)

    monkeypatch.setattr("legos.games.scored.GameTree", tree)
    client = First(lambda asked: asked.sampling.choices[0])
    evaluation = ArenaEvaluation(GameArena(Goofspiel(cards=4, seats=3), client), client, plays=5)
    assert not evaluation.exact
    assert evaluation.count == Count(5)
    figures = asyncio.run(evaluation.metrics())
    assert evaluation.count == Count(5, begun=5, ended=5)
    assert (figures["plays"], figures["exploitability"]) == (5, None)
    assert "evaluated by play, not exactly: game 'goofspiel' has more than 20" in caplog.text


def test_a_game_without_optimal_play_says_why(caplog: pytest.LogCaptureFixture) -> None:
    client = ScriptedClient([])
    ArenaEvaluation(GameArena(Goofspiel(seats=3), client), Answering())
    assert "goofspiel: no metrics of optimal play: it has 3 roles, whose payoffs sum" in caplog.text


@pytest.mark.parametrize(("plays", "num_tasks"), [(10, 3), (64, 1), (2, 3)])
def test_a_list_of_tasks_is_played_over_and_over(plays: int, num_tasks: int) -> None:
    arena = Quiz(plain, num_tasks=num_tasks)
    evaluation = ArenaEvaluation(arena, arena.scripted, plays=plays)
    figures = asyncio.run(evaluation.metrics())
    assert len(evaluation.episodes) == len(MixEvaluation({"quiz": evaluation}).episodes) == plays
    asked = [question.prompt for question in arena.scripted.asked]
    assert sorted(asked) == sorted(f"q{n % num_tasks}" for n in range(plays))
    assert figures["plays"] == plays
    seeds = {question.sampling.seed for question in arena.scripted.asked}
    assert len(seeds) == plays  # no play of a task repeats another one


def test_two_evaluations_give_the_same_figures_and_touch_nothing_of_training() -> None:
    arena = Quiz(plain)
    state = arena.state()
    first = evaluated(arena)
    assert first["plays"] == 64
    assert evaluated(arena, concurrency=1) == first
    assert arena.state() == state
    answers = [question.sampling.seed % 1000 for question in arena.scripted.asked[:64]]
    assert first["reward"]["answerer"] == pytest.approx(sum(answers) / 64)


def test_plays_that_do_not_end_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    async def play(t: Table) -> Mapping[str, float]:
        await t.ask("answerer", "?")
        if t.task.id == "q0":
            raise ZeroDivisionError("lost")
        if t.task.id == "q1":
            raise Void
        if t.task.id == "q2":
            raise Forfeit("answerer")
        return {"asker": 0.0, "answerer": 3.0}

    figures = evaluated(Quiz(play, num_tasks=4), plays=8)
    assert [figures[name] for name in ("plays", "failed", "void")] == [8, 2, 2]
    assert figures["forfeit_share"] == 0.5
    assert figures["reward"] == {"answerer": 1.0}  # nobody asks the asker
    assert "2 of 8 plays of arena 'quiz' failed; the first, of task 'q0'" in caplog.text
    assert "ZeroDivisionError: lost" in caplog.text


def test_where_every_play_fails_there_is_nothing_but_their_number() -> None:
    async def play(t: Table) -> Mapping[str, float]:
        raise ValueError("no")

    figures = evaluated(Quiz(play), plays=5)
    assert figures["failed"] == 5
    assert figures["reward_mean"] is figures["truncation_share"] is None
    assert set(flat_metrics(figures)) == {
        f"eval/{name}" for name in ("plays", "failed", "timed_out", "endpoint_failed", "void")
    }


def test_figures_by_hand() -> None:
    async def play(t: Table) -> Mapping[str, float]:
        await t.ask("asker", "?")
        await t.ask("answerer", "?", max_tokens=1)  # cut short
        t.reward("answerer", 0.25)
        t.metric(number=float(t.task.id[1:]))
        return {"asker": -1.0, "answerer": 2.0}

    figures = flat_metrics(evaluated(Quiz(play), plays=6))
    assert figures == {
        "eval/reward_mean": 0.625,
        "eval/reward_asker": -1.0,
        "eval/reward_answerer": 2.25,
        "eval/metric_number": 1.0,
        "eval/forfeit_share": 0.0,
        "eval/illegal_share": 0.0,
        "eval/truncation_share": 0.5,
        "eval/plays": 6,
        "eval/failed": 0,
        "eval/timed_out": 0,
        "eval/endpoint_failed": 0,
        "eval/void": 0,
    }


class Solver(Arena):
    """A child with a temperature of its own."""

    async def play(self, t: Table) -> Mapping[str, float]:
        await t.ask("player", "child")
        return {"player": 0.0}


@pytest.mark.parametrize(("given", "policy"), [(None, 0.7), (0.0, 0.0), (0.3, 0.3)])
def test_the_policy_has_the_evaluations_temperature_and_others_keep_theirs(
    given: float | None, policy: float
) -> None:
    class Judged(Quiz):
        def seats(self, task: Task) -> Mapping[str, Seat]:
            judge = Seat(role="asker", client=self.scripted, trainable=False)
            return {**super().seats(task), "asker": judge}

    async def play(t: Table) -> Mapping[str, float]:
        await t.ask("asker", "judge")
        await t.ask("answerer", "policy")
        await t.spawn(Solver(t.seats["answerer"].client, temperature=0.7), Task(id="c"))
        return {"asker": 0.0, "answerer": 0.0}

    arena = Judged(play)
    evaluated(arena, plays=2, temperature=given)
    found = {question.prompt: question.sampling.temperature for question in arena.scripted.asked}
    assert found == {"judge": 1.0, "policy": policy, "child": policy}


def test_tasks_that_are_none_are_refused_as_in_training() -> None:
    class Wrong(Quiz):
        def tasks(self, rng: random.Random) -> Any:
            return ["q0"]

    with pytest.raises(Exception, match="expected a Task"):
        evaluated(Wrong(plain))


@pytest.mark.parametrize("held_out", [None, ()])
def test_an_exact_evaluation_asks_each_policy_for_its_roles(held_out: Any) -> None:
    class Two(GameArena):
        policies = ("one", "two")

        def held_out(self, rng: random.Random) -> Iterable[Task] | None:
            return held_out

        def seats(self, task: Task) -> Mapping[str, Seat]:
            names = dict(zip(self.roles, self.policies, strict=True))
            seats = super().seats(task).items()
            return {role: replace(seat, adapter=names[role]) for role, seat in seats}

    class Certain(ScriptedClient):
        """The adapters of the policy "one" always say b, the others a."""

        async def score(self, prompts: Any, *, adapter: str = "", **_: Any) -> list[list[float]]:
            said = "b" if adapter.startswith("one") else "a"
            return [[0.0 if move == said else -math.inf for move in moves] for _, moves in prompts]

    client = Certain([])
    evaluation = ArenaEvaluation(Two(TinyHanabi(), client), client)
    positions = 8  # two cards first; two moves and two cards then
    assert evaluation.count == Count(positions, unit="positions")
    for adapters in (None, {"one": "one/evaluated", "two": "two/evaluated"}):
        figures = asyncio.run(evaluation.metrics(adapters=adapters))
        assert figures["joint_value"] == 4.0  # of b and then a, whatever the cards
    assert asyncio.run(evaluation.metrics(adapters={"two": "one"}))["joint_value"] == 8.0
