"""``legos watch``: plays as they are written, and one of them turn by turn."""

import asyncio
import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from msgspec.structs import replace

from legos.apps.played_again import differences
from legos.apps.transcript import ending
from legos.apps.watch import replay, watch
from legos.arena.cursor import plays_from
from legos.arena.step import play_all
from legos.cli import main
from legos.config.resolve import resolve
from legos.data.episode import Episode, Rollout, Task, Turn
from legos.data.message import Completion, Message, Sampling, ToolCall
from legos.errors import CheckpointError
from legos.exact.bots import RandomBot
from legos.run.folder import RunFolder
from legos.run.lock import hold
from legos.run.stored import episode_to_json
from legos.testing import Asked, ScriptedClient, make_episode
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
rewards: ann +1, bob -1.5"""


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
    monkeypatch.setattr(json, "loads", parsed := Mock(wraps=json.loads))
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
        with run.episodes.open("a") as file:  # half a line is not shown
            file.write('{"step": 20')
        run.episodes.write_bytes(run.episodes.read_bytes()[: -len('{"step": 20')])
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
        again=False,
        say=told.append,
        pause=lambda: told.append("(Enter)"),
    )
    assert told[0] == "2: step 20, sums, task t2 (ann: bot, bob: bot)"
    assert told[1:4] == ["(Enter)", "    One?\nann> <think>x</think>1", "(Enter)"]
    assert told.count("(Enter)") == 3
    assert told[-1] == "bob forfeits\nrewards: ann +1, bob -1.5"


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
        Turn(messages=first, completion=said),
        Turn(messages=second, completion=again, order=1, sampling=Sampling(max_tokens=9)),
    ]
    play = replace(episode(1), rollouts=(rollout("ann", *turns),))
    run.add_episodes(1, [play])
    told_so: list[str] = []
    replay(str(run.path), 1, thinking=False, again=False, say=told_so.append, pause=lambda: None)
    assert told_so[1:3] == [
        "    (system) You are Ann.\n    (told) It rains.\n    A lot.\n    One?\nann> 1\n"
        "    (2 tokens, log-probability -0.75; version 7 and 8; after 3 of the prompt, 3 of them "
        "new; temperature 1, at most 256)",
        "    (told) It stops.\n    Two?\nann> 2\n"
        "    (2 tokens, log-probability -0.75; version 8; after 6 of the prompt, 1 of them new; "
        "temperature 1, at most 9)",
    ]
    told_so.clear()
    watch(str(run.path), last=1, thinking=False, say=told_so.append)
    assert "    (told) It stops.\n    Two?\nann> 2\n" in told_so[0]
    assert "tokens" not in told_so[0]


OLD = ("messages", "messages_kept", "asked_as", "choices", "restricted", "sampling")


def test_plays_of_older_versions_can_be_read(
    run: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    stored = game_run(run, "leduc")
    for play in stored:
        for seat in play["seats"]:
            del seat["sampling"]
            for turn in seat["turns"]:
                turn["token_ids"], turn["logprobs"], turn["versions"] = [1], [-0.5], [0]
                for name in (*OLD, "prompt_ids", "prompt_ids_kept"):
                    del turn[name]
    run.episodes.write_text("".join(json.dumps(play) + "\n" for play in stored))
    assert main(["watch", str(run.path), "--episode", "1", "--again"]) == 0
    told = capsys.readouterr().out
    assert "(1 tokens, log-probability -0.5; version 0)" in told
    assert told.endswith("the same prompts, moves and rewards\n")
    assert main(["watch", str(run.path)]) == 0


TELLS = """
from legos import Arena, Task

class Tells(Arena):
    word = "sun"

    def tasks(self, rng):
        yield Task(id="a")

    async def play(self, t):
        t.tell(f"There is {self.word}.")
        await t.ask("player", "One?")
        return {"player": 0.0}
