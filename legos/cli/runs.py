"""``legos runs``: the list of runs, and what can be asked of one."""

from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from legos.cli.output import show, show_table

__all__ = ["runs"]

DIFFERS = 1
runs = App(name="runs", help="List runs, show one, or compute one of its steps again.")

_Json = Annotated[bool, Parameter(negative="", show_default=False)]


@runs.default
def list_all(*, folder: Path = Path("runs"), json: _Json = False) -> None:
    """List the runs in a folder with their last figures.

    Args:
        folder: Where they stand.
        json: Print one JSON object.
    """
    from legos.apps.runs import in_brief, list_runs

    found = list_runs(folder)
    if json:
        show(found, json=True)
    elif found:
        show_table("run", in_brief(found))
    else:
        show(f"no run in {folder}; start one with `legos train`\n")


@runs.command(name="show")
def describe(run: str, /, *, json: _Json = False) -> None:
    """Show what is in a run: figures, checkpoints, adapters, and the settings that were given.

    Args:
        run: Run folder, or its name in runs/.
        json: Print one JSON object.
    """
    from legos.apps.runs import describe_run

    show(describe_run(run), json=json)


@runs.command
def replay(run: str, step: int, /, *, json: _Json = False) -> int:
    """Compute a step again from the disk; exit code 1 where it differs from what was recorded.

    Args:
        run: Run folder, or its name in runs/, trained with --loop.keep-batches.
        step: Optimiser step.
        json: Print one JSON object.
    """
    from legos.apps.runs import replay_run

    report = replay_run(run, step)
    show(report, json=json)
    return 0 if report["exact"] else DIFFERS
