"""``legos play``: a person, bots, adapters and servers in the seats of real arenas."""

import asyncio
import io
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from made_records import make_episode, make_turn
from scripted_server import HttpAnswer, HttpAsked, ScriptedServer, serving

from legos.apps.person import Terminal
from legos.apps.play import Players, _summary, play
from legos.cli.process import main
from legos.config.schema import PlayConfig
from legos.errors import ArenaError

TALK = """
from legos import Arena, Task


class Talk(Arena):
    roles = ("host", "guest")
    system = {"host": "You are kind."}

    def tasks(self, rng):
        yield Task(id="only")

    async def play(self, t):
        first = await t.ask("host", "Greet the guest.")
        reply = await t.ask("guest", f"The host says: {first.answer}")
        last = await t.ask("host", f"The guest says: {reply.answer}")
        return {"host": float(len(last.answer)), "guest": 0.0}
"""


NO_RESULT = """
from legos import Arena, Task, Void


class NoResult(Arena):
    def tasks(self, rng):
        yield Task(id="without")
        yield Task(id="with")

    async def play(self, t):
        if t.task.id == "without":
            raise Void("no result")
        return {"player": 1.0}
"""

KEEPS = """
from legos import Arena, Task


class Inner(Arena):
    roles = ("guesser", "solver")
    restrict_choices = True

    async def play(self, t):
        said = await t.ask_all(dict.fromkeys(self.roles, "Pick"), choices=("a", "b"))
        return {role: float(said[role].move == "a") for role in self.roles}


class Keeps(Arena):
    roles = ("host", "solver")

    def __init__(self, client=None, **kwargs):
        super().__init__(client, **kwargs)
        self.inner = Inner(client)

    def tasks(self, rng):
        yield Task(id="only")

    async def play(self, t):
        [inner] = await t.spawn(self.inner, Task(id="inner"))
        assert inner.error is None, inner.error
        return dict(zip(self.roles, inner.rewards.values()))
"""


BOT = """
from legos import Completion


class Bot:
    async def complete(self, prompt, sampling, *, adapter="policy"):
        return Completion(text=sampling.choices[0] if sampling.restrict else "?")
"""


@pytest.fixture(autouse=True)
def empty_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("talk.py").write_text(TALK)


def played(arena: str, lines: str = "", **options: Any) -> tuple[int, str]:
    """Play with a person who writes these lines; returns the exit code and what is shown."""
    told: list[str] = []
    given: dict[str, Any] = {
        "settings": PlayConfig(),
        "plays": 1,
        "seed": 3,
        "temperature": 1.0,
        "thinking": False,
        **options,
    }
    players = given.pop("players")
    code = play(arena, players, say=told.append, source=io.StringIO(lines), **given)
    return code, "\n".join(told)


def test_a_person_plays_against_optimal_play() -> None:
    players = Players(seats={}, against="optimal")
    code, told = played("nim", "1\nfour\n 2 \n3\n1\n", players=players)
    assert code == 0
    assert told.startswith("\nYou are first.\nNim: 15 left, last one wins.\nMoves: 1 2 3\n")
    assert told.count("You are first.") == 4  # with the answers of the other in between
    assert "'four' is not one of: 1, 2, 3" in told
    assert told.endswith("second (optimal) said: 2, 2, 1, 3\nrewards: first -1, second +1")


def test_a_person_sees_no_card_of_the_other() -> None:
    players = Players(seats={"second": "me", "first": "random"})
    _, told = played("kuhn", "p\np\np\n", players=players, seed=5)
    asked, said, _ = told.partition("first (random) said")
    assert asked.count("card ") == asked.count("You are second.") > 0
    assert said
    assert "card" not in told.removeprefix(asked)


def test_the_same_seed_gives_the_same_plays_of_bots() -> None:
    players = Players(seats={"first": "random", "second": "random"})
    told = [played("nim", players=players, plays=3, seed=seed)[1] for seed in (1, 1, 2)]
    assert told[0] == told[1] != told[2]
    assert told[0].count("rewards: ") == told[0].count("(first: random, second: random)") == 3


