"""The buffer's pace: nothing is played while a step without lag is due, also after a resume."""

import asyncio
from collections.abc import Mapping, Sequence
from concurrent.futures import Future

import numpy as np
import pytest
from made_records import make_episode
from msgspec.structs import replace
from one_buffer import GAME, alone

from legos.errors import ArenaError
from legos.fakes import make_sample
from legos.loop.batcher import Batcher
from legos.loop.buffer import Buffer
from legos.loop.ledger import Ledger
from legos.records.episode import Task
from legos.records.group import Group
from legos.records.names import POLICY
from legos.records.sample import Sample


def played(*, failed: int, of: int) -> Group:
    """A batch of plays, the first of which failed."""
    episodes = [
        make_episode({"a": 1.0}, error=f"no {n}" if n < failed else None) for n in range(of)
    ]
    samples = (make_sample((1, 2)),) * (of - failed)
    return Group(
        arena=GAME, samples=samples, episodes=tuple(episodes), tokens_generated=len(samples)
    )


@pytest.mark.parametrize(("failed", "ends"), [(5, False), (6, True)])
def test_too_large_a_share_of_failed_plays_ends_the_run(
    failed: int, ends: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("legos.loop.failures.MAX_FAILED_SHARE", 0.5)

    async def story() -> Batcher:
        batcher = alone(Ledger(), min_samples=1, staleness_limit=99)
        for number in range(10):
            await batcher.put(played(failed=failed, of=10))
            if number < 9:
                await batcher.take({POLICY: 0})  # one bad batch says nothing yet
        return batcher

    async def taken() -> None:
        await (await story()).take({POLICY: 0})

    if ends:
        told = r"60 of the last 100 plays failed, more than 50%; the first:\nno 0"
        with pytest.raises(ArenaError, match=told):
            asyncio.run(taken())
    else:
        asyncio.run(taken())


def batch(count: int) -> Group:
    samples = tuple(make_sample((1, 2, 3)) for _ in range(count))
    return Group(arena=GAME, samples=samples, episodes=(), tokens_generated=count)


async def filled(limit: int, *sizes: int) -> Batcher:
    batcher = alone(Ledger(), min_samples=16, staleness_limit=limit)
    for size in sizes:
        await asyncio.wait_for(batcher.admit(batch(0)), 1)
        await batcher.put(batch(size))
    return batcher


async def admits(batcher: Batcher) -> bool:
    try:
        await asyncio.wait_for(batcher.admit(batch(0)), 0.01)
    except TimeoutError:
        return False
    return True


@pytest.mark.parametrize(("limit", "plays"), [(0, False), (1, True)])
def test_without_lag_nothing_is_played_once_a_step_is_due(limit: int, plays: bool) -> None:
    async def story() -> tuple[bool, bool]:
        batcher = await filled(limit, 4, 4, 10)  # batches that grow: on average four make a step
        due = await admits(batcher)
        await batcher.take({POLICY: 0})
        return due, await admits(batcher)

    assert asyncio.run(story()) == (plays, plays)


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_what_is_admitted_is_trained_on_within_the_limit(limit: int) -> None:
    """The bound of ``docs/ideas/line.md``: here two rounds of two tasks fill a step."""
    ledger = Ledger()

    async def story() -> list[int]:
        batcher = alone(ledger, min_samples=16, staleness_limit=limit, tasks_per_step=2)
        while await admits(batcher):
            await batcher.put(batch(4))
        sizes: list[int] = []
        for version in range(limit + 1):  # of samples of version 0
            sizes.append(len(await batcher.take({POLICY: version})))
            await batcher.release({POLICY: version + 1})
        return sizes

    assert asyncio.run(story()) == [2 * 2] * (limit + 1)
    assert not ledger.filtered


def test_without_lag_play_goes_on_after_the_step() -> None:
    async def story() -> bool:
        batcher = await filled(0, 4, 4, 10)
        await batcher.take({POLICY: 0})
        await batcher.release({POLICY: 1})
        return await admits(batcher)

    assert asyncio.run(story())


def test_the_pace_of_a_resumed_run_is_the_one_it_had() -> None:
    async def story() -> list[bool]:
        batcher = await filled(1, 4, 4, 4, 4)
        answers: list[bool] = []
        state = batcher.state()
        for changed in ({}, {"tasks_seen": 0, "samples_per_task": 0.0}):
            resumed = alone(Ledger(), min_samples=16, staleness_limit=1)
            known = {GAME: {**state[GAME], **changed}}
            resumed.restore(known, batcher.queued, versions={POLICY: 0})
            answers.append(await admits(resumed))
        return answers

    assert asyncio.run(story()) == [True, False]


def test_what_waited_of_a_policy_that_is_trained_no_more_is_filtered_at_a_resume() -> None:
    """As of an exploiter that the resumed run leaves out."""
    ledger = Ledger()
    ledger.generated = 3

    async def story() -> list[str]:
        resumed = alone(ledger, min_samples=1, staleness_limit=1)
        samples = tuple(replace(make_sample((1, 2, 3)), policy=name) for name in (POLICY, "x", "x"))
        group = Group(arena=GAME, samples=samples, episodes=(), tokens_generated=3)
        resumed.restore(resumed.state(), {GAME: [group]}, versions={POLICY: 0})
        [taken] = await asyncio.wait_for(resumed.take({POLICY: 0}), 1)
        return [sample.policy for sample in taken.samples]

    assert asyncio.run(story()) == [POLICY]
    assert ledger.filtered == {"untrained_policy": 2}


@pytest.mark.parametrize(("version", "kept"), [(4, [3, 4]), (5, [4]), (6, [])])
def test_a_sample_is_as_old_as_its_oldest_token(version: int, kept: list[int]) -> None:
    ledger = Ledger()

    async def story() -> list[int]:
        batcher = alone(ledger, min_samples=1, staleness_limit=1)
        samples = tuple(
            make_sample((1, 2, 3), positions=(1, 2), versions=(4, oldest)) for oldest in (3, 4)
        )
        await batcher.put(Group(arena=GAME, samples=samples, episodes=(), tokens_generated=4))
        try:
            (taken,) = await asyncio.wait_for(batcher.take({POLICY: version}), 0.01)
        except TimeoutError:
            return []
        return [sample.oldest_version for sample in taken.samples]

    assert asyncio.run(story()) == kept
    assert ledger.filtered["stale"] == 2 * (2 - len(kept))


def test_a_sample_of_a_version_that_was_not_trained_here_is_filtered(
    caplog: pytest.LogCaptureFixture,
) -> None:
    ledger = Ledger()

    async def story() -> list[int]:
        batcher = alone(ledger, min_samples=1, staleness_limit=3)
        samples = tuple(
            make_sample((1, 2, 3), positions=(1, 2), versions=(4, newest)) for newest in (5, 6)
        )
        await batcher.put(Group(arena=GAME, samples=samples, episodes=(), tokens_generated=4))
        (taken,) = await batcher.take({POLICY: 5})
        return [sample.newest_version for sample in taken.samples]

    assert asyncio.run(story()) == [5]
    assert ledger.filtered == {"future": 2}
    assert "2 tokens are of a policy version above 5" in caplog.text


def test_a_waiting_trainer_checks_the_versions_of_each_sample_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    checked: list[Sample] = []
    check = vars(Buffer)["_trainable"]

    def counted(buffer: Buffer, group: Group, versions: Mapping[str, int]) -> Group:
        checked.extend(group.samples)
        return check(buffer, group, versions)

    monkeypatch.setattr(Buffer, "_trainable", counted)

    async def story() -> None:
        batcher = alone(Ledger(), min_samples=30, staleness_limit=2)
        for version, groups in ((0, 10), (1, 10), (2, 10)):
            taking = asyncio.ensure_future(batcher.take({POLICY: version}))
            for _ in range(groups):
                await asyncio.sleep(0)
                await batcher.put(batch(3))
            await asyncio.wait_for(taking, 1)

    asyncio.run(story())
    assert len(checked) == 3 * 30


def test_the_age_of_a_sample_is_that_of_its_own_policy() -> None:
    def of(policy: str, version: int) -> Sample:
        return replace(make_sample((1, 2), versions=version), policy=policy)

    async def taken(versions: Mapping[str, int]) -> tuple[list[tuple[str, int]], Ledger]:
        ledger = Ledger()
        batcher = alone(ledger, min_samples=1, staleness_limit=1)
        samples = tuple(of(policy, version) for policy in ("a", "b") for version in range(6))
        await batcher.put(Group(arena=GAME, samples=samples, episodes=(), tokens_generated=12))
        (batch,) = await asyncio.wait_for(batcher.take(versions), 1)
        return [(sample.policy, sample.versions[0]) for sample in batch.samples], ledger

    kept, ledger = asyncio.run(taken({"a": 5, "b": 2}))
    assert kept == [("a", 4), ("a", 5), ("b", 1), ("b", 2)]
    assert ledger.filtered == {"stale": 5, "future": 3}


def test_groups_whose_tasks_have_arrays_are_scored() -> None:
    """Arrays have no truth value when compared, so a group is found by identity."""
    task = Task(id="same", data=np.zeros(3))
    play = replace(make_episode({"a": 1.0}), task=task)
    ends: list[Future[list[Sample]]] = []

    def asked(samples: Sequence[Sample]) -> Future[list[Sample]]:
        ends.append(Future())
        return ends[-1]

    async def story() -> int:
        buffer, scoring = Buffer(GAME, Ledger(), staleness_limit=2), []
        for _ in range(2):
            buffer.put(replace(batch(3), episodes=(replace(play),)), scored=False)
            scoring.append(asyncio.ensure_future(buffer.score(asked)))
            await asyncio.sleep(0)
        for end in reversed(ends):
            end.set_result([make_sample((1, 2, 3))] * 3)
        await asyncio.gather(*scoring)
        return buffer.num_samples

    assert asyncio.run(story()) == 6


def test_a_group_that_is_discarded_while_it_is_scored_is_not_trained_on() -> None:
    scored: Future[list[Sample]] = Future()

    async def story() -> tuple[int, Ledger]:
        ledger = Ledger()
        buffer = Buffer(GAME, ledger, staleness_limit=2)
        buffer.put(batch(3), scored=False)
        scoring = asyncio.ensure_future(buffer.score(lambda _: scored))
        await asyncio.sleep(0)
        buffer.discard_rest("rolled_back")
        scored.set_result([*batch(3).samples])
        await scoring
        return buffer.num_tokens, ledger

    waiting, ledger = asyncio.run(story())
    ledger.check(queued=waiting)
    assert waiting == 0
