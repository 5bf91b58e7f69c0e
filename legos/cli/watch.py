"""``legos watch``: look at plays of a run."""

import sys

from legos.cli.output import Flag, show_line
from legos.cli.overrides import Integer, Whole


def watch(
    run: str,
    /,
    *,
    episode: Integer | None = None,
    last: Whole = 3,
    thinking: Flag = False,
) -> None:
    """Show the plays of a run as it writes them, or replay one.

    Args:
        run: Run folder, or its name in runs/.
        episode: Show only this play, turn by turn; Enter shows the next turn. The first is 1, the
            newest -1.
        last: Number of plays to show of those that are there already.
        thinking: Show what the models think.
    """
    from legos.apps.watch import replay
    from legos.apps.watch import watch as follow

    if episode is None:
        follow(run, last=last, thinking=thinking, say=show_line)
        return

    def pause() -> None:
        if sys.stdin.isatty():
            sys.stdin.readline()

    replay(run, episode, thinking=thinking, say=show_line, pause=pause)
