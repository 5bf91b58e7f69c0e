"""What plays cost beside the model, with a client that answers at once.

uv run python tests/bench/arenas.py --json
"""

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parents[1])  # the folder of the package bench

import asyncio
import tracemalloc
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from random import Random
from time import perf_counter, sleep
from typing import Any

import psutil
from bench.command import Ratio, run, speed_ratio
from bench.exact import exact_evaluation
from bench.rounds import Workload

from legos.arena.arena import Arena, GameArena
from legos.arena.game import Game
from legos.bench.turns import medians
from legos.play.step import play_all
from legos.play.table import Table
from legos.protocols import Seat
from legos.records.episode import Episode, Task
from legos.records.message import Completion, Prompt, Sampling
from legos.records.names import POLICY

__all__ = ["RATIOS", "bench_arenas"]

RATIOS: Mapping[str, Ratio] = {
    "turn_overhead_us": Ratio(
        "microseconds of a turn of a coroutine, beside its client", 60, at_most=True
    ),
    "game_vs_coroutine": Ratio(
        "time of 1,000 plays of a game with 168 positions, against each as a coroutine",
        0.5,
        at_most=True,
    ),
    "waiting_plays_mib": Ratio(
        "memory of 10,000 plays that wait at the same time, MiB", 1024, at_most=True
    ),
    "waiting_plays_resident_mib": Ratio(
        "resident memory by which a process grows for them, MiB", 1024, at_most=True
    ),
    "slow_tool_throughput": Ratio(
        "speed of 64 simultaneous plays while others wait for a tool of 1 s, against none", 0.95
    ),
    "slow_judge_throughput": Ratio(
        "the same while others wait for a judge that replies after 1 s", 0.95
    ),
    "evaluation_score_calls": Ratio(
        "calls that score the 4,520 decisions of tictactoe with the built-in model",
        1,
        at_most=True,
    ),
}
"""Name of each ratio -> its meaning and target."""

TURNS = 8  # turns of a play
SLOW = 8  # plays that wait for something slow
STARTS = 21  # start positions of a game with few positions, as nim has
MIB = 1 << 20


def bench_arenas(work: Workload) -> Mapping[str, Any]:
    """Measure turns, waiting plays, plays whose tools or judges are slow, and an evaluation."""
    num_plays = work.size(1000, 50)
    us = 1e6 / (num_plays * TURNS)
    few, many = _Count(STARTS), _Count(1 << 60)
    coroutine = _seconds_of_plays(_ByCoroutine, few, num_plays)
    pairs = work.part(0.3).in_turn(_seconds_of_plays(GameArena, few, num_plays), coroutine, least=5)
    different = work.part(0.2).in_turn(
        _seconds_of_plays(GameArena, many, num_plays), coroutine, least=5
    )
    coroutine_s = medians(pairs)[1]
    num_waiting = work.size(10_000, 200)
    evaluation = exact_evaluation(work.size("tictactoe", "nim"))
    return {
        "turn_us": {
            "game": medians(pairs)[0] * us,
            "game_all_positions_different": medians(different)[0] * us,
            "coroutine": coroutine_s * us,
        },
        "waiting_plays": num_waiting,
        "exact_evaluation": evaluation,
        "ratios": {
            "turn_overhead_us": coroutine_s * us,
            "game_vs_coroutine": 1.0 / speed_ratio(pairs),
            "waiting_plays_mib": _memory_of_waiting(num_waiting) / MIB,
            "waiting_plays_resident_mib": _in_new_process(_resident_of_waiting, num_waiting) / MIB,
            "slow_tool_throughput": _slow_throughput(work.part(0.5), "tool"),
            "slow_judge_throughput": _slow_throughput(work.part(0.5), "judge"),
            "evaluation_score_calls": evaluation["score_calls"],
        },
    }


class _Instant:
    """A client that answers with a legal choice at once, of one token.

    As an engine does, it answers all questions of one turn of the event loop together, in the next.
    """

    def __init__(self) -> None:
        self._asked: list[tuple[str, Callable[[Completion], Any]]] = []

    async def complete(
        self, prompt: Prompt, sampling: Sampling, *, adapter: str = POLICY
    ) -> Completion:
        """Answer after one turn of the event loop."""
        future: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()
        self.begin(sampling, sampling.seed, future.set_result)
        return await future

    def prepare(self, prompt: Prompt, sampling: Sampling, *, adapter: str = POLICY) -> Sampling:
        """Prepare a question."""
        return sampling

    def begin(self, prepared: Sampling, seed: int, done: Callable[[Completion], Any]) -> int:
        """Answer in the next turn of the event loop."""
        if not self._asked:
            asyncio.get_running_loop().call_soon(self._answer)
        choices = prepared.choices
        self._asked.append((choices[seed % len(choices)], done))
        return 0

    def _answer(self) -> None:
        asked, self._asked = self._asked, []
        for text, done in asked:
            done(
                Completion(
                    text=text, prompt_ids=(1,), token_ids=(2,), logprobs=(-1.0,), versions=(0,)
                )
            )

    def cancel(self, number: int) -> None:
        """Nothing waits."""


class _Count(Game):
    """Two roles alternate; a state is the number of turns left and the number of its start."""

    roles = ("first", "second")

    def __init__(self, starts: int) -> None:
        self._starts = starts

    def start(self, rng: Random) -> tuple[int, int]:
        """One of so many starts, which have no position in common."""
        return TURNS, rng.randrange(self._starts)

    def turn(self, state: tuple[int, int]) -> str | None:
        """The roles alternate."""
        return self.roles[state[0] % 2] if state[0] else None

    def view(self, state: tuple[int, int], role: str) -> str:
        """The whole state."""
        return f"{state[0]} left of {state[1]}."

    def legal(self, state: tuple[int, int], role: str) -> Sequence[str]:
        """Two moves."""
        return ("left", "right")

    def play(self, state: tuple[int, int], move: str) -> tuple[int, int]:
        """One turn less."""
        return state[0] - 1, state[1]

    def payoff(self, state: tuple[int, int]) -> Mapping[str, float]:
        """Nobody wins."""
        return {"first": 0.0, "second": 0.0}


