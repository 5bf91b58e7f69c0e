"""Tournaments: exact and played results agree, seats are balanced, and what fails is counted."""

import asyncio
import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from itertools import combinations
from math import comb
from typing import Any

import pytest
from written_game import Written

from arenas.goofspiel import Goofspiel
from arenas.kuhn import Kuhn
from legos.arena.arena import Arena, GameArena
from legos.arena.endings import Void
from legos.errors import ArenaError, EngineError
from legos.fakes import Asked, ScriptedClient
from legos.league.cast import Cast
from legos.league.payoffs import Tally
from legos.league.tournament import (
    Results,
    all_pairs,
    exact_results,
    mean_interval,
    played_results,
)
from legos.play.table import Table
from legos.protocols import Seat
from legos.records.count import Count
from legos.records.episode import Task

BOTS = ("random", "optimal")


class Duel(Arena):
    """Each says a text; the longer one wins. Records who sat where."""

    roles: tuple[str, ...] = ("left", "right")

    def __init__(self, client: ScriptedClient, roles: tuple[str, ...] = roles) -> None:
        super().__init__(client)
        self.roles = roles
        self.met: list[tuple[str, int, dict[str, str]]] = []  # task, seed of the play, seats

    def tasks(self, rng: Any) -> Any:
        while True:
            yield Task(id=f"{rng.getrandbits(20)}")

    def seated(self, task: Task, seed: int) -> Mapping[str, Seat]:
        seats = super().seated(task, seed)
        self.met.append((task.id, seed, {role: seat.name for role, seat in seats.items()}))
        return seats

    async def play(self, t: Table) -> Mapping[str, float]:
        said = {role: (await t.ask(role, t.task.id, parse=int)).parsed for role in self.roles}
        if 13 in said.values():
            raise Void("unlucky")
        if 7 in said.values():
            raise OSError("seven")
        t.reward(self.roles[0], 0.5)
        return {role: float(number) for role, number in said.items()}


def says(adapters: Mapping[str, str]) -> ScriptedClient:
    """A client that says what its adapter always says."""
    return ScriptedClient(lambda asked: adapters[asked.adapter])


def played(arena: Arena, pairs: Sequence[tuple[str, str]], **options: Any) -> Results:
    roles: Sequence[str] = options.pop("roles", arena.roles)
    given: dict[str, Any] = {"plays": 8, "seed": 3, **options}
    return asyncio.run(played_results(Cast(arena), pairs, roles, **given))


def exact(game: Any, members: Sequence[str]) -> Results:
    cast = Cast(GameArena(game))
    assert cast.tree is not None
    return asyncio.run(exact_results(cast, cast.tree, members))


@pytest.mark.slow
@pytest.mark.parametrize("game", [Kuhn(), Goofspiel(cards=3)])
def test_played_results_are_the_exact_ones_within_the_error_of_sampling(game: Any) -> None:
    sampled = played(GameArena(game, ScriptedClient([])), [BOTS], plays=2000).table
    computed = exact(game, BOTS).table
    assert computed.exact
    assert not sampled.exact
    for mine, theirs in (BOTS, BOTS[::-1]):
        for role in (None, *game.roles):
            found, expected = (table.tally(mine, theirs, role) for table in (sampled, computed))
            low, high = mean_interval(found, z=4.0)
            assert low < expected.mean < high
            error = 4.0 / math.sqrt(found.plays)
            assert found.score == pytest.approx(expected.score, abs=error)
            assert found.draws / found.plays == pytest.approx(
                expected.draws / expected.plays, abs=error
            )


def test_both_orders_of_seats_get_the_same_tasks_and_seeds() -> None:
    arena = Duel(says({"a": "1", "b": "2", "c": "3"}))
    results = played(arena, all_pairs("abc"), plays=9)
    assert (results.plays, results.failed, results.void) == (30, 0, 0)  # 9 is rounded up
    orders: defaultdict[tuple[str, ...], set[tuple[str, int]]] = defaultdict(set)
    for task, seed, seats in arena.met:
        orders[seats["left"], seats["right"]].add((task, seed))
    assert {order: len(plays) for order, plays in orders.items()} == dict.fromkeys(
        [(one, other) for one in "abc" for other in "abc" if one != other], 5
    )
    assert all(orders[one, other] == orders[other, one] for one, other in combinations("abc", 2))
    assert not orders["a", "b"] & orders["a", "c"]
    for one, other in combinations("abc", 2):
        for role in arena.roles:
            lost, won = results.table.tally(one, other, role), results.table.tally(other, one, role)
            assert (lost.losses, won.wins) == (5, 5)
    assert results.table.tally("a", "c", "left").mean == 1.5  # with the reward of its turn
    assert results.table.tally("a", "c", "right").mean == 1.0


