"""Plays inside plays: children, their groups and failures, and draws that no timing changes."""

import asyncio
import random
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

import pytest

from legos.arena.arena import Arena
from legos.arena.game import Game
from legos.credit import DrGRPOCredit, GRPOCredit
from legos.errors import ArenaError, EngineError
from legos.fakes import ScriptedClient
from legos.play.one_task import play_task
from legos.play.step import play_all
from legos.play.table import Table
from legos.protocols import Seat
from legos.records.episode import Episode, Task
from legos.records.group import Group

NUMBER: Any = 3
Play = Callable[[Table], Awaitable[Mapping[str, float]]]


def step(arena: Arena, concurrency: int = 8) -> Group:
    return asyncio.run(arena.step(concurrency=concurrency))


class Solver(Arena):
    """One seat, played as it is told."""

    def __init__(self, play: Play) -> None:
        super().__init__(ScriptedClient(lambda asked: "x" * (asked.sampling.seed % 4)))
        self._play = play

    async def play(self, t: Table) -> Mapping[str, float]:
        return await self._play(t)


async def solve(t: Table) -> Mapping[str, float]:
    """The longer the answer, the better."""
    return {"player": float(len((await t.ask("player", "solve")).answer))}


class Family(Arena):
    """A parent that spawns solvers."""

    tasks_per_step = 2
    group_size = 1

    def __init__(self, solve: Play, *, train: bool = True, depth: int = 1, n: int = 3) -> None:
        super().__init__(
            ScriptedClient(lambda asked: "x" * (asked.sampling.seed % 4)),
            credit_assigner=DrGRPOCredit(),
        )
        self._solve = solve
        self._train = train
        self._depth = depth
        self._n = n

    def tasks(self, rng: random.Random) -> Iterable[Task]:
        number = 0
        while True:
            yield Task(id=f"p{number}")
            number += 1

    async def play(self, t: Table) -> Mapping[str, float]:
        await t.ask("player", "propose")
        if self._depth > 1:
            inner = Family(self._solve, depth=self._depth - 1, n=self._n)
            children = await t.spawn(inner, Task(id=f"{t.task.id}.0"), n=2, train=self._train)
        else:
            solver = Solver(self._solve)
            tasks = [Task(id=f"{t.task.id}/{problem}") for problem in "ab"]
            children = await t.spawn(solver, tasks, n=self._n, train=self._train)
        await t.ask("player", "and now?")
        return {"player": float(len(children))}


def test_children_are_played_compared_and_trained_on() -> None:
    batch = step(Family(solve))
    assert [len(e.children) for e in batch.episodes] == [6, 6]
    ids = [child.task.id for child in batch.episodes[0].children]
    assert ids == ["p0/a"] * 3 + ["p0/b"] * 3
    groups = {s.group for s in batch.samples if s.group.startswith("solver/")}
    assert groups == {f"solver/p{parent}/{problem}" for parent in "01" for problem in "ab"}
    children = [child for e in batch.episodes for child in e.children]
    for group in groups:
        rewards = [c.rewards["player"] for c in children if f"solver/{c.task.id}" == group]
        advantages = [s.advantages[0] for s in batch.samples if s.group == group]
        mean = sum(rewards) / 3
        assert advantages == pytest.approx([reward - mean for reward in rewards])
    assert batch.tokens_generated == sum(len(s.positions) for s in batch.samples)
    assert batch.metrics["arena/episodes"] == 14.0


def test_one_place_is_enough_for_any_depth() -> None:
    async def limited() -> Group:
        return await asyncio.wait_for(Family(solve, depth=3).step(concurrency=1), timeout=30)

    batch = asyncio.run(limited())
    grandchildren = [g for e in batch.episodes for c in e.children for g in c.children]
    assert len(grandchildren) == 2 * 2 * 2
    assert all(len(g.children) == 6 for g in grandchildren)


def test_a_failing_child_is_told_to_its_parent_and_to_nobody_else() -> None:
    async def solve_some(t: Table) -> Mapping[str, float]:
        await t.ask("player", "solve")
        if t.task.id.endswith("a"):
            raise ValueError("unsolvable")
        return {"player": 1.0}

    batch = step(Family(solve_some), concurrency=1)
    assert [e.error for e in batch.episodes] == [None, None]
    for episode in batch.episodes:
        assert ["unsolvable" in (c.error or "") for c in episode.children] == [True] * 3 + [
            False
        ] * 3
    failed = sum(e.num_tokens for p in batch.episodes for e in p.children if e.error)
    assert batch.tokens_discarded == {"failed": failed}
    assert not any(s.group.endswith("a") for s in batch.samples)


def test_a_failing_child_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def fail(t: Table) -> Mapping[str, float]:
        raise ValueError("the child is ill")

    step(Family(fail))
    assert "12 of 12 plays of arena 'solver' failed" in caplog.text
    assert "the child is ill" in caplog.text


