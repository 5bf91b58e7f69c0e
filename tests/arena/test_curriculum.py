"""Curricula: levels follow the success of plays up and down, and survive a resume."""

import asyncio
import itertools
import json
import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import pytest

from legos.arena.arena import Arena
from legos.arena.curriculum import Climb, Uniform
from legos.checks.arena import check_arena
from legos.credit import GRPOCredit
from legos.credit.means import merged_metrics
from legos.errors import ArenaError, ConfigError
from legos.fakes import Asked, ScriptedClient
from legos.loop.evaluation import ArenaEvaluation, flat_metrics
from legos.play.table import Table
from legos.protocols import Curriculum
from legos.records.episode import Episode, Task
from legos.records.group import Group

LEVELS = ("easy", "medium", "hard")


class Steps(Arena):
    """A task is solved if the player can solve its level."""

    levels = LEVELS
    tasks_per_step = 10
    group_size = 4

    def __init__(self, able: int = 0, curriculum: Curriculum | None = None, seed: int = 0) -> None:
        super().__init__(
            ScriptedClient(self.answer),
            credit_assigner=GRPOCredit(),
            curriculum=curriculum,
            seed=seed,
        )
        self.able = able  # number of levels that the player can solve

    def answer(self, asked: Asked) -> str:
        return str(int(LEVELS.index(asked.prompt.split("/")[0]) < self.able))

    def tasks(self, rng: random.Random) -> Iterable[Task]:
        for number in itertools.count():
            for level in self.levels:
                yield Task(id=f"{level}/{number}/{rng.random()}", level=level)

    async def play(self, t: Table) -> Mapping[str, float]:
        return {"player": float((await t.ask("player", t.task.id)).answer)}


def step(arena: Arena, number: int = 1) -> Group:
    """The last of so many steps."""
    return [asyncio.run(arena.step()) for _ in range(number)][-1]


def played(batch: Group) -> Counter[str | None]:
    return Counter(episode.task.level for episode in batch.episodes)


def ids(batch: Group) -> list[tuple[str, int]]:
    return [(episode.task.id, episode.seed) for episode in batch.episodes]


def test_levels_follow_the_success_up_and_down() -> None:
    arena = Steps(able=0)
    assert played(step(arena, 5)) == {"easy": 40}
    for able, level in ((1, "medium"), (2, "hard"), (1, "medium"), (0, "easy"), (3, "hard")):
        arena.able = able
        step(arena, 7)
        counts = sum((played(step(arena)) for _ in range(4)), Counter[str | None]())
        assert counts.most_common(1)[0][0] == level, (able, counts)
        assert set(counts) == set(LEVELS[: LEVELS.index(level) + 1])


def test_easier_levels_get_their_share() -> None:
    curriculum = Climb(easier=0.2)
    curriculum.restore({"easy": 1.0, "medium": 0.9})
    rng = random.Random(0)
    chosen = Counter(curriculum.choose(LEVELS, rng) for _ in range(4000))
    assert chosen["hard"] == pytest.approx(3200, abs=120)
    assert chosen["easy"] == pytest.approx(400, abs=90)
    curriculum = Climb(easier=0.0)
    curriculum.restore({"easy": 1.0})
    assert {curriculum.choose(LEVELS, rng) for _ in range(100)} == {"medium"}


def test_the_success_of_a_level_is_an_ema_over_its_plays() -> None:
    one, other = Climb(), Climb()
    one.record("easy", [1.0, 1.0])
    for _ in range(2):
        other.record("easy", [1.0])
    assert one.success["easy"] == pytest.approx(1 - (63 / 64) ** 2)
    assert other.success == pytest.approx(one.success)


def test_uniform_plays_every_level_whatever_the_success() -> None:
    arena = Steps(able=0, curriculum=Uniform())
    counts = sum((played(step(arena)) for _ in range(8)), Counter[str | None]())
    assert all(60 < counts[level] < 160 for level in LEVELS)


def test_a_resumed_run_plays_the_same_levels() -> None:
    whole = Steps(able=1)
    step(whole, 4)
    group = whole.cursor.next_group("id")  # unfinished when the checkpoint is written
    state = json.loads(json.dumps(whole.state()))
    whole.cursor.give_back(group)
    resumed = Steps(able=1)
    resumed.restore(state)
    assert resumed.cursor.next_group("id").plays == group.plays
    resumed.restore(state)
    for _ in range(4):
        assert ids(step(resumed)) == ids(step(whole))
    assert resumed.state() == whole.state()
    assert {"easy", "medium"} <= set(played(step(whole)))


