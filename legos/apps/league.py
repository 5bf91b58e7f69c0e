"""``legos league``: the opponents of a run, and where its policy stands among them."""

from typing import Any

from legos.errors import CheckpointError
from legos.run.find import find_run
from legos.run.leagues import stored_leagues

__all__ = ["league"]


def league(run: str) -> dict[str, Any]:
    """Arena -> the figures of its league, from the newest checkpoint of a run.

    Args:
        run: folder of the run, or its name in runs/.

    Raises:
        CheckpointError: there is no such run, or it has no opponents.
    """
    folder = find_run(run)
    found = {each.arena: each.figures() for each in stored_leagues(folder)}
    if not found:
        raise CheckpointError(
            f"{folder.path} has no league: its policy plays itself alone; train with opponents, "
            f"such as --play.opponents self=0.5 --play.opponents past=0.5, or compare the adapters "
            f"that it keeps: legos tournament {folder.path}@all"
        )
    return found
