"""A judge in both orders: its verdicts, what it sees, and the figures that say if it is fair."""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pytest

from legos import Arena, GRPOCredit, Task
from legos.arena.judge import score_of
from legos.errors import ArenaError, RequestError
from legos.fakes import Asked, ScriptedClient
from legos.play.step import play_all
from legos.play.table import Table
from legos.protocols import Seat
from legos.records.group import Group
from legos.records.message import Completion

Options = Mapping[str, Any]


class Duel(Arena):
    """A writer's text is compared with a given one, by a judge with its own client."""

    roles = ("writer", "judge")
    system = {"judge": "You are fair."}  # noqa: RUF012
    tasks_per_step = 1
    group_size = 1

    def __init__(self, judge: Callable[[Asked], str], *comparisons: Options) -> None:
        super().__init__(ScriptedClient(lambda _: "long text"), credit_assigner=GRPOCredit())
        self.judge = ScriptedClient(judge)
        self.comparisons = comparisons
        self.verdicts: list[Any] = []

    def tasks(self, rng: Any) -> Iterable[Task]:
        yield Task(id="d")

    def seats(self, task: Task) -> Mapping[str, Seat]:
        judge = Seat(role="judge", client=self.judge, name="judge", trainable=False)
        return {**super().seats(task), "judge": judge}

    async def play(self, t: Table) -> Mapping[str, float]:
        text = (await t.ask("writer", "Write.")).answer
        for options in self.comparisons:
            self.verdicts.append(
                await t.judge("judge", "Which is longer?", text, "text", **options)
            )
        return {"writer": self.verdicts[-1].score, "judge": 0.0}


def step(arena: Arena) -> Group:
    return asyncio.run(arena.step(concurrency=1))


def longer(asked: Asked) -> str:
    """A judge that is right."""
    return "[A]" if "Answer A:\nlong text" in asked.prompt else "A is short, so [B]"


def test_a_fair_judge_agrees_with_itself_and_sees_nothing_else() -> None:
    arena = Duel(longer, {}, {"truth": 1.0})
    batch = step(arena)
    assert [verdict.score for verdict in arena.verdicts] == [1.0, 1.0]
    assert [verdict.agreed for verdict in arena.verdicts] == [True, True]
    assert batch.episodes[0].metrics == {
        "judge_first": 0.5,
        "judge_agreement": 1.0,
        "judge_right": 1.0,
        "judge_unclear": 0.0,
    }
    assert len(arena.judge.asked) == 4
    for asked in arena.judge.asked:
        assert [m.content for m in asked.messages[:-1]] == ["You are fair."]
        assert asked.prompt.startswith("Which is longer?\n\nAnswer A:\n")
    assert len({asked.sampling.seed for asked in arena.judge.asked}) == 4
    assert [len(r.turns) for r in batch.episodes[0].rollouts] == [1, 4]
    assert {sample.role for sample in batch.samples} == {"writer"}


@pytest.mark.parametrize("both_orders", [True, False])
def test_a_slow_judge_gives_the_place_back(both_orders: bool) -> None:
    started: list[str] = []

    class SlowJudge(ScriptedClient):
        """Answers when a second play has started, which has no place before."""

        async def complete(self, *arguments: Any, **options: Any) -> Completion:
            for _ in range(1000):
                if len(started) == 2:
                    return await super().complete(*arguments, **options)
                await asyncio.sleep(0)
            raise RequestError("no other play has started meanwhile")

    class Slow(Duel):
        async def play(self, t: Table) -> Mapping[str, float]:
            started.append(t.task.id)
            return await super().play(t)

    arena = Slow(longer, {"both_orders": both_orders})
    arena.judge = SlowJudge(longer)
    plays = [(Task(id=name), seed) for seed, name in enumerate("ab")]
    episodes = asyncio.run(play_all(arena, plays, asyncio.Semaphore(1)))
    assert [episode.error for episode in episodes] == [None, None]
    assert started == ["a", "b"]
    assert [verdict.score for verdict in arena.verdicts] == [1.0, 1.0]


def test_a_judge_that_always_takes_the_first_is_found_out() -> None:
    arena = Duel(lambda _: "[A]", {"truth": 1.0})
    metrics = step(arena).metrics
    assert arena.verdicts[0].score == 0.5
    assert arena.verdicts[0].agreed is False
    assert metrics["arena/judge_first"] == 1.0
    assert metrics["arena/judge_agreement"] == 0.0
    assert metrics["arena/judge_right"] == 0.0


def test_one_order_only() -> None:
    arena = Duel(lambda _: "[b]", {"both_orders": False, "truth": 0.0})
    metrics = step(arena).metrics
    assert (arena.verdicts[0].score, arena.verdicts[0].agreed) == (0.0, None)
    assert len(arena.verdicts[0].replies) == 1
    assert "arena/judge_agreement" not in metrics
    assert metrics["arena/judge_right"] == 1.0


def test_an_unclear_reply_counts_as_a_tie() -> None:
    arena = Duel(lambda asked: "hm" if "Answer A:\nlong" in asked.prompt else "[B]", {})
    metrics = step(arena).metrics
    assert (arena.verdicts[0].score, arena.verdicts[0].agreed) == (0.75, None)
    assert metrics["arena/judge_unclear"] == 0.5


@pytest.mark.parametrize(
    ("answer", "score"),
    [
        ("[A]", 1.0),
        ("[A] or [B]? [tie]", 0.5),
        (" b ", 0.0),
        ("Tie", 0.5),
        ("Answer A", None),
        ("[C]", None),
        ("", None),
    ],
)
def test_the_last_choice_in_brackets_counts(answer: str, score: float | None) -> None:
    assert score_of(answer) == score


def test_what_is_no_text_is_refused() -> None:
    class Wrong(Duel):
        async def play(self, t: Table) -> Any:
            await t.judge("judge", "?", await t.ask("writer", "?"), "b")  # pyrefly: ignore[bad-argument-type]

    with pytest.raises(ArenaError, match=r"what 'judge' is to judge is a Reply; pass its text"):
        step(Wrong(longer))