@pytest.mark.parametrize(("given", "code"), [("0", 0), ("0.5", 0), ("-1", 2), ("nan", 2)])
def test_models_can_play_their_most_probable_moves(
    given: str, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    bots = ("--seat", "first=random", "--seat", "second=random")
    assert main(["play", "nim", *bots, "--temperature", given]) == code
    assert (f"temperature is {float(given)}" in capsys.readouterr().err) == (code == 2)


def test_the_first_free_seat_is_the_persons() -> None:
    of = Players(seats={"b": "random"}, against="optimal").of
    assert of("abc", "abc") == {"a": "me", "b": "random", "c": "optimal"}
    assert of("abc", "ab") == {"a": "me", "b": "random"}  # the arena brings a player for c
    me = Players(seats={"b": "me"}, against="base")
    assert me.of("abc", "abc") == {"a": "base", "b": "me", "c": "base"}
    everybody = Players(seats=dict.fromkeys("abc", "random"))
    assert everybody.of("abc", "abc") == dict.fromkeys("abc", "random")


def test_a_server_answers_and_its_thinking_is_hidden() -> None:
    def reply(asked: HttpAsked) -> HttpAnswer:
        content = f"<think>hm</think>hello to {len(asked.body['messages'])}"
        return HttpAnswer({"choices": [{"message": {"content": content}}]})

    server = ScriptedServer(reply, models={"data": [{"id": "big"}, {"id": "small"}]})
    with serving(server) as url:
        players = Players(seats={"host": f"{url}/v1#small", "guest": "me"}, api_key="secret")
        code, told = played("talk.py:Talk", "good day\n", players=players)
        both = Players(seats={"host": f"{url}/v1", "guest": f"{url}/v1#small"})
        _, shown = played("talk.py:Talk", players=both, thinking=True)
    assert code == 0
    assert "You are guest.\nThe host says: hello to 2" in told
    assert told.endswith(
        f"({url}/v1#small) said: hello to 2, hello to 4\nrewards: host +10, guest +0"
    )
    assert "hm" not in told
    first, second = server.asked[:2]
    assert (first.body["model"], first.headers["authorization"]) == ("small", "Bearer secret")
    assert second.body["messages"][-1]["content"] == "The guest says: good day"
    assert server.asked[2].body["model"] == "big"  # the first that is listed
    assert "host> <think>hm</think>hello to 2" in shown
    order = [shown.index(text) for text in ("Greet", "The host says", "The guest says")]
    assert order == sorted(order)


@pytest.mark.usefixtures("retries_at_once")
def test_a_server_that_fails_fails_the_play() -> None:
    with serving(ScriptedServer(lambda asked: HttpAnswer(b"no money", 500))) as url:
        code, told = played("nim", "1\n", players=Players(seats={}, against=f"{url}/v1"))
    assert code == 1
    assert "failed: EndpointError" in told
    assert "no money" in told


def test_the_built_in_model_plays_without_an_adapter() -> None:
    players = Players(seats={"first": "random", "second": "base"})
    code, told = played("nim", players=players, plays=2, settings=PlayConfig(illegal="random"))
    assert code == 0
    assert told.count("rewards: ") == 2
    assert "(first: random, second: base)" in told


def test_only_legal_moves_are_sampled_where_a_run_samples_them_alone() -> None:
    Path("bot.py").write_text(BOT)
    players = Players(seats={"x": "random", "o": "bot.py:Bot"})
    free = PlayConfig(restrict_choices=False)
    for settings, forfeits in ((PlayConfig(), False), (free, True)):
        _, told = played("tictactoe", players=players, settings=settings)
        assert ("o forfeits" in told) == forfeits


def test_several_plays_end_with_a_summary() -> None:
    players = Players(seats={"first": "random", "second": "optimal"})
    code, told = played("nim", players=players, plays=20)
    assert code == 0
    *_, plays, first, second = told.splitlines()
    wins = told.count("rewards: first +1")
    assert plays == "20 plays: 20 ended, 0 failed"
    mean = (2 * wins - 20) / 20
    assert first == (
        f"first (random): mean reward {mean:+.3g}; {wins} above 0, 0 at 0, {20 - wins} below 0"
    )
    assert second.startswith(f"second (optimal): mean reward {-mean:+.3g}; {20 - wins} above 0")


def test_the_summary_has_the_rewards_of_turns_too() -> None:
    episode = make_episode({"player": 0.0}, turns={"player": [make_turn(reward=1.0)]})
    *_, line = _summary([episode] * 2, {})
    assert line == "player (its own): mean reward +1; 2 above 0, 0 at 0, 0 below 0"


def test_rules_are_told_to_a_person_once_and_optimal_play_reads_the_position() -> None:
    players = Players(seats={}, against="optimal")
    code, told = played("nim", "1\n2\n3\n1\n", players=players, settings=PlayConfig(rules=True))
    assert code == 0
    assert told.count("You are first.") == 4
    assert told.count("Whoever takes the last stone wins.") == 1


def test_the_end_of_the_input_ends_the_plays() -> None:
    code, told = played("nim", "", players=Players(seats={}, against="random"), plays=3)
    assert code == 0
    assert told.endswith("void: the person at the terminal has left")
    assert told.count("You are first.") == 1


def test_tasks_of_training_are_played_where_none_is_held_out() -> None:
    held_out = "    def held_out(self, rng):\n        return []\n"
    Path("no_result.py").write_text(f"{NO_RESULT}\n{held_out}")
    _, told = played("no_result.py:NoResult", players=Players(seats={}), plays=2)
    assert "\n2 plays: 1 ended, 0 failed" in told


def test_a_play_that_its_arena_declares_void_does_not_end_the_others() -> None:
    Path("no_result.py").write_text(NO_RESULT)
    code, told = played("no_result.py:NoResult", players=Players(seats={}), plays=3)
    assert (code, told.count("void: no result")) == (0, 2)
    assert "\n3 plays: 1 ended, 0 failed\nplayer (me): mean reward +1;" in told


def test_players_sit_in_an_arena_that_the_arena_keeps_too() -> None:
    Path("keeps.py").write_text(KEEPS)
    players = Players(seats={"host": "me", "solver": "base"})
    code, told = played("keeps.py:Keeps", "a\n", players=players)
    assert code == 0
    assert "You are host.\nPick" in told
    assert "rewards: host +1" in told
    end = r"\nspawned plays: 1\nsolver \(base\) said: [ab]\nrewards: guesser \+1, solver \+[01]$"
    assert re.search(end, told)


def test_a_play_without_a_person_is_shown_with_those_that_it_spawned() -> None:
    Path("keeps.py").write_text(KEEPS)
    seats = {"host": "random", "solver": "random"}
    _, told = played("keeps.py:Keeps", players=Players(seats=seats))
    assert re.search(r"spawned plays: 1\n\ninner, task inner [^>]*\n    Pick\n\w+> [ab]", told)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nim", "--seat", "first"], "--seat is 'first'; expected ROLE=WHO, such as first=me"),
        (["nim", "--seat", "frist=me"], "names the role 'frist'; did you mean 'first'?"),
        (["nim", "--against", "person:ada"], "to play as that person: legos play nim --name ada"),
        (["nim", "--against", "nobody"], "nobody holds no run and no adapter"),
        (["nim", "--plays", "0"], "Must be >= 1"),
        (["nmi"], "no arena is called 'nmi'; did you mean 'nim'?"),
        (["nim", "--play.options.largst", "9"], "takes no option 'largst'"),
        (["talk.py:Talk", "--against", "optimal"], "no optimal player of arena 'talk' can be com"),
        (
            ["goofspiel", "--play.options.seats", "3", "--against", "optimal"],
            "no optimal player of arena 'goofspiel' can be computed: it has 3 roles",
        ),
        (["nim", "--against", "http://"], "base_url 'http:"),
    ],
)
def test_what_cannot_be_seated_is_refused(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["play", *arguments]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("seats", "message"),
    [("task.who", "failed:"), ("None", "returned None; is a `return` missing?")],
)
def test_seats_of_the_arena_that_cannot_be_used_are_named(seats: str, message: str) -> None:
    Path("talk.py").write_text(f"{TALK}\n    def seats(self, task):\n        return {seats}\n")
    with pytest.raises(ArenaError, match=rf"seats\(\) of arena 'talk' {re.escape(message)}"):
        played("talk.py:Talk", players=Players(seats={}))


