"""Worlds that others wrote; ``docs/arenas/worlds.md`` has the command that runs these tests."""

import asyncio
import os
import random
import re
import sys
from collections.abc import Callable
from typing import Any

import pytest

from arenas.worlds import take_arena_settings
from legos import Arena, Climb, GameArena, make_arena
from legos.arena.registry import find_arena
from legos.errors import ArenaError
from legos.fakes import Asked, ScriptedClient
from legos.games.exact import GameTree, uniform_policy
from legos.games.solve import nash_conv_of
from legos.installed import adding
from legos.play.step import play_all
from legos.records.episode import Episode


def test_the_settings_of_every_arena_are_separated_from_those_of_a_world() -> None:
    climb = Climb()
    settings = {"largest": 3, "curriculum": climb, "seed": 1}
    assert take_arena_settings(settings) == {"curriculum": climb, "seed": 1}
    assert settings == {"largest": 3}


def of_worlds(test: Callable[..., None]) -> Callable[..., None]:
    """A test that needs the packages of all worlds."""
    return pytest.mark.optional(pytest.mark.filterwarnings("ignore")(test))


def anything(asked: Asked) -> str:
    """A legal answer that differs from play to play."""
    choices = asked.sampling.choices or tuple(re.findall(r"\[\d+\]", asked.prompt)[-5:]) or ("1",)
    return choices[asked.sampling.seed % len(choices)]


def played(
    name: str, number: int = 100, answer: Callable[[Asked], str] = anything, **options: Any
) -> tuple[Arena, list[Episode]]:
    arena = make_arena(name, ScriptedClient(answer))
    for option, value in options.items():
        setattr(arena, option, value)
    plays = [play for _ in range(number) for play in arena.cursor.next_group("id").plays][:number]
    episodes = asyncio.run(play_all(arena, plays, asyncio.Semaphore(32)))
    assert [episode.error for episode in episodes] == [None] * number
    return arena, episodes


@of_worlds
@pytest.mark.parametrize(
    "name",
    [
        "openspiel:leduc_poker",
        "openspiel:tic_tac_toe",
        "openspiel:goofspiel(num_cards=4,points_order=descending)",
        "openspiel:backgammon",
        "pettingzoo:tictactoe_v3",
        "pettingzoo:connect_four_v3",
        "textarena:TicTacToe-v0",
    ],
)
def test_a_hundred_plays(name: str) -> None:
    arena, episodes = played(name)
    assert arena.name == name
    assert all(sum(e.rewards.values()) == pytest.approx(0.0) for e in episodes)
    assert len({str(e.rewards) for e in episodes}) > 1  # not always the same seat wins
    again = played(name, number=5)[1]
    assert [e.rewards for e in again] == [e.rewards for e in episodes[:5]]


@of_worlds
def test_a_game_of_openspiel_is_evaluated_exactly() -> None:
    arena = make_arena("openspiel:kuhn_poker", None)
    assert isinstance(arena, GameArena)
    tree = GameTree(arena.game)
    assert nash_conv_of(tree.graph, tree.everywhere(uniform_policy(tree))) == pytest.approx(11 / 12)


@of_worlds
@pytest.mark.parametrize(
    ("name", "forfeit"), [("openspiel:leduc_poker", -13.0), ("openspiel:tic_tac_toe", -1.5)]
)
def test_a_forfeit_in_openspiel_is_no_way_out_of_a_loss(name: str, forfeit: float) -> None:
    assert make_arena(name, None).forfeit_reward == forfeit


@of_worlds
def test_answers_are_scored_by_reasoning_gym() -> None:
    def right(asked: Asked) -> str:
        found = re.search(r"Calculate (.*)\.", asked.prompt)
        return str(eval(found[1])) if found else "?"

    _, episodes = played("reasoning_gym:basic_arithmetic", answer=right, group_size=1)
    assert sum(e.metrics["right"] for e in episodes) > 50
    _, wrong = played("reasoning_gym:basic_arithmetic", answer=lambda asked: "x", group_size=1)
    assert {e.rewards["player"] for e in wrong} <= {0.0, 0.01}
    arena = find_arena("reasoning_gym:basic_arithmetic")(max_terms=2, min_terms=2)
    held_out = {task.data["question"] for task in arena.held_out(random.Random(0))}
    stream = arena.tasks(random.Random(0))
    assert held_out.isdisjoint(next(stream).data["question"] for _ in range(300))


@of_worlds
def test_a_data_set_whose_questions_are_all_held_out_is_refused() -> None:
    arena = find_arena("reasoning_gym:prime_factorization")(min_value=2, max_value=10)
    with pytest.raises(ValueError, match=r"has only 9 questions .* and all are held out"):
        next(iter(arena.tasks(random.Random(0))))


@of_worlds
def test_no_answer_runs_as_code_in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []
    monkeypatch.setattr(os, "system", lambda command: ran.append(command) or 0)
    code = "__import__('os').system('true')"
    _, episodes = played("reasoning_gym:countdown", 2, answer=lambda asked: code, group_size=1)
    assert ran == []
    assert {e.metrics["right"] for e in episodes} == {0.0}


@of_worlds
def test_an_answer_whose_score_is_never_known_gets_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("arenas.worlds.reasoning_gym.SCORE_S", 1.0)
    answer = "9**9**9**9"
    _, [episode] = played("reasoning_gym:countdown", 1, answer=lambda asked: answer, group_size=1)
    assert (episode.rewards, episode.metrics["unclear"]) == ({"player": 0.0}, 1.0)


@of_worlds
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("openspiel:no_game", "openspiel has no game 'no_game': SpielError"),
        ("reasoning_gym:nothing", "reasoning_gym has no game 'nothing': ValueError"),
        ("textarena:Nothing-v0", "textarena has no game 'Nothing-v0'"),
        ("pettingzoo:nothing", "no module 'pettingzoo.classic.nothing'; check the name"),
    ],
)
def test_a_game_that_does_not_exist(name: str, message: str) -> None:
    with pytest.raises(ArenaError, match=message):
        find_arena(name)


class Absent:
    """Python's search for modules, where one package is not installed."""

    def __init__(self, package: str) -> None:
        self._package = package

    def find_spec(self, name: str, *_: object) -> None:
        if name.partition(".")[0] == self._package:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


@pytest.mark.parametrize(
    ("name", "module"),
    [
        ("openspiel:leduc_poker", "pyspiel"),
        ("pettingzoo:tictactoe_v3", "pettingzoo"),
        ("reasoning_gym:countdown", "reasoning_gym"),
        ("textarena:TicTacToe-v0", "textarena"),
        ("verifiers:gsm8k-v1", "verifiers"),
        ("openenv:http://127.0.0.1:9", "openenv"),
    ],
)
def test_a_world_that_is_not_installed_names_its_extra(
    name: str, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    extra = name.partition(":")[0]
    monkeypatch.setattr(sys, "meta_path", [Absent(module), *sys.meta_path])
    for loaded in list(sys.modules):  # also where the package is installed
        if f"{loaded}.".startswith((f"{module}.", f"arenas.worlds.{extra}.")):
            monkeypatch.delitem(sys.modules, loaded)
    with pytest.raises(ArenaError, match=rf"no module '{module}'.*{re.escape(adding(extra))}"):
        find_arena(name)
