"""``legos watch``: plays as they are written, and one of them turn by turn."""

import asyncio
import json
import os
import threading
import time
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from made_records import make_episode
from msgspec.structs import replace

from legos.apps.transcript import ending
from legos.apps.watch import replay, watch
from legos.arena.cursor import plays_from
from legos.cli.process import main
from legos.errors import CheckpointError
from legos.fakes import ScriptedClient
from legos.play.step import play_all
from legos.records.episode import Episode, Rollout, Task, Turn
from legos.records.message import Completion, Message, Sampling, ToolCall
from legos.run.episodes import parse_episode, stored_episode
from legos.run.folder import RunFolder
from legos.run.lock import hold
from legos.wiring.arena import make_arena


def turn(asked: str, said: str, order: int, **fields: Any) -> Turn:
    calls = fields.pop("tool_calls", ())
    completion = Completion(text=said, tool_calls=calls)
    return Turn(messages=(Message("user", asked),), completion=completion, order=order, **fields)


def rollout(role: str, *turns: Turn) -> Rollout:
    return Rollout(role=role, seat="bot", policy=None, turns=turns)


def episode(number: int) -> Episode:
    ann = rollout("ann", turn("One?", "<think>x</think>1", 0), turn("Three?", "3", 2, reward=0.5))
    call = ToolCall("add", '{"a": 1}')
    bob = rollout("bob", turn("Two?\nNow!", "2", 1, legal=False, tool_calls=(call,)))
    return Episode(
        arena="sums",
        task=Task(id=f"t{number}"),
        rollouts=(ann, bob),
        rewards={"ann": 1.0, "bob": -1.5},
        notes=("bob forfeits",),
    )


PLAY = """\
{number}: step {step}, sums, task t{number} (ann: bot, bob: bot)
    One?
ann> 1
    Two?
    Now!
bob> 2  [calls add({{"a": 1}}); not legal]
    Three?
ann> 3  [reward +0.5]
bob forfeits
rewards: ann +1.5, bob -1.5"""


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    folder = RunFolder(tmp_path / "run")
    folder.path.mkdir()
    folder.config.write_text("seed = 1\n")
    return folder


def write(folder: RunFolder, *numbers: int) -> None:
    for number in numbers:
        folder.add_episodes(10 * number, [episode(number)])


def test_the_newest_plays_are_shown(run: RunFolder) -> None:
    write(run, 1, 2, 3)
    told: list[str] = []
    watch(str(run.path), last=2, thinking=False, say=told.append)
    assert told == ["\n" + PLAY.format(number=n, step=10 * n) for n in (2, 3)]


