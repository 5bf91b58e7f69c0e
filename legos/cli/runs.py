"""``legos runs``: list runs and show one."""

from pathlib import Path

from cyclopts import App

from legos.cli.output import Flag, show, show_table

runs = App(name="runs", help="List runs, or show one.")


@runs.default
def list_all(*, folder: Path = Path("runs"), json: Flag = False) -> None:
    """List the runs in a folder: their state, newest reward, and newest evaluation.

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
    """Show a run: its metrics, checkpoints, adapters, and the settings that are not defaults.

    Args:
        run: Run folder, or its name in runs/.
        json: Print one JSON object.
    """
    from legos.apps.runs import describe_run

    show(describe_run(run), json=json)
