"""What ``legos train --arena file.py:Class`` says of what a first arena gets wrong.

Most of these mistakes, and their messages in full, are in ``tests/mistakes``.
"""

from collections.abc import Callable
from pathlib import Path
from textwrap import dedent, indent

import pytest

from legos.cli.process import main

HEAD = """
import asyncio
from legos import Arena, Game, Task
"""
ARENA = """
class Mine(Arena):
    tasks_per_step = 2
    group_size = 2
    max_tokens = 2
    {attributes}

    def tasks(self, rng):
        yield Task(id="a", data=1)
        yield Task(id="b", data=2)

    async def play(self, t):
        reply = await t.ask("player", "Say something.")
        return {{"player": float(len(reply.text))}}

{methods}
"""
GAME = """
class Mine(Game):
    roles = ("ann", "bob")
    {attributes}

    def starts(self):
        return [(0, 1.0)]

    def turn(self, state):
        return self.roles[state] if state < 2 else None

    def view(self, state, role):
        return f"{{state}}"

    def legal(self, state, role):
        return ["a", "b"]

    def play(self, state, move):
        return state + 1

    def payoff(self, state):
        return {{"ann": -1.0, "bob": 1.0}}

{methods}
"""
OPTIONS = ("--steps", "1", "--training.min-samples-per-step", "4", "--play.concurrency", "8")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def write(base: str, methods: str = "", attributes: str = "") -> None:
    text = HEAD + base.format(attributes=attributes, methods=indent(dedent(methods), "    "))
    Path("mine.py").write_text(text)


