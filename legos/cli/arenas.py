"""``legos arenas``: list arenas, check one, write its scripted answers, or begin a new one."""

import shlex
from pathlib import Path
from typing import Literal

from cyclopts import App

from legos.cli.output import Flag, show
from legos.cli.overrides import Count, EvaluationPlay, Integer, dotted
from legos.config.resolve import resolve

FAILED = 1
arenas = App(name="arenas", help="List the arenas that are known by name, check or begin one.")


@arenas.default
def list_all(*, json: Flag = False) -> None:
    """List the arenas that --arena accepts by name, with reference numbers.

    Args:
        json: Print one JSON object.
    """
    from legos.apps.arenas import described, list_arenas

    found = list_arenas()
    show(found if json else described(found), json=json)


@arenas.command
def check(
    name: str,
    /,
    *,
    plays: Count = 64,
    seed: Integer = 0,
    json: Flag = False,
    play: EvaluationPlay = None,
) -> int:
    """Play an arena with scripted players and report what is wrong; exit code 1 if anything is.

    Args:
        name: Name of an arena, FILE.py:Class, or package.module:Class.
        plays: Number of plays of each player.
        seed: Seed of tasks and plays.
        json: Print one JSON object.
        play: Settings of the arena.
    """
    from legos.apps.arenas import check_by_name, checked

    settings = resolve(overrides=dotted({"play": play}, {"NAME": ("arena", name)})).config.play
    findings = check_by_name(name, settings=settings, plays=plays, seed=seed)
    show(checked(findings, plain=not json), json=json)
    return FAILED if any(finding.passed is False for finding in findings) else 0


@arenas.command
def answers(
    name: str,
    /,
    *,
    to: Path,
    by: Literal["oracle", "example"] = "oracle",
    plays: Count = 256,
    seed: Integer = 0,
    play: EvaluationPlay = None,
) -> None:
    """Write scripted answers of an arena as rows for legos imitate.

    For example:

        legos arenas answers countdown --by example --to answers.jsonl
        legos imitate answers.jsonl --model MODEL

    Args:
        name: Name of an arena, FILE.py:Class, or package.module:Class.
        to: The .jsonl file.
        by: Right answers (oracle), or any answers that have the right form (example); the arena has
            a method of that name.
        plays: Number of plays, of tasks that are not held out.
        seed: Seed of tasks, plays and answers.
        play: Settings of the arena.
    """
    from legos.apps.answers import write_answers

    settings = resolve(overrides=dotted({"play": play}, {"NAME": ("arena", name)})).config.play
    rows = write_answers(name, to, by=by, settings=settings, plays=plays, seed=seed)
    imitate = shlex.join(["uv", "run", "legos", "imitate", str(to)])
    show(f"wrote {rows} answers to {to}; train on them with\n  {imitate}\n")


@arenas.command
def new(name: str, /, *, to: Path = Path()) -> None:
    """Write NAME.py, a small game to change into one's own, and its test test_NAME.py.

    Args:
        name: Name of the game, such as rps.
        to: Folder of the files.
    """
    from legos.apps.starter import write_starter

    game, test, written = write_starter(name, to)
    arena = shlex.quote(written)
    show(
        f"wrote {game} and {test}; change the rules, and try\n"
        f"  uv run legos arenas check {arena}\n"
        f"  uv run legos play {arena} --against random\n"
        f"  uv run legos train --arena {arena}\n"
    )
