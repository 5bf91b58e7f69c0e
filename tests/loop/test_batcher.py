"""The batcher keeps the arenas' shares of the tokens, and every token is accounted for once."""

import asyncio
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from legos.errors import ConfigError
from legos.fakes import make_sample
from legos.loop.batcher import Admission, Batcher
from legos.loop.buffer import Buffer
from legos.loop.ledger import Ledger
from legos.records.names import POLICY
from legos.records.sample import TrainingBatch
from legos.records.shares import Portion, Shares, Spill, check_shares

BUDGET = 100


def group(arena: str, tokens: int, *, version: int = 0, plays: int = 1) -> TrainingBatch:
    samples = tuple(
        make_sample((1, 2), versions=version, group="task", rollout=f"task/{n % 2}/role")
        for n in range(tokens)
    )
    return TrainingBatch(
        samples=samples,
        episodes=(),
        tokens_generated=tokens,
        arena=arena,
        group_sizes={"task": plays},
    )


def mixed(
    ledger: Ledger, portions: Mapping[str, Portion], *, spill: Spill = "block", limit: int = 3
) -> Batcher:
    buffers = [
        Buffer(
            name,
            ledger,
            staleness_limit=limit,
            order=portion.order,
            reuse=portion.reuse,
            min_group_size=portion.min_group_size,
        )
        for name, portion in portions.items()
    ]
    shares = Shares(tokens_per_step=BUDGET, spill=spill, portions=portions)
    return Batcher(buffers, min_samples=1, staleness_limit=limit, shares=shares)


async def put(batcher: Batcher, *batches: TrainingBatch) -> None:
    for batch in batches:
        await batcher.put(batch, Admission(batch.arena, 1, 0))


async def taken(batcher: Batcher, *, progress: float = 0.0, version: int = 0) -> Counter[str]:
    """The tokens of each arena in the next step, which is then complete."""
    step = await asyncio.wait_for(batcher.take({POLICY: version}, progress=progress), 1)
    batcher.trained()
    await batcher.release({POLICY: version}, progress=progress)
    tokens = Counter[str]()
    for batch in step:
        tokens[batch.arena] += len(batch.samples)
    return tokens


HALVES = {"a": Portion(0.5), "b": Portion(0.5)}


@given(
    share=st.floats(0.1, 0.9),
    sizes=st.tuples(st.integers(1, 40), st.integers(1, 250)),
)
def test_shares_hold_to_one_group_whatever_the_size_of_groups(
    share: float, sizes: tuple[int, int]
) -> None:
    portions = {"a": Portion(share), "b": Portion(1 - share)}
    groups = dict(zip(portions, sizes, strict=True))

    async def story() -> Counter[str]:
        batcher, total = mixed(Ledger(), portions), Counter[str]()
        for _ in range(20):
            for name, size in groups.items():
                while batcher.buffers[name].num_tokens < BUDGET + size:
                    await put(batcher, group(name, size))
            total += await taken(batcher)
        return total

    total = asyncio.run(story())
    everything = total.total()
    for name, portion in portions.items():
        assert abs(total[name] - portion.share * everything) <= max(sizes)


def test_shares_follow_their_schedule() -> None:
    portions = {"a": Portion(0.8, share_end=0.2), "b": Portion(0.2, share_end=0.8)}

    async def story() -> list[int]:
        batcher, seen = mixed(Ledger(), portions), list[int]()
        for progress in (0.0, 0.5, 1.0):
            await put(batcher, *(group(name, 10) for name in portions for _ in range(20)))
            seen.append((await taken(batcher, progress=progress))["a"])
        return seen

    assert asyncio.run(story()) == [80, 50, 20]


@pytest.mark.parametrize("spill", ["block", "lend"])
def test_an_arena_that_lacks_tokens_is_waited_for_or_lent_to(spill: Spill) -> None:
    async def story() -> tuple[Counter[str] | None, Counter[str]]:
        batcher = mixed(Ledger(), HALVES, spill=spill)
        await put(batcher, *(group("a", 10) for _ in range(20)), group("b", 10))
        try:
            first = await asyncio.wait_for(taken(batcher), 0.01)
        except TimeoutError:
            first = None
        await put(batcher, *(group("b", 10) for _ in range(20)))
        return first, await taken(batcher)

    first, second = asyncio.run(story())
    if spill == "block":
        assert (first, second) == (None, {"a": 50, "b": 50})
    else:  # what was lent is paid back
        assert (first, second) == ({"a": 90, "b": 10}, {"a": 10, "b": 90})


@pytest.mark.parametrize("order", ["oldest", "newest"])
def test_groups_are_taken_in_their_order(order: Any) -> None:
    async def story() -> list[int]:
        batcher = mixed(Ledger(), {"a": Portion(order=order)})
        for size in (60, 50, 40, 70):
            await put(batcher, group("a", size))
        return [len(batch.samples) for batch in await batcher.take({POLICY: 0})]

    assert asyncio.run(story()) == {"oldest": [60, 50], "newest": [70, 40]}[order]