@pytest.fixture
def refusal(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    def train(*options: str) -> str:
        arguments = ["train", "--arena", "mine.py:Mine", "--out", "run", *OPTIONS, *options]
        assert main(arguments) == 2
        told = capsys.readouterr().err
        assert "error: " in told
        return told

    return train


@pytest.mark.parametrize(
    ("methods", "attributes", "message"),
    [
        ("async def play(self): pass", "", "takes (); write async def play(self, t)"),
        ("def tasks(self): pass", "", "takes (); write def tasks(self, rng)"),
        ("def held_out(self): pass", "", "takes (); write def held_out(self, rng)"),
        ("def seats(self): pass", "", "takes (); write def seats(self, task)"),
        ("def seats(self, task): return task.data['who']", "", "seats() of arena 'mine' failed:"),
        (
            "def __init__(self, size=3): super().__init__()",
            "",
            "unexpected keyword argument 'credit_assigner'; an arena's __init__ takes (self, "
            "client=None, *, ..., **kwargs) and passes them on: super().__init__(client, **kwargs)",
        ),
    ],
)
def test_what_is_seen_before_the_first_play(
    methods: str, attributes: str, message: str, refusal: Callable[..., str]
) -> None:
    write(ARENA, methods, attributes)
    assert message in refusal()
    assert not Path("run").exists()


@pytest.mark.parametrize(
    ("methods", "attributes", "message"),
    [
        ("", "table = {}['rows']", "cannot import mine.py: KeyError: 'rows'\n"),
        (
            "def __init__(self, client=None, **kw):\n    super().__init__(client, **kw)\n"
            "    {}['rows']",
            "",
            "arena 'mine.py:Mine' cannot be made with no options: KeyError: 'rows'\n",
        ),
    ],
)
def test_the_line_of_an_error_that_no_play_raises_is_shown(
    methods: str, attributes: str, message: str, refusal: Callable[..., str]
) -> None:
    write(ARENA, methods, attributes)
    told = refusal()
    assert f'error: {message}  File "{Path.cwd()}/mine.py", line ' in told
    assert "{}['rows']" in told
    assert "legos/" not in told.replace(f"{Path.cwd()}", "")


def test_tasks_that_return_nothing(refusal: Callable[..., str]) -> None:
    write(ARENA, "def tasks(self, rng):\n    [Task(id='a')]")
    told = refusal()
    assert told.startswith("error: tasks() of arena 'mine' returned None; write yield Task(id=")
    assert "Traceback" not in told


@pytest.mark.parametrize(
    ("play", "message"),
    [
        ('await t.ask("player", "?")', "play() of arena 'mine' returned None; is a `return` miss"),
        ('await t.ask("player", "?", choices=[1, 2])', "the choices for 'player' hold 1, an int"),
        ("t.task.data['x']", "TypeError: 'int' object is not subscriptable"),
    ],
)
def test_a_play_that_cannot_be_used(play: str, message: str, refusal: Callable[..., str]) -> None:
    write(ARENA, f"async def play(self, t):\n    {play}")
    told = refusal()
    data_of_the_arena = "TypeError" in message  # its own failure may not happen in every play
    failed = "4 of 4 plays of arena 'mine' failed; the first, of task 'a':"
    assert (failed if data_of_the_arena else "in a play of task 'a' of arena 'mine'") in told
    assert message in told
    if "returned" not in message:
        assert f"in play\n    {play}\n" in told


@pytest.mark.filterwarnings(
    "ignore::RuntimeWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)
def test_a_forgotten_await(refusal: Callable[..., str]) -> None:
    write(ARENA, 'async def play(self, t):\n    t.ask("player", "?")\n    return {"player": 1.0}')
    told = refusal()
    assert "left nothing to train on: no seat was asked in any of the 2 " in told
    assert "plays of the newest; is `await` missing before t.ask(...)?" in told


@pytest.mark.slow
def test_answers_that_are_never_legal(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    play = """
    async def play(self, t):
        reply = await t.ask("player", "Which?", choices=["north", "south"])
        return {"player": float(reply.move == "north")}
    """
    write(ARENA, play)
    arguments = ["train", "--arena", "mine.py:Mine", "--out", "run", *OPTIONS[2:], "--steps", "3"]
    assert main(arguments) == 0
    told = [r.message for r in caplog.records if "arena/illegal" in r.message]
    assert len(told) == 1  # once a run
    assert (
        "step 1: arena/illegal is 1, at or above 0.5: most plays hold an answer that is not legal"
        in told[0]
    )
    assert "--play.restrict-choices" in told[0]
    caplog.clear()
    assert main([*arguments[:4], "other", *arguments[5:], "--play.restrict-choices"]) == 0
    assert "arena/illegal" not in caplog.text
    capsys.readouterr()


def test_answers_that_are_never_legal_where_equal_rewards_are_left_out(
    refusal: Callable[..., str],
) -> None:
    play = 'async def play(self, t):\n    await t.ask("player", "?", choices=["north", "south"])'
    write(ARENA, play)
    told = refusal("--training.zero-advantage", "remove")
    assert "(20 tasks) left nothing to train on: 100% of the plays of the newest" in told
    assert (
        "hold an answer that is not legal, and earn the same for it; sample legal answers only "
        "(--play.restrict-choices)" in told
    )


@pytest.mark.parametrize(
    ("methods", "attributes", "message"),
    [
        ("def payoff(self, state): pass", "", "payoff(2) of game 'mine' returned None; is a `retu"),
        ("def payoff(self, state): return {'ann': 1}", "", "rewards for 'ann'; expected a"),
        (
            "def legal(self, state, role): return [1]",
            "",
            "the choices for 'ann' hold 1, an int; ",
        ),
        ("", 'roles = ("ann")', "roles of game 'mine' is the text 'ann'; write (\"ann\",)"),
        (
            "def play(self, state, move): return {}[move]",
            "",
            "game 'mine' failed while its states were written out:\n  File ",
        ),
        (
            "def starts(self): return [0, 1]",
            "",
            "starts() of game 'mine' holds 0, an int; expected",
        ),
    ],
)
def test_games(methods: str, attributes: str, message: str, refusal: Callable[..., str]) -> None:
    write(GAME, methods, attributes)
    assert message in refusal()
    assert not Path("run").exists()


@pytest.mark.slow
def test_a_play_that_never_returns(caplog: pytest.LogCaptureFixture) -> None:
    play = """
    async def play(self, t):
        await t.ask("player", "?")
        if t.task.id == "b":
            await asyncio.Event().wait()
        return {"player": t.rng.random()}
    """
    write(ARENA, play, "play_timeout_s = 0.5; report_after_s = 0.2")
    assert (
        main(
            [
                "train",
                "--arena",
                "mine.py:Mine",
                "--out",
                "run",
                *OPTIONS[:2],
                "--training.min-samples-per-step",
                "1",
            ]
        )
        == 0
    )
    assert "arena 'mine': no play has ended for" in caplog.text
    assert "is in the arena's own code (mine.py:2" in caplog.text
    assert "took longer than play_timeout_s = 0.5 s and was cancelled" in caplog.text
