"""``legos league``: the opponents of a run, and where its policy stands among them."""

from typing import Any

from legos.config.resolve import read_config
from legos.errors import CheckpointError
from legos.files.atomic import refusals_named
from legos.run.ending import standing
from legos.run.find import find_run
from legos.run.leagues import stored_leagues
from legos.run.metrics import MetricTail


def league(run: str) -> dict[str, Any]:
    """Arena -> the figures of its league, from the newest checkpoint of a run.

    Args:
        run: folder of the run, or its name in runs/.

    Raises:
        CheckpointError: there is no such run, it has no opponents, its metrics cannot be read, or
            the file of people's plays is damaged.
        ConfigError: its settings cannot be read.
    """
    folder = find_run(run)
    leagues = stored_leagues(folder, read_config(folder.settings))
    metrics = MetricTail(folder.metrics, steps_alone=True).read()
    found = {each.arena: each.figures(metrics) for each in leagues}
    if not found:
        raise CheckpointError(
            f"{folder.path} has no league: its policy plays itself alone; train with opponents, "
            f"such as --play.opponents self=0.5 --play.opponents past=0.5, or compare the adapters "
            f"that it keeps: legos tournament {folder.path}@all"
        )
    return found


def ask_for_snapshot(run: str) -> None:
    """Ask a run, which a process trains now, for a snapshot of its league after its next step.

    Raises:
        CheckpointError: no process trains it, it has no opponents, or its folder is read-only.
    """
    league(run)
    folder = find_run(run)
    if standing(folder, done=False) != "running":
        raise CheckpointError(
            f"no process trains {folder.path} now, so its policy does not change; resume it, or "
            f"name its newest adapter as an opponent of another run: --play.opponents {run}=0.2"
        )
    with refusals_named(folder.request):
        folder.request.touch()
