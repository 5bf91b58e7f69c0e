"""The batcher keeps the arenas' shares of the tokens, and every token is accounted for once."""

import asyncio
from collections import Counter
from collections.abc import Mapping

import pytest
from fakes import FakeBackend, FakePublisher
from hypothesis import given, settings
from hypothesis import strategies as st
from one_buffer import GAME, alone

from arenas.kuhn import Kuhn
from arenas.nim import Nim
from legos.arena.arena import Arena, GameArena
from legos.config.schema import TrainingConfig
from legos.errors import ConfigError
from legos.fakes import ScriptedClient, make_sample
from legos.loop.batcher import Batcher
from legos.loop.buffer import Buffer
from legos.loop.deficits import Deficits, Spill, check_shares
from legos.loop.ledger import Ledger
from legos.loop.loop import batcher_of
from legos.loop.mix import mix_of
from legos.loop.trainer import PolicyTrainer
from legos.records.episode import Task
from legos.records.group import Group
from legos.records.names import POLICY

BUDGET = 100


def group(arena: str, tokens: int, *, version: int = 0) -> Group:
    samples = tuple(
        make_sample((1, 2), versions=version, group="task", rollout=f"task/{n % 2}/role")
        for n in range(tokens)
    )
    return Group(samples=samples, tokens_generated=tokens, arena=arena)


def mixed(
    ledger: Ledger, shares: Mapping[str, float], *, spill: Spill = "block", limit: int = 3
) -> Batcher:
    buffers = [Buffer(name, ledger, staleness_limit=limit) for name in shares]
    deficits = Deficits(shares, tokens_per_step=BUDGET, spill=spill)
    return Batcher(buffers, min_samples=1, staleness_limit=limit, deficits=deficits)


async def put(batcher: Batcher, *groups: Group) -> None:
    for each in groups:
        await batcher.put(each)


async def taken(batcher: Batcher, *, version: int = 0) -> Counter[str]:
    """The tokens of each arena in the next step, which is then complete."""
    step = await asyncio.wait_for(batcher.take({POLICY: version}), 1)
    await batcher.release({POLICY: version})
    tokens = Counter[str]()
    for batch in step:
        tokens[batch.arena] += len(batch.samples)
    return tokens


HALVES = {"a": 0.5, "b": 0.5}


@pytest.mark.slow
@settings(max_examples=30)
@given(
    share=st.floats(0.1, 0.9),
    sizes=st.tuples(st.integers(1, 40), st.integers(1, 250)),
)
def test_shares_hold_to_one_group_whatever_the_size_of_groups(
    share: float, sizes: tuple[int, int]
) -> None:
    shares = {"a": share, "b": 1 - share}
    groups = dict(zip(shares, sizes, strict=True))

    async def story() -> Counter[str]:
        batcher, total = mixed(Ledger(), shares), Counter[str]()
        for _ in range(20):
            for name, size in groups.items():
                while batcher.buffers[name].num_tokens < BUDGET + size:
                    await put(batcher, group(name, size))
            total += await taken(batcher)
        return total

    total = asyncio.run(story())
    everything = total.total()
    for name, expected in shares.items():
        assert abs(total[name] - expected * everything) <= max(sizes)


@pytest.mark.parametrize("spill", ["block", "borrow"])
def test_an_arena_that_lacks_tokens_is_waited_for_or_borrows(spill: Spill) -> None:
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
        await asyncio.wait_for(batcher.admit(Group(arena=arena)), 0.01)
    except TimeoutError:
        return False
    return True


def test_an_arena_plays_only_what_its_share_will_need_in_time() -> None:
    async def story() -> list[bool]:
        batcher = mixed(Ledger(), {"a": 0.9, "b": 0.1}, limit=1)
        await put(batcher, *(group(name, 10) for name in ("a", "b") for _ in range(2)))
        return [await admits(batcher, name) for name in ("a", "b")]

    assert asyncio.run(story()) == [True, False]


def test_without_lag_one_group_is_played_at_a_time_by_the_arena_that_lacks_most() -> None:
    async def story() -> list[bool]:
        batcher = mixed(Ledger(), {"a": 0.3, "b": 0.7}, limit=0)
        found = [await admits(batcher, name) for name in ("a", "b", "b")]
        return found

    assert asyncio.run(story()) == [False, True, False]


@pytest.mark.parametrize(
    ("limit", "text"), [(0, "5 of 8 plays, 3 running"), (1, "7 of 8 plays, 5 running")]
)
def test_the_plays_of_the_next_step_are_counted(limit: int, text: str) -> None:
    """With lag, those of the groups that have ended or end first."""

    async def story() -> str:
        batcher = alone(Ledger(), min_samples=1, staleness_limit=limit, tasks_per_step=2)
        assert batcher.plays.text == ""
        tasks = [(0, 1)] if limit == 0 else [(0,), (1,), (2,), (3,)]
        admitted = list[Group]()
        for numbers in tasks:
            plays = ((Task(id="a"), 0),) * (4 * len(numbers))
            planned = Group(arena=GAME, plays=plays, numbers=numbers, num_tasks=len(numbers))
            admitted.append(await batcher.admit(planned))
            batcher.count(planned).begun = len(plays)
        for planned, ended in zip(admitted, (5,) if limit == 0 else (4, 2, 3, 2), strict=True):
            batcher.count(planned).ended = ended
        if limit:
            await batcher.put(admitted[0])
        return batcher.plays.text

    assert asyncio.run(story()) == text


def test_shares_that_do_not_add_up_are_named() -> None:
    with pytest.raises(ConfigError, match=r"shares in the mix add up to 0\.9: a=0\.5, b=0\.4"):
        check_shares({"a": 0.5, "b": 0.4}, "in the mix")


@pytest.mark.parametrize(("tokens", "budget"), [(None, 2048), (600, 600)])
def test_a_script_sets_the_budget_of_its_steps_as_a_run_does(
    tokens: int | None, budget: int
) -> None:
    settings = TrainingConfig(tokens_per_step=tokens, spill="borrow")
    trainer = PolicyTrainer(FakeBackend(), FakePublisher(), settings)
    nim, kuhn = (GameArena(game(), ScriptedClient([])) for game in (Nim, Kuhn))
    deficits = batcher_of(trainer, mix_of([nim, kuhn]))._deficits
    assert deficits is not None
    assert (deficits.part("nim"), deficits.borrow) == (budget / 2, True)
    single = batcher_of(trainer, mix_of(nim))._deficits
    assert (single and single.tokens_per_step) == tokens


def test_an_arena_that_is_listed_twice_is_named() -> None:
    class Silent(Arena):
        """Nobody says anything."""

    client = ScriptedClient([])
    arena = Silent(client)
    for listed in ([arena, arena], [arena, Silent(client)]):
        with pytest.raises(ConfigError, match=rf"arena '{arena.name}' is in the mix 2 times"):
            mix_of(listed)