def test_any_group_may_be_taken_and_a_resumed_run_takes_the_same() -> None:
    portions = {"a": Portion(order="uniform")}

    async def story() -> set[int]:
        batcher, firsts = mixed(Ledger(), portions), set[int]()
        for _ in range(30):
            await put(batcher, *(group("a", 20 + n) for n in range(5)))
            resumed = mixed(Ledger(), portions)
            resumed.restore(batcher.state(), batcher.queued, versions={POLICY: 0})
            step, again = await batcher.take({POLICY: 0}), await resumed.take({POLICY: 0})
            assert step == again
            firsts.add(len(step[0].samples))
            await batcher.release({POLICY: 0})
        return firsts

    assert asyncio.run(story()) == set(range(20, 25))


def test_a_group_is_used_again_until_its_cap_or_its_age_and_counted_once() -> None:
    ledger = Ledger()

    async def story() -> list[int]:
        batcher, seen = mixed(ledger, {"a": Portion(reuse=3)}, limit=1), list[int]()
        await put(batcher, *(group("a", BUDGET) for _ in range(3)))
        for version in (0, 0, 0, 1, 2):
            try:
                tokens = (await asyncio.wait_for(taken(batcher, version=version), 0.01)).total()
            except TimeoutError:
                tokens = 0
            seen.append(tokens)
            ledger.trained_by[POLICY] += tokens
            ledger.check(queued=batcher.num_tokens)
        batcher.discard_rest()
        ledger.check(queued=0)
        return seen

    # The first group three times; the second, and the third, which would be too old unused.
    assert asyncio.run(story()) == [100, 100, 100, 200, 0]
    assert ledger.generated == 300
    assert not ledger.filtered


def test_no_more_than_a_second_share_is_taken_for_its_age() -> None:
    ledger = Ledger()

    async def story() -> list[int]:
        batcher, seen = mixed(ledger, HALVES, limit=1), list[int]()
        await put(batcher, *(group(name, 10) for name in HALVES for _ in range(30)))
        for version in (0, 1):
            step = await taken(batcher, version=version)
            assert step["a"] == step["b"]
            seen.append(step.total())
        return seen

    assert asyncio.run(story()) == [100, 200]


def test_a_group_with_too_few_plays_that_ended_is_left_out() -> None:
    """Also those without a sample count: in these groups two plays have some."""
    ledger = Ledger()

    async def story() -> Counter[str]:
        batcher = mixed(ledger, {"a": Portion(min_group_size=4)})
        await put(batcher, group("a", 90, plays=3), group("a", 110, plays=4))
        return await taken(batcher)

    assert asyncio.run(story()) == {"a": 110}
    assert ledger.filtered == {"small_group": 90}


def test_a_step_that_failed_is_not_charged() -> None:
    async def story() -> None:
        batcher = mixed(Ledger(), HALVES)
        await put(batcher, *(group(name, 30) for name in HALVES for _ in range(3)))
        before = batcher.state(), batcher.queued
        await batcher.take({POLICY: 0})
        assert batcher.state() != before[0]
        batcher.put_back()
        assert (batcher.state(), batcher.queued) == before

    asyncio.run(story())


async def admits(batcher: Batcher, arena: str) -> bool:
    try:
        await asyncio.wait_for(batcher.admit(arena), 0.01)
    except TimeoutError:
        return False
    return True


def test_an_arena_plays_only_what_its_share_will_need_in_time() -> None:
    async def story() -> list[bool]:
        batcher = mixed(Ledger(), {"a": Portion(0.9), "b": Portion(0.1)}, limit=1)
        await put(batcher, *(group(name, 10) for name in ("a", "b") for _ in range(2)))
        return [await admits(batcher, name) for name in ("a", "b")]

    assert asyncio.run(story()) == [True, False]


def test_without_lag_one_group_is_played_at_a_time_by_the_arena_that_lacks_most() -> None:
    async def story() -> list[bool]:
        batcher = mixed(Ledger(), {"a": Portion(0.3), "b": Portion(0.7)}, limit=0)
        found = [await admits(batcher, name) for name in ("a", "b", "b")]
        return found

    assert asyncio.run(story()) == [False, True, False]


def test_shares_that_do_not_add_up_are_named() -> None:
    with pytest.raises(ConfigError, match=r"share in the mix add up to 0\.9: a=0\.5, b=0\.4"):
        check_shares({"a": Portion(0.5), "b": Portion(0.4)})
    with pytest.raises(ConfigError, match=r"share_end in the mix add up to 1\.1"):
        check_shares({"a": replace(HALVES["a"], share_end=0.6), "b": Portion(0.5)})
