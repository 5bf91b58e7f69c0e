"""Arenas from settings: what is asked for is what is played, or is refused by name."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from arenas.absolute_zero import Solve
from legos.arena.curriculum import Climb, Uniform
from legos.config.schema import GenerationConfig, PlayConfig
from legos.credit import RAECredit
from legos.errors import ArenaError, ConfigError
from legos.fakes import ScriptedClient
from legos.records.episode import Task
from legos.wiring.arena import make_arena, warn_of_few_plays

OWN = """
from legos import Arena, RAECredit

class Own(Arena):
    def __init__(self, client=None, *, credit_assigner=None, temperature=1.0, seed=0):
        mine = RAECredit()
        super().__init__(client, credit_assigner=mine, temperature=temperature, seed=seed)
"""


LEVELLED = """
from legos import Arena, Task

class Levelled(Arena):
    levels = ("low", "high")
"""


def test_the_curriculum_of_the_settings_is_followed(tmp_path: Path) -> None:
    file = tmp_path / "levelled.py"
    file.write_text(LEVELLED)
    name = f"{file}:Levelled"
    play = PlayConfig(curriculum="climb")
    assert isinstance(make_arena(name, None, play=play).curriculum, Climb)
    play = PlayConfig(curriculum="uniform")
    assert isinstance(make_arena(name, None, play=play).curriculum, Uniform)
    with pytest.raises(ConfigError, match="'uniform' but arena 'nim' has no levels"):
        make_arena("nim", None, play=play)


def test_a_credit_rule_that_the_arena_does_not_take_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    file.write_text(OWN)
    name = f"{file}:Own"
    assert isinstance(make_arena(name, None).credit_assigner, RAECredit)
    with pytest.raises(ConfigError, match=r"play\.credit is 'grpo' but arena .* rule RAECredit"):
        make_arena(name, None, play=PlayConfig(credit="grpo"))
    assert isinstance(
        make_arena("nim", None, play=PlayConfig(credit="rae")).credit_assigner, RAECredit
    )


RULE = """
from legos.protocols import CreditAssigner

class Equal(CreditAssigner):
    def assign(self, episodes):
        return [{r.role: [1.0] * len(r.turns) for r in e.rollouts if r.policy} for e in episodes]

class Plain:
    def assign(self, episodes):
        return []
"""


@pytest.mark.slow
def test_a_credit_rule_of_a_file_is_used(tmp_path: Path) -> None:
    file = tmp_path / "rules.py"
    file.write_text(RULE)
    client = ScriptedClient(lambda asked: asked.sampling.choices[0])
    arena = make_arena("nim", client, play=PlayConfig(credit=f"{file}:Equal", group_size=2))
    assert not arena.credit_assigner.needs_step  # pyrefly: ignore[missing-attribute]
    batch = asyncio.run(arena.step())
    assert {a for sample in batch.samples for a in sample.advantages} == {1.0}
    for name, message in (("Other", "has no 'Other'"), ("Plain", "which is no credit rule; make")):
        with pytest.raises(ConfigError, match=message):
            make_arena("nim", client, play=PlayConfig(credit=f"{file}:{name}"))


def test_a_credit_rule_must_be_one(tmp_path: Path) -> None:
    client = ScriptedClient(lambda asked: asked.sampling.choices[0])
    arena = make_arena("nim", client)
    arena.credit_assigner = object()  # pyrefly: ignore[bad-assignment]
    with pytest.raises(ArenaError, match=r"or of a subclass of .*CreditAssigner"):
        asyncio.run(arena.step())


GAME = """
from legos import Game

class Coin(Game):
    roles = ("ann",)
    tasks_per_step = 4
    illegal = "random"
    system = {"ann": "Play well."}
    play_timeout_s = 5

    def turn(self, state): ...
    def view(self, state, role): ...
    def legal(self, state, role): ...
    def payoff(self, state): ...
"""


def test_attributes_of_a_game_that_only_arenas_read_are_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "coin.py"
    file.write_text(GAME)
    make_arena(f"{file}:Coin", None)
    make_arena("kuhn", None)
    [warning] = [record.getMessage() for record in caplog.records]
    named = "tasks_per_step and illegal and system and play_timeout_s"
    assert warning.startswith(f"game 'coin' sets {named} without effect: ")


def test_settings_hold_in_children_of_a_class_too() -> None:
    play, generation = PlayConfig(illegal="random"), GenerationConfig(max_tokens=7)
    arena = make_arena("absolute_zero", ScriptedClient([]), play=play, generation=generation)
    for parent in (arena, arena.child(Solve, arena.seats(Task(id="a")))):
        child = parent.child(Solve, parent.seats(Task(id="a")))
        assert (child.illegal, child.max_tokens, child.restrict_choices) == ("random", 7, False)


@pytest.mark.parametrize(
    ("settings", "warns"),
    [
        ({"tasks_per_step": 16}, True),
        ({"tasks_per_step": 256}, False),
        ({"tasks_per_step": 16, "credit": "gae"}, False),
        ({"tasks_per_step": 2, "group_size": 8}, False),
    ],
)
def test_steps_in_which_few_plays_of_a_game_begin_alike_are_named(
    settings: dict[str, Any], warns: bool, caplog: pytest.LogCaptureFixture
) -> None:
    warn_of_few_plays(make_arena("nim", None, play=PlayConfig(**settings)))
    told = "48 % of the 16 plays of a step of arena 'nim' begin as no other one does"
    assert (told in caplog.text) == warns
    assert ("--play.group-size 8 --play.tasks-per-step 2" in caplog.text) == warns
