"""What the console shows of a run while no step ends."""

import asyncio
import re
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from virtual_time import in_virtual_time

from legos.apps.progress import shown_while, trackers
from legos.cli.process import main
from legos.config.schema import RunConfig
from legos.errors import CheckpointError, ConfigError, EngineError
from legos.mlx.train.pace import PassPace
from legos.records.count import Count
from legos.records.episode import Episode, Rollout, Task, Turn
from legos.records.message import Completion, Message
from legos.run.folder import RunFolder
from legos.track.console import ConsoleTracker

SLOW = """
import asyncio
from itertools import count
from pathlib import Path
from legos import Arena, Task


numbers = count()


class Slow(Arena):
    def tasks(self, rng):
        yield from (Task(id=f"{number}") for number in count())

    async def play(self, t):
        if next(numbers) % 2:
            before = shown()
            for _ in range(200):
                if shown() > before:
                    break
                await asyncio.sleep(0.1)
        await t.ask("player", "Say a word.", max_tokens=3)
        return {"player": t.rng.random()}


def shown():
    place = Path("shown")
    return place.read_text().count("running") if place.exists() else 0
"""


class Shown:
    """A console that keeps what it was given, and a run that does one thing after the other."""

    def __init__(self, *doing: str) -> None:
        self._doing = [*doing]
        self.stopping = False
        self.count = Count()
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


def test_the_console_shows_what_has_been_done_and_how_long_the_rest_takes() -> None:
    async def played(run: Any) -> None:
        run.count = Count(128, begun=128)
        async with shown_while(run, run, dict):
            for run.count.ended in (4, 8, 12, 0):
                await asyncio.sleep(4.0)

    run = Shown("playing for step 1")
    in_virtual_time(played(run))
    lines = [line for line, _ in run.lines]
    assert lines[0] == "playing for step 1, 4 of 128 plays, 124 running"
    done = "12 of 128 plays, 116 running, about 2 min left"
    assert lines[8] == f"playing for step 1, {done}, 8 s so far"
    assert lines[12] == "playing for step 1, 0 of 128 plays, 128 running, 12 s so far"


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


def test_an_answer_is_shown_once_a_minute_at_most() -> None:
    async def two_minutes(run: Shown) -> None:
        async def play() -> None:
            while True:
                run.example = answered("7 + 8 = ?\nAnswer.", "It is\n\n15.")
                await asyncio.sleep(5.0)

        playing = asyncio.create_task(play())
        await shown(run, 100.0, lambda: {})
        playing.cancel()

    run = Shown("playing for step 1")
    in_virtual_time(two_minutes(run))
    examples = [text for text, _ in run.lines if "->" in text]
    assert examples == ["7 + 8 = ? Answer. -> It is 15.  (reward +1)"] * 2


def answered(asked: str, said: str) -> Episode:
    completion = Completion(
        text=said, token_ids=(1,), logprobs=(-0.5,), versions=(0,), finish_reason="stop"
    )
    turn = Turn(messages=(Message("user", asked),), completion=completion)
    rollout = Rollout(role="player", seat="policy", policy="policy", turns=(turn,))
    return Episode(
        arena="sums", task=Task(id="7 + 8"), rollouts=(rollout,), rewards={"player": 1.0}
    )


@pytest.mark.slow
@pytest.mark.parametrize(("limit", "running", "parts"), [(0, 4, 1), (1, 8, 2)])
def test_a_run_shows_how_far_it_has_come(
    limit: int, running: int, parts: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every second play, and the first pass, last until it is shown how many have ended."""
    shared, begin = list[int](), PassPace.begin
    monkeypatch.chdir(tmp_path)
    Path("slow.py").write_text(SLOW)

    def wait(self: object, doing: str, *, now: bool = False) -> None:
        with Path("shown").open("a") as file:
            file.write(f"{doing}\n")

    def wait_in_pass(self: PassPace) -> None:
        begin(self)
        for _ in range(200):
            if "pass" in Path("shown").read_text():
                break
            time.sleep(0.1)

    monkeypatch.setattr(ConsoleTracker, "wait", wait)
    monkeypatch.setattr(PassPace, "begin", wait_in_pass)
    monkeypatch.setattr("legos.apps.train.share_cores", shared.append)
    tasks = ["--play.tasks-per-step", "2", "--play.group-size", "4"]
    command = ["train", "--arena", "slow.py:Slow", *tasks, "--steps", "1", "--out", "run"]
    lag = ["--training.staleness-limit", f"{limit}", "--training.micro-batch-tokens", "16"]
    assert main([*command, *lag, "--loop.evaluation-plays", "4"]) == 0
    told = Path("shown").read_text()
    assert "evaluating step 0, 2 of 4 plays, 2 running" in told
    assert f"playing for step 1, 4 of 8 plays, {running} running" in told
    assert re.search(r"training step 1, pass 1 of [2-9]", told)
    assert shared == [parts]  # of the program that compute at once


def test_what_was_started_ends_where_the_next_cannot_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[str] = []

    def experiments(*_: object) -> Iterator[tuple[str, Any]]:
        yield "service", Mock(close=lambda: ended.append("service"))
        raise ConfigError("the other is not installed")

    monkeypatch.setattr("legos.apps.progress._experiments", experiments)
    with pytest.raises(ConfigError), trackers(RunConfig(), RunFolder(tmp_path), ["nim"]):
        pass
    assert ended == ["service"]


def test_no_table_is_begun_where_a_file_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[object] = []
    monkeypatch.setattr("legos.apps.progress.ConsoleTracker", lambda **named: begun.append(named))
    (tmp_path / "evaluations.jsonl").mkdir()
    with pytest.raises(CheckpointError), trackers(RunConfig(), RunFolder(tmp_path), ["nim"]):
        pass
    assert begun == []


def test_a_fork_goes_on_where_its_parent_was_moved(tmp_path: Path) -> None:
    config = RunConfig(fork_from=str(tmp_path / "moved@4"))
    with trackers(config, RunFolder(tmp_path), ["nim"]) as (steps, _, _):
        steps.log({"loss": 0.5}, step=5)
    assert "0.5" in (tmp_path / "metrics.jsonl").read_text()