def test_plays_repeat_with_their_seed_and_with_no_other() -> None:
    def state(seed: int, concurrency: int) -> object:
        arena = GameArena(Kuhn(), ScriptedClient([]))
        return played(arena, [BOTS], plays=50, seed=seed, concurrency=concurrency).table.state()

    assert state(1, 256) == state(1, 3) != state(2, 256)


def test_plays_of_all_pairs_are_asked_at_the_same_time() -> None:
    class Together(ScriptedClient):
        """Answers once all adapters have been asked."""

        def __init__(self) -> None:
            super().__init__(lambda asked: "1")
            self.asks: Counter[str] = Counter()
            self.met = asyncio.Event()

        async def complete(self, *args: Any, adapter: str = "", **options: Any) -> Any:
            self.asks[adapter] += 1
            if len(self.asks) == 4:
                self.met.set()
            await self.met.wait()
            return await super().complete(*args, adapter=adapter, **options)

    async def within() -> Results:
        async with asyncio.timeout(60):
            arena = Duel(Together())
            return await played_results(
                Cast(arena), all_pairs("abcd"), arena.roles, plays=2, seed=0
            )

    assert asyncio.run(within()).plays == 12


def test_an_arena_that_holds_out_no_task_is_named() -> None:
    class Trains(Duel):
        def held_out(self, rng: Any) -> Any:
            return []

    with pytest.raises(ArenaError, match=r"'trains' have nothing to play: its held_out\(\) is"):
        played(Trains(says({})), [("one", "other")])


def test_the_plays_that_have_ended_are_counted_one_by_one() -> None:
    count, seen = Count(), set[tuple[int, int]]()

    class Looking(ScriptedClient):
        async def complete(self, *args: Any, **options: Any) -> Any:
            seen.add((count.ended, count.planned))
            return await super().complete(*args, **options)

    arena = Duel(Looking(lambda asked: str(len(asked.adapter))))
    played(arena, all_pairs(["a", "bb", "ccc"]), plays=4, concurrency=1, count=count)
    assert seen == {(ended, 12) for ended in range(12)}
    assert count == Count(12, begun=12, ended=12)


def test_where_three_sit_one_meets_two_of_the_other_in_every_seat() -> None:
    roles = ("x", "y", "z")
    arena = Duel(says({"a": "1", "b": "2"}), roles)
    results = played(arena, [("a", "b")], plays=12)
    seatings = Counter(tuple(seats.values()) for _, _, seats in arena.met)
    assert seatings == dict.fromkeys([*map(tuple, ("abb", "bab", "bba", "baa", "aba", "aab"))], 2)
    assert [results.table.tally("a", "b", role).losses for role in roles] == [2, 2, 2]
    assert [results.table.tally("b", "a", role).wins for role in roles] == [2, 2, 2]


def test_roles_that_are_not_taken_keep_the_players_of_the_arena() -> None:
    arena = Duel(says({"a": "1", "b": "2", "policy": "3"}), ("x", "y", "judge"))
    results = played(arena, [("a", "b")], roles=("x", "y"))
    assert {seats["judge"] for _, _, seats in arena.met} == {"policy"}
    assert results.table.tally("a", "b").losses == 8


def test_members_play_an_arena_that_the_arena_keeps_too() -> None:
    class Keeps(Duel):
        async def play(self, t: Table) -> Any:
            [child] = await t.spawn(vars(self)["inner"], t.task)
            return dict(zip(self.roles, child.returns.values(), strict=True))

    client = says({"a": "1", "b": "2", "policy": "7"})
    arena, inner = Keeps(client), Duel(client, ("left", "other"))
    vars(arena)["inner"] = inner
    results = played(arena, [("a", "b")])
    assert results.table.tally("a", "b").plays == 8
    seatings = Counter(tuple(seats.values()) for _, _, seats in inner.met)
    assert seatings == {("a", "a"): 4, ("b", "b"): 4}  # ``other`` is no role of the arena


def test_a_member_meets_itself_in_plays_that_differ() -> None:
    arena = Duel(says({"a": "1"}))
    tally = played(arena, [("a", "a")]).table.tally("a", "a")
    assert (tally.wins, tally.losses) == (4, 4)  # as left it has the reward of its turn
    assert len({(task, seed) for task, seed, _ in arena.met}) == 8


def test_failed_and_void_plays_and_forfeits_are_counted_apart() -> None:
    numbers = {"a": "1", "b": "2", "late": "7", "void": "13", "mute": "nothing"}
    results = played(Duel(says(numbers)), [("a", who) for who in numbers if who != "a"])
    table = results.table
    assert (results.plays, results.failed, results.void) == (32, 8, 8)
    assert "8 of 32 plays of arena 'duel' failed" in (results.failure or "")
    assert "seven" in (results.failure or "")
    assert table.tally("a", "late") == table.tally("void", "a") == Tally()
    assert (table.tally("a", "b").plays, table.tally("a", "b").forfeits) == (8, 0)
    mute = table.tally("mute", "a")
    assert (mute.losses, mute.forfeits, mute.mean) == (8, 8, -1.0)
    assert (table.tally("a", "mute").wins, table.tally("a", "mute").forfeits) == (8, 0)