def test_unfinished_tasks_of_a_level_that_was_removed_are_not_played() -> None:
    arena, resumed = Steps(curriculum=Uniform()), Steps(curriculum=Uniform())
    group = arena.cursor.next_group("round")
    left = [task.id[:4] for task, _ in group.plays if task.level == "hard"]
    resumed.levels = ("hard",)
    resumed.restore(arena.state())
    again = resumed.cursor.next_group("round")
    assert [task.id[:4] for task, _ in again.plays] == left
    resumed.cursor.finish(again)
    assert resumed.state()["cursor"]["unfinished"] == []


def test_what_it_did_is_a_metric_and_evaluations_have_every_level() -> None:
    arena = Steps(able=1, curriculum=Uniform())
    batches = [step(arena) for _ in range(3)]
    counts = sum((played(batch) for batch in batches), Counter[str | None]())
    metrics = merged_metrics(batches)
    level = (counts["easy"] + 2 * counts["medium"] + 3 * counts["hard"]) / 120
    assert metrics["curriculum/level"] == pytest.approx(level)
    shares = {name: metrics[f"curriculum/success/{name}"] for name in LEVELS}
    assert shares == {"easy": 1.0, "medium": 0.0, "hard": 0.0}
    before = arena.state()
    evaluation = ArenaEvaluation(arena, ScriptedClient([]), plays=12)  # pyrefly: ignore[bad-argument-type]
    figures = flat_metrics(asyncio.run(evaluation.metrics()))
    assert {name: figures[f"eval/success_{name}"] for name in LEVELS} == shares
    assert arena.state() == before


def test_rewards_of_turns_count() -> None:
    class ByTurn(Steps):
        async def play(self, t: Table) -> Mapping[str, float]:
            rewards = await super().play(t)
            t.reward("player", rewards["player"])
            return {"player": 0.0}

    assert step(ByTurn(able=1)).metrics["curriculum/success/easy"] == 1.0


def test_failed_plays_do_not_count() -> None:
    class Failing(Steps):
        async def play(self, t: Table) -> Mapping[str, float]:
            if t.seed % 2:
                raise ValueError("no")
            return await super().play(t)

    arena = Failing(able=1)
    assert step(arena).metrics["curriculum/success/easy"] == 1.0


@pytest.mark.parametrize(
    ("levels", "yielded", "message"),
    [
        ((), (), "has no tasks"),
        (("easy", "easy"), ("easy",), "levels of arena 'steps'"),
        (("easy",), (None,), "with level=None; expected one of the arena's levels: easy"),
        (("easy",), ("hard",), "level='hard', a str; expected one of the arena's levels: easy"),
        ((), ("hard",), r"level='hard', .* it has none; write levels = \('hard', \.\.\.\)"),
        (("easy", "hard"), ("hard",), "no task of level 'easy'"),
        (("easy", "hard"), ("easy",), "no task of level 'hard'"),
    ],
)
def test_levels_that_do_not_fit(
    levels: tuple[str, ...], yielded: Sequence[str | None], message: str
) -> None:
    arena = Steps()
    arena.levels = levels
    arena.tasks = lambda rng: [Task(id=f"{level}", level=level) for level in yielded]
    for check in (step, check_arena):
        with pytest.raises(ArenaError, match=message):
            check(arena)


def test_a_level_that_never_comes_ends_the_run() -> None:
    arena = Steps()
    arena.tasks = lambda rng: (Task(id=f"{n}", level="hard") for n in itertools.count())
    with pytest.raises(ArenaError, match="no task of level 'easy' among 100000 tasks"):
        step(arena)


@pytest.mark.parametrize("settings", [{"threshold": 0.0}, {"threshold": 1.1}, {"easier": 1.0}])
def test_bad_settings(settings: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="expected a threshold above 0"):
        Climb(**settings)


class Broken(Steps):
    def success(self, episode: Episode) -> float:
        raise KeyError("correct")


class Sudden(Climb):
    def record(self, level: str, successes: Sequence[float]) -> None:
        raise ZeroDivisionError


class Elsewhere(Uniform):
    def choose(self, levels: Sequence[str], rng: random.Random) -> str:
        return "hardest"


class Lost(Uniform):
    def choose(self, levels: Sequence[str], rng: random.Random) -> str:
        return levels[7]


@pytest.mark.parametrize(
    ("arena", "told"),
    [
        (Broken(), r"(?s)success\(\) of arena 'broken' failed:.*raise KeyError.*'correct'"),
        (Steps(curriculum=Sudden()), r"(?s)curriculum Sudden failed:.*raise ZeroDivisionError"),
        (Steps(curriculum=Lost()), r"(?s)curriculum Lost failed:.*levels\[7\]"),
        (Steps(curriculum=Elsewhere()), "curriculum Elsewhere chose 'hardest', a str, .*no level"),
    ],
)
def test_what_fails_of_ones_own_is_named(arena: Arena, told: str) -> None:
    with pytest.raises(ArenaError, match=told):
        step(arena)
