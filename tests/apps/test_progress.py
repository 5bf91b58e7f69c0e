"""What the console shows of a run while no step ends."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from short_runs import FEW
from virtual_time import in_virtual_time

from legos.apps.progress import shown_while, trackers
from legos.cli.process import main
from legos.config.schema import RunConfig
from legos.errors import EngineError
from legos.records.episode import Episode, Rollout, Task, Turn
from legos.records.message import Completion, Message
from legos.run.folder import RunFolder
from legos.track.console import ConsoleTracker

SLOW = """
import asyncio
from pathlib import Path
from legos import Arena, Task


class Slow(Arena):
    def tasks(self, rng):
        yield Task(id="only")

    async def play(self, t):
        before = len(shown())
        for _ in range(200):
            if len(shown()) > before:
                break
            await asyncio.sleep(0.1)
        await t.ask("player", "Say a word.", max_tokens=3)
        return {"player": t.rng.random()}


def shown():
    place = Path("shown")
    return place.read_text() if place.exists() else ""
"""


class Shown:
    """A console that keeps what it was given, and a run that does one thing after the other."""

    def __init__(self, *doing: str) -> None:
        self._doing = [*doing]
        self.stopping = False
        self.gathered = ""
        self.example: Episode | None = None
        self.lines: list[tuple[str, bool]] = []

    @property
    def doing(self) -> str:
        return self._doing[0]

    def wait(self, doing: str, *, now: bool = False) -> None:
        self.lines.append((doing, now))
        if len(self.lines) % 3 == 0 and len(self._doing) > 1:
            self._doing.pop(0)

    def say(self, text: str) -> None:
        self.lines.append((text, True))


async def shown(run: Any, seconds: float, figures: Any) -> None:
    async with shown_while(run, run, figures):
        await asyncio.sleep(seconds)


def test_the_console_shows_for_how_long_and_how_fast() -> None:
    run, tokens = Shown("playing for step 1", "training step 1"), iter(range(0, 1000, 20))

    def figures() -> Mapping[str, float]:
        return {"tokens_generated_total": next(tokens)}

    in_virtual_time(shown(run, 5.5, figures))
    assert run.lines == [
        ("playing for step 1", False),
        ("playing for step 1, 1 s so far, 20 tokens/s", False),
        ("playing for step 1, 2 s so far, 20 tokens/s", False),
        ("training step 1", False),
        ("training step 1, 1 s so far, 20 tokens/s", False),
    ]


def test_the_console_shows_how_much_of_the_next_step_has_been_played() -> None:
    run = Shown("playing for step 1")
    run.gathered = "9 of 16 tasks"
    in_virtual_time(shown(run, 1.5, dict))
    assert run.lines == [("playing for step 1, 9 of 16 tasks", False)]


def test_a_stop_is_shown_at_once_also_where_the_engine_is_dead() -> None:
    def dead() -> Mapping[str, float]:
        raise EngineError("closed")

    run = Shown("playing for step 1", "stopping, after a checkpoint")
    run.stopping = True
    in_virtual_time(shown(run, 5.5, dead))
    assert [now for _, now in run.lines] == [True, False, False, True, False]


def test_without_a_console_nothing_is_asked() -> None:
    in_virtual_time(shown_without())


async def shown_without() -> None:
    run: Any = None
    async with shown_while(run, None, lambda: {}):
        await asyncio.sleep(3.0)


@pytest.mark.parametrize(("num_tokens", "times"), [(8, 2), (7, 0)])
def test_a_long_answer_is_shown_once_a_minute_at_most(num_tokens: int, times: int) -> None:
    async def two_minutes(run: Shown) -> None:
        async def play() -> None:
            while True:
                run.example = answered("7 + 8 = ?\nAnswer.", "It is\n\n15.", num_tokens)
                await asyncio.sleep(5.0)

        playing = asyncio.create_task(play())
        await shown(run, 100.0, lambda: {})
        playing.cancel()

    run = Shown("playing for step 1")
    in_virtual_time(two_minutes(run))
    examples = [text for text, _ in run.lines if "->" in text]
    assert examples == ["7 + 8 = ? Answer. -> It is 15.  (reward +1)"] * times


def answered(asked: str, said: str, num_tokens: int) -> Episode:
    tokens = tuple(range(num_tokens))
    completion = Completion(
        text=said,
        token_ids=tokens,
        logprobs=(-0.5,) * num_tokens,
        versions=(0,) * num_tokens,
        finish_reason="stop",
    )
    turn = Turn(messages=(Message("user", asked),), completion=completion)
    rollout = Rollout(role="player", seat="policy", policy="policy", turns=(turn,))
    return Episode(
        arena="sums", task=Task(id="7 + 8"), rollouts=(rollout,), rewards={"player": 1.0}
    )


@pytest.mark.slow
def test_a_run_shows_what_it_does_while_no_play_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each play lasts until something is shown."""
    monkeypatch.chdir(tmp_path)
    Path("slow.py").write_text(SLOW)

    def wait(self: object, doing: str, *, now: bool = False) -> None:
        with Path("shown").open("a") as file:
            file.write(f"{doing}\n")

    monkeypatch.setattr(ConsoleTracker, "wait", wait)
    command = ["train", "--arena", "slow.py:Slow", *FEW, "--steps", "1", "--out", "run"]
    assert main([*command, "--loop.evaluation-plays", "2"]) == 0
    lines = Path("shown").read_text().split("\n")
    assert {"evaluating step 0 (2 plays)", "playing for step 1"} <= {*lines}


def test_a_fork_goes_on_where_its_parent_was_moved(tmp_path: Path) -> None:
    config = RunConfig(fork_from=str(tmp_path / "moved@4"))
    with trackers(config, RunFolder(tmp_path), ["nim"]) as (steps, _, _):
        steps.log({"loss": 0.5}, step=5)
    assert "0.5" in (tmp_path / "metrics.jsonl").read_text()