def test_each_adapter_is_scored_once() -> None:
    class Scoring(ScriptedClient):
        """Gives the first choice almost all of the probability, and one adapter the last."""

        def __init__(self) -> None:
            super().__init__([])
            self.scored: Counter[str] = Counter()

        async def score(self, prompts: Any, *, adapter: str, **_: Any) -> Any:
            self.scored[adapter] += 1
            first, last = math.log(0.9), math.log(0.1)
            return [[last, first] if adapter == "bold" else [first, last] for _, _ in prompts]

    client = Scoring()
    cast = Cast(GameArena(Kuhn(), client), live={("timid", "policy"): "engine-1"})
    assert cast.tree is not None
    members = ["timid", "bold", "random"]
    table = asyncio.run(exact_results(cast, cast.tree, members)).table
    assert client.scored == {"engine-1": 1, "bold": 1}
    assert set(table.members) == set(members)
    assert not client.asked
    rewards = table.rewards(members)
    assert rewards == pytest.approx(-rewards.T)
    assert rewards[0, 1] != 0


def test_a_member_that_cannot_be_scored_leaves_no_other_behind() -> None:
    ended: list[str] = []

    class Failing(ScriptedClient):
        async def score(self, prompts: Any, *, adapter: str, **_: Any) -> Any:
            if adapter == "broken":
                raise EngineError("no such adapter")
            try:
                await asyncio.Event().wait()
            finally:
                ended.append(adapter)

    async def scored() -> None:
        cast = Cast(GameArena(Kuhn(), Failing([])))
        assert cast.tree is not None
        with pytest.raises(EngineError, match="no such adapter"):
            await exact_results(cast, cast.tree, ["whole", "broken"])
        assert ended == ["whole"]

    asyncio.run(scored())


def test_what_rounding_leaves_of_a_payoff_is_no_win_of_another_size() -> None:
    left = 0.1 + 0.2 - 0.3
    game = Written(
        {
            "start": ("a", "", {"x": "won", "y": "drawn"}),
            "won": (1.0, -1.0),
            "drawn": (left, -left),
        }
    )
    cast = Cast(GameArena(game))
    assert cast.tree is not None
    assert asyncio.run(exact_results(cast, cast.tree, ["random"])).unit is None


def test_the_interval_of_a_mean_covers_it_and_keeps_a_width() -> None:
    for chance in (0.02, 0.3, 0.5, 0.9):
        for plays in (10, 20, 200):
            covered = 0.0
            for wins in range(plays + 1):
                tally = Tally(wins, 0, plays - wins, 2 * wins - plays, plays)
                low, high = mean_interval(tally)
                if low <= 2 * chance - 1 <= high:
                    covered += comb(plays, wins) * chance**wins * (1 - chance) ** (plays - wins)
            assert covered > 0.925
    low, high = mean_interval(Tally(20, 0, 0, 20, 20))
    assert 0.5 < low < 1.0 < high
    assert mean_interval(Tally(0, 64, 0, 0, 0)) == pytest.approx((-0.0576, 0.0576), abs=1e-4)
    wide = mean_interval(Tally(5000, 0, 5000, 0, 10_000))
    assert wide == pytest.approx((-0.0196, 0.0196), abs=1e-4)


@pytest.mark.parametrize(
    ("members", "message"),
    [((), "two different members and has none;"), (("random", "random"), "and has random; name")],
)
def test_one_member_has_nobody_to_meet(members: Sequence[str], message: str) -> None:
    with pytest.raises(ArenaError, match=message):
        all_pairs(members)


def test_one_free_seat_is_no_tournament() -> None:
    arena = Duel(says({}))
    with pytest.raises(ArenaError, match=r"arena 'duel' cannot meet: it seats one player \(left\)"):
        played(arena, [("a", "b")], roles=("left",))


def test_an_arena_that_breaks_the_rules_ends_the_tournament() -> None:
    class Silent(Duel):
        async def play(self, t: Table) -> Any:
            return None

    with pytest.raises(ArenaError, match="returned None"):
        played(Silent(says({})), [("a", "b")])


def test_plays_leave_the_arena_as_it_was() -> None:
    def scripted(asked: Asked) -> str:
        return "1"

    arena = Duel(ScriptedClient(scripted))
    matchmaker, state = arena.matchmaker, arena.state()
    played(arena, [("a", "b")])
    assert arena.matchmaker is matchmaker
    assert arena.state() == state
