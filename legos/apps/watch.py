"""``legos watch``: show the plays of a run as they are written, or one of them step by step."""

import time
from collections.abc import Callable

from legos.apps.transcript import ending, heading, turns_of
from legos.run.ending import standing
from legos.run.episodes import numbered_episode
from legos.run.find import find_run
from legos.run.play_files import NewPlays

LOOK_S = 0.5  # seconds between two looks at a file that another process writes


def watch(run: str, *, last: int, thinking: bool, say: Callable[[str], object]) -> None:
    """Show the newest plays of a run, and every further one until the run ends.

    Args:
        run: folder of the run, or its name in runs/.
        last: number of plays to show of those that are there already.
        thinking: show what the models think.
        say: shows a text.

    Raises:
        CheckpointError: the run is not found, or a line is no play.
    """
    folder = find_run(run)
    plays = NewPlays(folder.episodes)
    held, new = True, plays.read(last=last)

    def runs() -> bool:
        return standing(folder, done=False) == "running"

    if not plays.seen:
        waits = "; waiting for the first step, or for an evaluation by play"
        over = ", and no process runs it"
        say(f"{folder.path} has no play yet{waits if runs() else over}")
    while True:
        for number, line in new:
            episode = numbered_episode(folder.episodes, number, line)
            turns = turns_of(episode, thinking=thinking)
            say("\n".join(["", f"{number}: {heading(episode)}", *turns, ending(episode)]))
        if not held:
            return
        held = runs()  # before the look, so that the last lines are seen
        if held and not new:
            time.sleep(LOOK_S)
        new = plays.read()


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
    episode = find_run(run).episode(number)
    say(f"{episode.number}: {heading(episode)}")
    for text in turns_of(episode, thinking=thinking, sampled=True):
        pause()
        say(text)
    say(ending(episode))
