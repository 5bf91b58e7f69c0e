"""``legos watch``: show the plays of a run as they are written, or one of them step by step."""

import json
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from legos.apps.transcript import ending, heading, turns_of
from legos.errors import CheckpointError, LegosError
from legos.files.lines import NewLines
from legos.run.find import find_run
from legos.run.folder import RunFolder
from legos.run.lock import is_held

__all__ = ["replay", "watch"]

LOOK_S = 0.5  # seconds between two looks at a file that another process writes


def watch(run: str, *, last: int, thinking: bool, say: Callable[[str], object]) -> None:
    """Show the newest plays of a run, and every further one until the run ends.

    Args:
        run: folder of the run, or its name in runs/.
        last: number of plays to show of those that are there already.
        thinking: show what the models think.
        say: shows a text.

    Raises:
        CheckpointError: the run is not found.
    """
    folder = find_run(run)
    lines = NewLines(folder.episodes)
    known = lines.read()
    for each in known[max(0, len(known) - last) :]:
        _show(folder.episodes, *each, thinking=thinking, say=say)
    if not known:
        waits = "; waiting for the first step, or for an evaluation by play"
        over = ", and no process runs it"
        say(f"{folder.path} has no play yet{waits if is_held(folder.path) else over}")
    for each in _added(folder, lines):
        _show(folder.episodes, *each, thinking=thinking, say=say)


def replay(
    run: str,
    number: int,
    *,
    thinking: bool,
    say: Callable[[str], object],
    pause: Callable[[], object],
) -> None:
    """Show one stored play turn by turn.

    Args:
        run: folder of the run, or its name in runs/.
        number: number of the play in episodes.jsonl, from 1; -1: the newest.
        thinking: show what the models think.
        say: shows a text.
        pause: called before each turn.

    Raises:
        CheckpointError: the run or the play is not found, or the line is damaged.
    """
    path = find_run(run).episodes
    known = NewLines(path).read()
    at = number - 1 if number > 0 else len(known) + number
    if not 0 <= at < len(known) or number == 0:
        raise CheckpointError(
            f"{path} has no play {number}; it has {len(known)}, counted from 1 (--episode -1 is "
            "the newest)"
        )
    with _named(path, at + 1):
        episode: dict[str, Any] = json.loads(known[at][1])
        texts = [*turns_of(episode, thinking=thinking, sampled=True), ending(episode)]
        say(f"{at + 1}: {heading(episode)}")
    for text in texts[:-1]:
        pause()
        say(text)
    say(texts[-1])


def _show(
    path: Path, number: int, line: bytes, *, thinking: bool, say: Callable[[str], object]
) -> None:
    with _named(path, number):
        episode: dict[str, Any] = json.loads(line)
        turns = turns_of(episode, thinking=thinking)
        text = "\n".join(["", f"{number}: {heading(episode)}", *turns, ending(episode)])
    say(text)


@contextmanager
def _named(path: Path, number: int) -> Generator[None]:
    """Within the block, a line is read that may be damaged.

    Raises:
        CheckpointError: it is; with its number.
    """
    try:
        yield
    except LegosError:
        raise
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise CheckpointError(
            f"{path} line {number} is no play: {error!r}; --resume of the run removes lines that "
            "are no JSON"
        ) from error


def _added(folder: RunFolder, lines: NewLines) -> Iterator[tuple[int, bytes]]:
    """The lines that are added, with their numbers, until the run's process ends."""
    while True:
        held = is_held(folder.path)  # before the look, so that the last lines are seen
        yield from lines.read()
        if not held:
            return
        time.sleep(LOOK_S)