@pytest.mark.parametrize(
    ("tasks", "n", "message"),
    [
        ("k1", 1, "spawn(...) got 'k1', a str; expected a Task, or a list of them"),
        (None, 1, "spawn(...) got None; expected a Task, or a list of them"),
        (["k1"], 1, "the list of spawn(...) yielded 'k1', a str; expected a Task, such as"),
        (Task(id=NUMBER), 1, "the list of spawn(...) yielded a Task whose id is 3, an int; "),
        (Task(id="k"), -1, "n of spawn(...) is -1, an int; expected a whole number, 0 or more"),
        (Task(id="k"), 1.5, "n of spawn(...) is 1.5, a float; expected a whole number, 0 or more"),
    ],
)
def test_tasks_that_cannot_be_spawned(tasks: Any, n: Any, message: str) -> None:
    class Careless(Family):
        async def play(self, t: Table) -> Mapping[str, float]:
            await t.spawn(Solver(solve), tasks, n)
            return {"player": 0.0}

    with pytest.raises(ArenaError, match=re.escape(message)):
        step(Careless(solve))


def test_children_that_are_not_to_be_trained_are_only_recorded() -> None:
    batch = step(Family(solve, train=False, depth=2))
    assert {s.group for s in batch.samples} == {"family/p0", "family/p1"}
    descendants = [c for e in batch.episodes for c in e.children]
    descendants += [g for c in descendants for g in c.children]
    assert len(descendants) == 4 + 24
    assert all(r.policy is None and r.turns for c in descendants for r in c.rollouts)


@pytest.mark.parametrize("limit", [1, 2])
def test_children_and_parents_share_one_limit(limit: int) -> None:
    inside = 0
    most = 0

    async def busy(t: Table) -> Mapping[str, float]:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        await t.ask("player", "?")
        inside -= 1
        return {"player": 0.0}

    async def parent(t: Table) -> Mapping[str, float]:
        await busy(t)
        await t.spawn(Solver(busy), [Task(id="a"), Task(id="b")])
        return await busy(t)

    async def all_of_them() -> None:
        plays = [(Task(id=f"{n}"), n) for n in range(6)]
        await play_all(Solver(parent), plays, asyncio.Semaphore(limit))

    asyncio.run(all_of_them())
    assert most == limit


def test_when_the_engine_dies_under_a_child_the_step_ends() -> None:
    async def die(t: Table) -> Mapping[str, float]:
        raise EngineError("the engine was closed")

    with pytest.raises(EngineError, match="the engine was closed"):
        step(Family(die), concurrency=1)


class Child(Arena):
    """A child that anybody can be asked to play."""

    async def play(self, t: Table) -> Mapping[str, float]:
        await t.ask("player", "child?")
        return {"player": 0.0}


class Parent(Arena):
    """Spawns a class, not an arena."""

    def tasks(self, rng: random.Random) -> Iterable[Task]:
        yield Task(id="p")

    async def play(self, t: Table) -> Mapping[str, float]:
        await t.spawn(Child, Task(id="c"))
        await t.ask("player", "parent?")
        return {"player": 0.0}


class Countdown(Game):
    """Whoever takes the last one wins."""

    roles = ("first", "second")

    def __init__(self, most: int = 1) -> None:
        self.most = most

    def start(self, rng: random.Random) -> tuple[int, int]:
        return 2, 0

    def turn(self, state: tuple[int, int]) -> str | None:
        return self.roles[state[1]] if state[0] else None

    def view(self, state: tuple[int, int], role: str) -> str:
        return str(state[0])

    def legal(self, state: tuple[int, int], role: str) -> list[str]:
        return [str(n + 1) for n in range(min(self.most, state[0]))]

    def play(self, state: tuple[int, int], move: str) -> tuple[int, int]:
        return state[0] - int(move), 1 - state[1]

    def payoff(self, state: tuple[int, int]) -> Mapping[str, float]:
        return {role: -1.0 if n == state[1] else 1.0 for n, role in enumerate(self.roles)}


@pytest.mark.parametrize("game", [Countdown, Countdown(most=1)], ids=["class", "instance"])
def test_a_game_is_spawned_as_an_arena_is(game: Any) -> None:
    class Host(Parent):
        async def play(self, t: Table) -> Mapping[str, float]:
            [child] = await t.spawn(game, Task(id="c", data=(2, 0)))
            assert child.error is None
            return {"player": child.rewards["second"]}

    client = ScriptedClient(lambda _: "1")
    batch = step(Host(client, credit_assigner=GRPOCredit(), temperature=0.5))
    assert {episode.rewards["player"] for episode in batch.episodes} == {1.0}
    assert {sample.role for sample in batch.samples} == {"first", "second"}
    assert {asked.sampling.temperature for asked in client.asked} == {0.5}


@pytest.mark.parametrize("thing", ["nim", int, Task(id="c")])
def test_what_is_neither_arena_nor_game_is_refused_by_name(thing: Any) -> None:
    class Host(Parent):
        async def play(self, t: Table) -> Mapping[str, float]:
            await t.spawn(thing, Task(id="c"))
            return {"player": 0.0}

    with pytest.raises(ArenaError) as raised:
        step(Host(ScriptedClient([]), credit_assigner=GRPOCredit()))
    assert f"spawn() got {thing!r}" in str(raised.value)
    assert "expected an Arena or a Game, or the class of one" in str(raised.value)