"""


def test_a_text_that_is_told_another_way_is_found(run: RunFolder, tmp_path: Path) -> None:
    file = tmp_path / "tells.py"
    file.write_text(TELLS)
    name = f"{file}:Tells"
    run.config.write_text(resolve(overrides={"arena": name}).toml())
    for word in ("sun", "rain"):
        made: Any = make_arena(name, ScriptedClient(lambda _: "1"))
        made.word = word
        plays = play_all(made, plays_from(made, 0, 1), asyncio.Semaphore(1))
        run.add_episodes(1, asyncio.run(plays))
    same, other = [json.loads(line) for line in run.episodes.read_text().splitlines()]
    assert differences(run, same) == []
    assert differences(run, other) == ["turns of player"]


def test_failed_and_void_plays_say_why(run: RunFolder) -> None:
    failed = replace(make_episode({}), error="ValueError: no\n", failure="failed")
    void = replace(make_episode({}), void=True, notes=("void: too long",), children=(failed,))
    run.add_episodes(1, [failed, void])
    told: list[str] = []
    for number in (1, 2):
        replay(
            str(run.path), number, thinking=False, again=False, say=told.append, pause=lambda: None
        )
    assert told[-1].endswith("void: too long\nspawned plays: 1")
    assert any(text.endswith("failed: ValueError: no") for text in told)


def test_no_reward_is_minus_zero() -> None:
    stored = {**episode_to_json(episode(1)), "rewards": {"ann": -0.0, "bob": 0.25}}
    assert ending(stored) == "bob forfeits\nrewards: ann +0, bob +0.25"


@pytest.mark.parametrize("number", [0, 3, -3])
def test_a_play_that_is_not_there_is_refused(
    number: int, run: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    write(run, 1, 2)
    assert main(["watch", str(run.path), "--episode", str(number)]) == 2
    assert f"has no play {number}; it has 2, counted from 1" in capsys.readouterr().err


def test_a_damaged_line_is_named(run: RunFolder) -> None:
    write(run, 1)
    with run.episodes.open("a") as file:
        file.write("nonsense\n" + json.dumps({"step": 3}))
    with pytest.raises(CheckpointError, match="line 2 is no play: JSONDecodeError"):
        watch(str(run.path), last=1, thinking=False, say=print)


def game_run(folder: RunFolder, arena: str) -> list[dict[str, Any]]:
    """A run with plays of random bots; returns them as they are stored."""
    folder.config.write_text(resolve(overrides={"arena": arena}).toml())
    made = make_arena(arena, RandomBot(), seed=7)
    episodes = asyncio.run(play_all(made, plays_from(made, 7, 4), asyncio.Semaphore(4)))
    folder.add_episodes(1, episodes)
    return [json.loads(line) for line in folder.episodes.read_text().splitlines()]


@pytest.mark.parametrize("arena", ["nim", "pig", "leduc", "goofspiel"])
def test_plays_of_games_follow_from_their_seeds(
    arena: str, run: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    stored = game_run(run, arena)
    assert [differences(run, play) for play in stored] == [[]] * 4
    assert main(["watch", str(run.path), "--episode", "2", "--again"]) == 0
    assert capsys.readouterr().out.endswith("the same prompts, moves and rewards\n")


def test_a_play_that_was_changed_is_found(
    run: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    stored = game_run(run, "leduc")[0]
    first = stored["seats"][0]
    assert differences(run, {**stored, "rewards": {"first": 9.0, "second": -9.0}}) == ["rewards"]
    assert "turns of first" in differences(run, {**stored, "play_seed": 1}) + differences(
        run, {**stored, "seed": stored["seed"] + 1}
    )
    first["turns"][0]["asked"] = "another question"
    assert differences(run, stored) == ["turns of first"]
    run.episodes.write_text(json.dumps(stored) + "\n")
    assert main(["watch", str(run.path), "--episode", "1", "--again"]) == 1
    assert "it differs in turns of first" in capsys.readouterr().out


def two_ways(one: str, other: str) -> Callable[[Asked], str]:
    """Answers of two kinds, by the seed of the request."""
    return lambda asked: one if asked.sampling.seed % 2 else other


def proposal_or_answer(asked: Asked) -> str:
    proposal = "PROGRAM: keep odd | mul 3 INPUT: [5, 2, 7, 1]"
    proposes = "Write a new program" in asked.prompt
    return proposal if proposes else two_ways("[15, 21, 3]", "?")(asked)


@pytest.mark.parametrize(
    ("arena", "answer"),
    [
        ("countdown", two_ways("1 + 2", "no")),
        ("zorplex", two_ways("LOOKUP[amber] GETKEY[amber]", "[ANSWER] 17")),
        ("negotiation", two_ways("[offer 2 wood for 3 gold]", "[accept]")),
        ("refine", two_ways("A garden by the sea.", "<think>Short.</think>It is short.")),
        ("absolute_zero", proposal_or_answer),
    ],
)
def test_plays_of_coroutines_follow_from_their_seeds_and_answers(
    arena: str,
    answer: Callable[[Asked], str],
    run: RunFolder,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run.config.write_text(resolve(overrides={"arena": arena}).toml())
    made = make_arena(arena, ScriptedClient(answer))
    for planned in plays_from(made, made.seed, 3, held_out=False):
        fresh = make_arena(arena, ScriptedClient(answer))
        run.add_episodes(1, asyncio.run(play_all(fresh, [planned], asyncio.Semaphore(4))))
    stored = [json.loads(line) for line in run.episodes.read_text().splitlines()]
    assert any(seat["turns"] for play in stored for seat in play["seats"])
    assert bool(stored[0]["children"]) is (arena == "absolute_zero")
    for play in stored:
        assert differences(run, play) == []
        said = [turn for seat in play["seats"] for turn in seat["turns"]]
        said[0]["said"] += " (changed)"
        assert differences(run, {**play, "rewards": {}})
    assert main(["watch", str(run.path), "--episode", "2", "--again"]) == 0
    assert capsys.readouterr().out.endswith("the same prompts, moves and rewards\n")


def test_what_the_store_held_is_named_as_the_reason(run: RunFolder) -> None:
    run.config.write_text(resolve(overrides={"arena": "absolute_zero"}).toml())
    made = make_arena("absolute_zero", ScriptedClient(proposal_or_answer))
    for planned in plays_from(made, made.seed, 2, held_out=False):  # the second is not new
        run.add_episodes(1, asyncio.run(play_all(made, [planned], asyncio.Semaphore(4))))
    stored = [json.loads(line) for line in run.episodes.read_text().splitlines()]
    assert differences(run, stored[0]) == []
    assert "(t.store)" in differences(run, stored[1])[-1]


def test_turns_have_the_times_of_question_and_answer(run: RunFolder) -> None:
    async def slow(*_: Any, **__: Any) -> Completion:
        await asyncio.sleep(0.05)
        return Completion(text="1")

    for arena in ("countdown", "nim"):
        client = ScriptedClient([])
        client.complete = slow  # type: ignore[method-assign]
        made = make_arena(arena, client)
        before = time.time()
        plays = play_all(made, plays_from(made, 1, 1), asyncio.Semaphore(1))
        [seat, *_] = episode_to_json(asyncio.run(plays)[0])["seats"]
        turn = seat["turns"][0]
        assert before - 0.01 <= turn["asked_at"] <= turn["answered_at"] - 0.04
        assert turn["answered_at"] <= time.time() + 0.01


def test_a_task_that_the_arena_does_not_have_is_named(
    run: RunFolder, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("legos.arena.cursor.MAX_TASKS", 100)
    run.config.write_text(resolve(overrides={"arena": "countdown"}).toml())
    write(run, 1)
    assert main(["watch", str(run.path), "--episode", "1", "--again"]) == 2
    assert main(["watch", str(run.path), "--again"]) == 2
    told = capsys.readouterr().err
    assert "task 't1' of arena 'sums' is not found in arena 'countdown' of the run" in told
    assert "name it with --episode N" in told
