"""Who sits where: the policy by default, else whom a matchmaker draws from the play's own seed."""

import asyncio
import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from fakes import FakeMatchmaker

from legos.arena.arena import Arena
from legos.arena.cursor import plays_from
from legos.arena.matchmaker import ArenaSeats
from legos.credit import RAECredit
from legos.errors import ArenaError
from legos.fakes import ScriptedClient
from legos.play.step import play_all
from legos.play.table import Table
from legos.protocols import Matchmaker, Seat
from legos.records.episode import Episode, Task
from legos.records.group import Group

CLIENT = ScriptedClient(lambda asked: "ab"[: asked.sampling.seed % 3])
NAMES = ("weak", "strong", "bot")


def rivals() -> list[Seat]:
    return [
        Seat(role="rival", client=CLIENT, name=name, adapter=name, trainable=False)
        for name in NAMES
    ]


class Duel(Arena):
    """Two seats; the longer answer wins."""

    roles = ("learner", "rival")
    tasks_per_step = 4
    group_size = 4

    def __init__(self, matchmaker: Matchmaker | None = None) -> None:
        super().__init__(CLIENT, credit_assigner=RAECredit(), matchmaker=matchmaker)

    def tasks(self, rng: Any) -> Iterator[Task]:
        return (Task(id=f"t{number}") for number in range(4))

    async def play(self, t: Table) -> Mapping[str, float]:
        said = await t.ask_all(dict.fromkeys(self.roles, "?"))
        won = float(len(said["learner"].text) - len(said["rival"].text))
        return {"learner": won, "rival": -won}


def step(arena: Arena) -> Group:
    return asyncio.run(arena.step())


def seated(batch: Group) -> list[tuple[str, ...]]:
    return [tuple(rollout.seat for rollout in e.rollouts) for e in batch.episodes]


def test_by_default_the_policy_sits_everywhere() -> None:
    batch = step(Duel())
    assert set(seated(batch)) == {("policy", "policy")}
    assert {sample.role for sample in batch.samples} == {"learner", "rival"}


def test_a_matchmaker_draws_rivals_which_are_recorded_and_not_trained_on() -> None:
    arena = Duel(FakeMatchmaker(rivals()))
    batch = step(arena)
    assert {seat for seat, _ in seated(batch)} == {"policy"}
    assert {rival for _, rival in seated(batch)} == set(NAMES)
    assert {rollout.policy for e in batch.episodes for rollout in e.rollouts[1:]} == {None}
    assert {sample.role for sample in batch.samples} == {"learner"}
    said = sum(len(s.positions) for s in batch.samples)
    assert batch.tokens_generated == said


def test_seats_follow_from_the_seed_of_the_play() -> None:
    first, again = Duel(FakeMatchmaker(rivals())), Duel(FakeMatchmaker(rivals()))
    batches = [seated(step(first)) for _ in range(2)]
    assert [seated(step(again)) for _ in range(2)] == batches
    assert batches[0] != batches[1]
    drawn = [tuple(first.seated(Task(id="t0"), seed)) for seed in (1, 1)]
    assert drawn[0] == drawn[1]


def test_a_play_and_its_seats_draw_other_random_numbers() -> None:
    """A matchmaker and a play that both begin with their seed must not draw in step."""
    given: list[int] = []

    class Noting(FakeMatchmaker):
        def seats(self, arena: Any, task: Task, seed: int) -> Mapping[str, Seat]:
            given.append(seed)
            return super().seats(arena, task, seed)

    batch = step(Duel(Noting(rivals())))
    assert not set(given) & {episode.seed for episode in batch.episodes}


def test_a_resumed_run_has_the_same_seats() -> None:
    def make() -> Duel:
        return Duel(FakeMatchmaker(rivals(), most_losses=2))

    whole, stopped, resumed = make(), make(), make()
    expected = [seated(step(whole)) for _ in range(3)]
    assert seated(step(stopped)) == expected[0]
    resumed.restore(json.loads(json.dumps(stopped.state())))
    assert [seated(step(resumed)) for _ in range(2)] == expected[1:]
    forgetful = make()
    forgetful.restore({**stopped.state(), "matchmaker": {"losses": {}}})
    assert [seated(step(forgetful)) for _ in range(2)] != expected[1:]


def test_every_play_of_a_step_is_recorded_once_in_order() -> None:
    matchmaker = FakeMatchmaker(rivals())
    arena = Duel(matchmaker)
    episodes = [episode for _ in range(2) for episode in step(arena).episodes]
    assert matchmaker.recorded == episodes

    async def evaluated() -> list[Episode]:
        return await play_all(arena, plays_from(arena, 7, 3), asyncio.Semaphore(3))

    asyncio.run(evaluated())
    assert matchmaker.recorded == episodes


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (None, "seats() of FakeMatchmaker of arena 'duel' returned None; is a `return` missing"),
        ({"rival": "bot"}, "of FakeMatchmaker of arena 'duel' put 'bot', a str in seat 'rival'"),
    ],
)
def test_what_a_matchmaker_returns_is_checked(
    given: Any, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    matchmaker = FakeMatchmaker(rivals())
    monkeypatch.setattr(matchmaker, "seats", lambda *_: given)
    with pytest.raises(ArenaError) as raised:
        step(Duel(matchmaker))
    assert message in str(raised.value)


def test_a_matchmaker_that_cannot_take_a_result_is_named() -> None:
    class Forgetful(ArenaSeats):
        def record(self, episode: Episode) -> None:
            raise LookupError(episode.task.id)

    with pytest.raises(ArenaError, match=r"(?s)matchmaker Forgetful failed:.*LookupError: t0"):
        asyncio.run(Duel(Forgetful()).step())