def test_a_child_by_its_class_asks_as_its_parent_does() -> None:
    client = ScriptedClient(lambda _: "a")
    step(Parent(client, credit_assigner=GRPOCredit(), temperature=0.5))
    assert {asked.sampling.temperature for asked in client.asked} == {0.5}
    assert {asked.prompt for asked in client.asked} == {"child?", "parent?"}


JUDGE = ScriptedClient(lambda _: "j")


class Solve(Arena):
    """A child with a role of its parent, one that the parent has not, and a judge of its own."""

    roles = ("solver", "helper", "judge")

    def seats(self, task: Task) -> Mapping[str, Seat]:
        judge = Seat(role="judge", client=JUDGE, name="judge", trainable=False)
        return {**super().seats(task), "judge": judge}

    async def play(self, t: Table) -> Mapping[str, float]:
        await t.ask_all(dict.fromkeys(self.roles, "?"))
        return dict.fromkeys(self.roles, 0.0)


class Pose(Arena):
    """A fixed seat comes first; nobody is asked but in the spawned play."""

    roles = ("host", "proposer", "solver")
    tasks_per_step = group_size = 1

    def tasks(self, rng: random.Random) -> Iterable[Task]:
        yield Task(id="p")

    def seats(self, task: Task) -> Mapping[str, Seat]:
        host = Seat(role="host", client=JUDGE, name="host", trainable=False)
        rival = Seat(role="solver", client=JUDGE, name="rival", adapter="old", trainable=False)
        return {**super().seats(task), "host": host, "solver": rival}

    async def play(self, t: Table) -> Mapping[str, float]:
        await t.spawn(Solve, Task(id="c"))
        return dict.fromkeys(self.roles, 0.0)


def seated(child: Episode) -> list[tuple[str, str, str | None]]:
    """Player, answer and policy of each seat."""
    return [(r.seat, r.turns[0].completion.text, r.policy) for r in child.rollouts]


def test_the_players_of_a_play_sit_in_the_seats_of_a_child_by_its_class() -> None:
    client = ScriptedClient(lambda asked: "p" if asked.adapter == "policy" else "x")
    [episode] = step(Pose(client, credit_assigner=GRPOCredit())).episodes
    [child] = episode.children
    assert seated(child) == [("rival", "j", None), ("policy", "p", "policy"), ("judge", "j", None)]


def test_given_clients_play_their_roles_in_children_too_and_none_is_trained() -> None:
    one, two, three = (ScriptedClient(lambda _, said=said: said) for said in "123")
    players = {"host": one, "proposer": two, "solver": three}
    [child] = asyncio.run(play_task(Pose(), Task(id="p"), players)).children
    assert seated(child) == [("player", "3", None), ("player", "1", None), ("judge", "j", None)]


class Slow(ScriptedClient):
    """Answers after a number of turns of the event loop that differs from call to call."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__(lambda asked: f"{asked.sampling.seed % 5}")
        self._rng = rng

    async def complete(self, *args: Any, **options: Any) -> Any:
        for _ in range(self._rng.randrange(5)):
            await asyncio.sleep(0)
        return await super().complete(*args, **options)


class Pair(Arena):
    """Two seats that answer at once, and again as often as a random number says."""

    roles = ("a", "b")
    illegal = "retry"

    def tasks(self, rng: random.Random) -> Iterable[Task]:
        while True:
            yield Task(id=f"{rng.random()}")

    async def play(self, t: Table) -> Mapping[str, float]:
        for _ in range(t.rng.randrange(3)):
            await t.ask_all({"a": "?", "b": "?"}, choices=["1", "2", "3", "4"])
        child = await t.spawn(Pair.Child, Task(id=t.task.id), n=2)
        return {"a": sum(c.rewards["player"] for c in child), "b": t.rng.random()}

    class Child(Arena):
        async def play(self, t: Table) -> Mapping[str, float]:
            return {"player": float((await t.ask("player", "?")).answer)}


def told(episode: Episode) -> Any:
    """All that was drawn in an episode, children included."""
    return (
        episode.task.id,
        episode.seed,
        dict(episode.rewards),
        [[t.completion.text for t in rollout.turns] for rollout in episode.rollouts],
        [told(child) for child in episode.children],
    )


@pytest.mark.slow
def test_plays_are_the_same_whatever_the_concurrency_and_the_timing() -> None:
    played: list[Any] = []
    for concurrency in (1, 2, 5, 100):
        arena = Pair(Slow(random.Random(concurrency)), credit_assigner=GRPOCredit(), seed=3)
        batches = [step(arena, concurrency), step(arena, concurrency)]
        played.append([told(e) for batch in batches for e in batch.episodes])
    assert played[0] == played[1] == played[2] == played[3]
    seeds = [episode[1] for episode in played[0]]
    assert len(set(seeds)) == len(seeds)
    other = Pair(Slow(random.Random(1)), credit_assigner=GRPOCredit(), seed=4)
    assert told(step(other).episodes[0]) != played[0][0]
