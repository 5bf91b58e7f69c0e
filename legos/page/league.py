"""The opponents of a run: ratings over its steps, and what members earned against each other."""

from typing import Any

from legos.errors import CheckpointError
from legos.page.run_view import RunView
from legos.run.checkpoint import checkpoints
from legos.run.leagues import stored_leagues

_POINTS = 500  # of a chart


def league(run: RunView) -> dict[str, Any]:
    """What the view of the league shows, as JSON values."""
    if run.config is None or not checkpoints(run.folder.checkpoints):
        return {"leagues": [], "problem": None}
    try:
        leagues = stored_leagues(run.folder, run.config)
    except CheckpointError as error:
        return {"leagues": [], "problem": str(error)}
    shown = [
        each.figures(run.metrics) | {"shares": each.shares} | _over_steps(run, each.prefix)
        for each in leagues
    ]
    return {"leagues": shown, "problem": None, "plays_kept": run.config.loop.plays_kept}


def _over_steps(run: RunView, prefix: str) -> dict[str, Any]:
    """The rating of the policy at each snapshot, and who was met in each step."""

    def points(name: str) -> list[Any]:
        return run.metrics.points(f"{prefix}{name}", most=_POINTS)

    low, high = (dict(points(name)) for name in ("elo_low", "elo_high"))
    of = f"{prefix}plays_"
    met = [name.removeprefix(of) for name in run.metrics if name.startswith(of)]
    return {
        "elo": [[step, elo, low.get(step), high.get(step)] for step, elo in points("elo")],
        "met": {
            name: {"plays": points(f"plays_{name}"), "score": points(f"score_{name}")}
            for name in met
        },
    }
