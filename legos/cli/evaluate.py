"""``legos eval``: evaluate an adapter of a run."""

from typing import Annotated

from cyclopts import Group, Parameter

from legos.cli.output import Flag, show
from legos.cli.overrides import EvaluationLoopOptions, PlaySettings, dotted

__all__ = ["evaluate"]


def evaluate(
    run: str,
    /,
    *,
    adapter: str | None = None,
    json: Flag = False,
    play: PlaySettings = None,
    loop: Annotated[
        EvaluationLoopOptions | None, Parameter(group=Group("Evaluation", sort_key=1))
    ] = None,
) -> None:
    """Evaluate the newest adapter of a run, exactly where the game allows it.

    Settings that are not given keep the values of the run.

    Args:
        run: Run folder, or its name in runs/; RUN@STEP, RUN@best or RUN@vN for another adapter.
        adapter: Evaluate this one on the run's arena: an adapter folder, or another run.
        json: Print one JSON object.
        play: Settings of the arena.
        loop: Settings of evaluation plays.
    """
    from legos.apps.evaluate import evaluate_run

    metrics = evaluate_run(run, adapter=adapter, overrides=dotted({"play": play, "loop": loop}, {}))
    known = {name: value for name, value in metrics.items() if value is not None}
    show(metrics if json else known, json=json)