class _ByCoroutine(GameArena):
    """The same plays, each as a coroutine of its own."""

    async def play(self, t: Table) -> Mapping[str, float]:
        """Play as a user's arena does."""
        return await super().play(t)


def _seconds_of_plays(kind: type[GameArena], game: Game, number: int) -> Callable[[], float]:
    """A measurement: the seconds of so many simultaneous plays."""
    arena = kind(game, _Instant())
    tasks = arena.tasks(Random(0))

    def measure() -> float:
        plays = [(next(tasks), seed) for seed in range(number)]
        started = perf_counter()
        _checked(asyncio.run(play_all(arena, plays, asyncio.Semaphore(number))))
        return perf_counter() - started

    return measure


class _Waiting(Arena):
    """Plays that have each had one turn, and wait."""

    def __init__(self, number: int, measure: Callable[[], int]) -> None:
        super().__init__(_Instant())
        self._left = number
        self._all = asyncio.Event()
        self._measure = measure
        self.num_bytes = 0  # what is measured while all plays wait

    def tasks(self, rng: Random) -> Iterable[Task]:
        """One task without end."""
        while True:
            yield Task(id="wait")

    async def play(self, t: Table) -> Mapping[str, float]:
        """Ask once, and wait for all other plays."""
        await t.ask("player", f"{self._left}?", choices=("yes", "no"))
        self._left -= 1
        if not self._left:
            self.num_bytes = self._measure()
            self._all.set()
        await self._all.wait()
        return {"player": 0.0}


def _while_waiting(number: int, measure: Callable[[], int]) -> int:
    """What is measured while so many plays wait at the same time."""
    arena = _Waiting(number, measure)
    plays = [(Task(id=str(seed)), seed) for seed in range(number)]
    _checked(asyncio.run(play_all(arena, plays, asyncio.Semaphore(number))))
    return arena.num_bytes


def _memory_of_waiting(number: int) -> int:
    """Bytes of Python objects of so many plays that wait."""
    tracemalloc.start()
    try:
        return _while_waiting(number, lambda: tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()


def _resident_of_waiting(number: int) -> int:
    """Bytes by which the resident memory of this process grows until so many plays wait."""
    process = psutil.Process()
    _while_waiting(1, lambda: 0)  # what the first play imports and keeps
    before = process.memory_info().rss
    return _while_waiting(number, lambda: process.memory_info().rss - before)


def _in_new_process(measure: Callable[[int], int], number: int) -> int:
    """Measure in a process of its own, whose memory nothing else has used."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(measure, number).result()


class _SlowJudge(_Instant):
    """A judge on a server that needs a while for a reply."""

    def __init__(self, slow_s: float) -> None:
        super().__init__()
        self._slow_s = slow_s

    async def complete(
        self, prompt: Prompt, sampling: Sampling, *, adapter: str = POLICY
    ) -> Completion:
        """Wait, and take the first answer."""
        await asyncio.sleep(self._slow_s)
        return Completion(text="[A]", adapter=adapter)


class _Slow(Arena):
    """Plays of one turn; the tasks "tool" and "judge" then wait for one of these."""

    roles = ("player", "judge")

    def __init__(self, slow_s: float) -> None:
        super().__init__(_Instant())
        self._slow_s = slow_s
        self._judge = Seat(role="judge", client=_SlowJudge(slow_s), trainable=False)

    def seats(self, task: Task) -> Mapping[str, Seat]:
        """The judge is asked on its own server."""
        return {**super().seats(task), "judge": self._judge}

    async def play(self, t: Table) -> Mapping[str, float]:
        """Ask, and wait for whatever is slow."""
        await t.ask("player", "?", choices=("yes", "no"))
        await asyncio.sleep(0.004)  # the time of a model
        if t.task.id == "tool":
            await t.run(sleep, self._slow_s)
        if t.task.id == "judge":
            await t.judge("judge", "?", "yes", "no", both_orders=False)
        return {"player": 0.0, "judge": 0.0}


def _slow_throughput(work: Workload, what: str) -> float:
    """Speed of 64 simultaneous plays while some others wait for something, over none."""
    slow_s = work.size(1.0, 0.2)
    number = int(slow_s * 64 / 0.004)  # the seconds that the slow ones wait, and more
    arena = _Slow(slow_s)

    def seconds(slow: str) -> float:
        ids = (slow if n < SLOW else "fast" for n in range(number))
        plays = [(Task(id=name), seed) for seed, name in enumerate(ids)]
        fast = [play for play in plays if play[0].id == "fast"]

        async def play() -> float:
            slots = asyncio.Semaphore(64)
            others = [one for one in plays if one[0].id != "fast"]
            waiting = asyncio.create_task(play_all(arena, others, slots)) if others else None
            started = perf_counter()
            _checked(await play_all(arena, fast, slots))
            took = perf_counter() - started
            if waiting is not None:
                _checked(await waiting)
            return took

        return asyncio.run(play())

    pairs = work.part(0.3).in_turn(lambda: seconds(what), lambda: seconds("fast"), least=3)
    return speed_ratio(pairs)


def _checked(episodes: Sequence[Episode]) -> None:
    """Check that every play has ended, so that the figures are those of plays."""
    failed = [episode.error for episode in episodes if episode.error]
    assert not failed, failed[0]


if __name__ == "__main__":
    run(bench_arenas, RATIOS)
