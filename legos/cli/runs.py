"""``legos runs``: list runs, show one, replay one of its steps."""

from pathlib import Path

from cyclopts import App

from legos.cli.output import Flag, show, show_table

__all__ = ["runs"]

DIFFERS = 1
runs = App(name="runs", help="List runs, show one, or compute one of its steps again.")


@runs.default
def list_all(*, folder: Path = Path("runs"), json: Flag = False) -> None:
    """List the runs in a folder: how each stands, its newest reward, and its newest evaluation.

    Args:
        folder: Folder of the runs.
        json: Print one JSON object.
    """
    from legos.apps.runs import in_brief, list_runs

    found = list_runs(folder)
    if json:
        show(found, json=True)
    elif found:
        rows, problems = in_brief(found)
        show_table("run", rows, spare=("arena", "model", "forked from"))
        show("".join(f"{name}: {problem}\n" for name, problem in problems.items()))
    else:
        show(f"no run in {folder}; start one with `legos train`\n")


@runs.command(name="show")
def describe(run: str, /, *, json: Flag = False) -> None:
    """Show a run: its figures, checkpoints, adapters, and the settings that are not defaults.

    Args:
        run: Run folder, or its name in runs/.
        json: Print one JSON object.
    """
    from legos.apps.runs import describe_run

    show(describe_run(run), json=json)


@runs.command
def replay(run: str, step: int, /, *, json: Flag = False) -> int:
    """Compute a step again from disk; exit code 1 if it differs from the recorded step.

    Args:
        run: Run folder, or its name in runs/, trained with --loop.keep-batches.
        step: Number of the optimiser step, from 1.
        json: Print one JSON object.
    """
    from legos.apps.runs import replay_run

    report = replay_run(run, step)
    show(report, json=json)
    return 0 if report["exact"] else DIFFERS