def test_a_random_bot_needs_choices() -> None:
    players = Players(seats=dict.fromkeys(("host", "guest"), "random"))
    with pytest.raises(ArenaError, match="a random bot was asked a question without choices"):
        played("talk.py:Talk", players=players)


def test_input_that_cannot_be_read_fails_the_play(tmp_path: Path) -> None:
    (tmp_path / "input").write_bytes(b"\xff\n")
    with (tmp_path / "input").open(encoding="utf-8") as source:
        told: list[str] = []
        code = play(
            "nim",
            Players(seats={}, against="random"),
            settings=PlayConfig(),
            plays=1,
            seed=3,
            temperature=1.0,
            thinking=False,
            say=told.append,
            source=source,
        )
    assert code == 1
    assert "UnicodeDecodeError" in told[-1]


@pytest.mark.slow
def test_a_person_who_thinks_can_be_interrupted() -> None:
    command = [sys.executable, "-m", "legos", "play", "nim", "--against", "optimal"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        while "Moves:" not in process.stdout.readline():
            pass
        os.kill(process.pid, signal.SIGINT)
        assert process.wait(30) == 130
        assert process.stderr.read() == "interrupted\n"


@pytest.mark.parametrize("said", ["A", "a"])
def test_of_moves_that_differ_in_case_the_one_that_was_typed_is_meant(said: str) -> None:
    terminal = Terminal(io.StringIO(f"{said}\n"), lambda _: None)
    assert asyncio.run(terminal.answer("Which?", ("a", "A"))) == said