def test_a_run_without_plays_says_what_it_waits_for(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("legos.apps.watch.LOOK_S", 0.01)
    told: list[str] = []
    watch(str(run.path), last=2, thinking=False, say=told.append)
    assert told == [f"{run.path} has no play yet, and no process runs it"]
    waits, options = threading.Event(), {"last": 2, "thinking": False}

    def say(text: str) -> None:
        told.append(text)
        waits.set()

    watching = threading.Thread(target=watch, args=(str(run.path),), kwargs={**options, "say": say})
    with hold(run.path):
        watching.start()
        assert waits.wait(20)
        run.add_episodes(0, [episode(1)], evaluation=True)
    watching.join(20)
    assert told[1] == (
        f"{run.path} has no play yet; waiting for the first step, or for an evaluation by play"
    )
    assert told[2].startswith("\n1: step 0, evaluation, sums, task t1 (ann: bot")


def test_plays_are_shown_as_a_run_writes_them_until_it_ends(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("legos.apps.watch.LOOK_S", 0.01)
    parsed = Mock(wraps=parse_episode)
    monkeypatch.setattr("legos.run.episodes.parse_episode", parsed)
    told: list[str] = []
    seen = {number: threading.Event() for number in (1, 2, 3)}

    def say(text: str) -> None:
        told.append(text)
        seen[len(told)].set()

    options = {"last": 9, "thinking": False, "say": say}
    watching = threading.Thread(target=watch, args=(str(run.path),), kwargs=options)
    with hold(run.path):
        write(run, 1)
        watching.start()
        assert seen[1].wait(20)
        size = run.episodes.stat().st_size
        with run.episodes.open("a") as file:  # half a line is not shown
            file.write('{"step": 20')
        os.truncate(run.episodes, size)
        write(run, 2)
        assert seen[2].wait(20)
        assert watching.is_alive()
        write(run, 3)
    watching.join(20)
    assert told == ["\n" + PLAY.format(number=n, step=10 * n) for n in (1, 2, 3)]
    assert parsed.call_count == 3  # each line once


def test_one_play_is_replayed_turn_by_turn(run: RunFolder) -> None:
    write(run, 1, 2)
    told: list[str] = []
    replay(
        str(run.path),
        -1,
        thinking=True,
        say=told.append,
        pause=lambda: told.append("(Enter)"),
    )
    assert told[0] == "2: step 20, sums, task t2 (ann: bot, bob: bot)"
    assert told[1:4] == ["(Enter)", "    One?\nann> <think>x</think>1", "(Enter)"]
    assert told.count("(Enter)") == 3
    assert told[-1] == "bob forfeits\nrewards: ann +1.5, bob -1.5"


def test_a_replay_shows_what_was_told_and_how_answers_were_sampled(run: RunFolder) -> None:
    said = Completion(
        text="<think>x</think>1",
        prompt_ids=(1, 2, 3),
        token_ids=(4, 5),
        logprobs=(-0.5, -0.25),
        versions=(7, 8),
    )
    system, told = Message("system", "You are Ann."), Message("user", "It rains.\nA lot.")
    first = (system, told, Message("user", "One?"))
    answer = Message("assistant", "1")
    second = (*first, answer, Message("user", "It stops."), Message("user", "Two?"))
    again = replace(said, text="2", prompt_ids=(1, 2, 3, 4, 5, 6), versions=(8, 8))
    turns = [
        Turn(messages=first, completion=said, sampling=Sampling(max_tokens=None)),
        Turn(messages=second, completion=again, order=1, sampling=Sampling(max_tokens=9)),
    ]
    play = replace(episode(1), rollouts=(rollout("ann", *turns),))
    run.add_episodes(1, [play])
    told_so: list[str] = []
    replay(str(run.path), 1, thinking=False, say=told_so.append, pause=lambda: None)
    assert told_so[1:3] == [
        "    (system) You are Ann.\n    (told) It rains.\n    A lot.\n    One?\nann> 1\n"
        "    (2 tokens, log-probability -0.75; version 7 and 8; after 3 of the prompt, 3 of them "
        "new; temperature 1)",
        "    (told) It stops.\n    Two?\nann> 2\n"
        "    (2 tokens, log-probability -0.75; version 8; after 6 of the prompt, 1 of them new; "
        "temperature 1, at most 9)",
    ]
    told_so.clear()
    watch(str(run.path), last=1, thinking=False, say=told_so.append)
    assert "    (told) It stops.\n    Two?\nann> 2\n" in told_so[0]
    assert "tokens" not in told_so[0]


def test_failed_and_void_plays_say_why(run: RunFolder) -> None:
    failed = replace(make_episode({}), error="ValueError: no\n", failure="failed")
    void = replace(make_episode({}), void=True, notes=("void: too long",), children=(failed,))
    run.add_episodes(1, [failed, void])
    told: list[str] = []
    for number in (1, 2):
        replay(str(run.path), number, thinking=False, say=told.append, pause=lambda: None)
    assert told[-1].endswith("void: too long\nspawned plays: 1")
    assert any(text.endswith("failed: ValueError: no") for text in told)


def test_no_reward_is_minus_zero() -> None:
    play = replace(episode(1), rewards={"ann": 0.25, "bob": -0.0})
    assert ending(stored_episode(play)) == "bob forfeits\nrewards: ann +0.75, bob +0"


@pytest.mark.parametrize("number", [0, 3, -3])
def test_a_play_that_is_not_there_is_refused(
    number: int, run: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    write(run, 1, 2)
    assert main(["watch", str(run.path), "--episode", str(number)]) == 2
    assert f"has no play {number}; it has 1 to 2 (-1 is the newest)" in capsys.readouterr().err


def test_a_damaged_line_is_named(run: RunFolder) -> None:
    write(run, 1)
    with run.episodes.open("a") as file:
        file.write("nonsense\n" + json.dumps({"step": 3}))
    with pytest.raises(CheckpointError, match="line 2 is no play: JSONDecodeError"):
        watch(str(run.path), last=1, thinking=False, say=print)


def test_turns_have_the_times_of_question_and_answer(run: RunFolder) -> None:
    async def slow(*_: Any, **__: Any) -> Completion:
        await asyncio.sleep(0.05)
        return Completion(text="1")

    for arena in ("countdown", "nim"):
        client = ScriptedClient([])
        client.complete = slow
        made = make_arena(arena, client)
        before = time.time()
        plays = play_all(made, plays_from(made, 1, 1), asyncio.Semaphore(1))
        [seat, *_] = stored_episode(asyncio.run(plays)[0]).seats
        turn = seat.turns[0]
        assert before - 0.01 <= turn.asked_at <= turn.answered_at - 0.04
        assert turn.answered_at <= time.time() + 0.01


def test_no_former_play_need_be_shown(run: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    write(run, 1)
    assert main(["watch", str(run.path), "--last", "0"]) == 0
    assert capsys.readouterr().out == ""
    assert main(["watch", str(run.path), "--last", "-1"]) == 2
    assert "--last" in capsys.readouterr().err
