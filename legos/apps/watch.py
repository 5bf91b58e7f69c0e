"""``legos watch``: show the plays of a run as they are written, or one of them step by step."""

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from legos.apps.played_again import differences
from legos.apps.transcript import ending, heading, turns_of
from legos.errors import CheckpointError
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
    known = _stored(folder.episodes)
    for number, episode in [*enumerate(known, start=1)][len(known) - min(last, len(known)) :]:
        _show(number, episode, thinking=thinking, say=say)
    if not known:
        waits = "; waiting for the first step, or for an evaluation by play"
        over = ", and no process runs it"
        say(f"{folder.path} has no play yet{waits if is_held(folder.path) else over}")
    for number, episode in _added(folder, len(known)):
        _show(number, episode, thinking=thinking, say=say)


def replay(
    run: str,
    number: int,
    *,
    thinking: bool,
    again: bool,
    say: Callable[[str], object],
    pause: Callable[[], object],
) -> bool:
    """Show one stored play turn by turn.

    Args:
        run: folder of the run, or its name in runs/.
        number: number of the play in episodes.jsonl, from 1; -1: the newest.
        thinking: show what the models think.
        again: play it again with the recorded answers.
        say: shows a text.
        pause: called before each turn.

    Returns:
        Whether the repeated play, if there was one, was the same.

    Raises:
        CheckpointError: the run or the play is not found.
        ConfigError: the play cannot be repeated, because its task is not found.
    """
    folder = find_run(run)
    path = folder.episodes
    known = _stored(path)
    at = number - 1 if number > 0 else len(known) + number
    if not 0 <= at < len(known) or number == 0:
        raise CheckpointError(
            f"{path} has no play {number}; it has {len(known)}, counted from 1 (--episode -1 is "
            "the newest)"
        )
    say(f"{at + 1}: {heading(known[at])}")
    for turn in turns_of(known[at], thinking=thinking, sampled=True):
        pause()
        say(turn)
    say(ending(known[at]))
    if not again:
        return True
    found = differences(folder, known[at])
    same = "played again from its seeds: the same prompts, moves and rewards"
    say(f"played again from its seeds, it differs in {', '.join(found)}" if found else same)
    return not found


def _show(
    number: int, episode: dict[str, Any], *, thinking: bool, say: Callable[[str], object]
) -> None:
    turns = turns_of(episode, thinking=thinking)
    say("\n".join(["", f"{number}: {heading(episode)}", *turns, ending(episode)]))


def _stored(path: Path) -> list[dict[str, Any]]:
    """The complete lines of a file of episodes; it need not exist yet.

    Raises:
        CheckpointError: a line is damaged.
    """
    data = path.read_bytes() if path.exists() else b""
    episodes: list[dict[str, Any]] = []
    for number, line in enumerate(data[: data.rfind(b"\n") + 1].splitlines(), start=1):
        try:
            episodes.append(json.loads(line))
        except ValueError as error:
            raise CheckpointError(
                f"{path} line {number} is no JSON; --resume of the run removes damaged lines"
            ) from error
    return episodes


def _added(folder: RunFolder, seen: int) -> Iterator[tuple[int, dict[str, Any]]]:
    """The plays after the first ``seen``, with their numbers, until the run's process ends."""
    path, size = folder.episodes, -1
    while True:
        held = is_held(folder.path)  # before the look, so that the last lines are seen
        now = path.stat().st_size if path.exists() else 0
        if now != size:
            episodes, size = _stored(path), now
            yield from enumerate(episodes[seen:], start=seen + 1)
            seen = len(episodes)
        if not held:
            return
        time.sleep(LOOK_S)
