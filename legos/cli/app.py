"""The program ``legos``: its commands, and what it says when one is refused."""

import logging
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from importlib.metadata import version
from pathlib import Path

from cyclopts import App, CycloptsError

from legos.cli import commands
from legos.cli.help import EVERYTHING, BriefHelp
from legos.cli.output import results_alone
from legos.cli.runs import runs
from legos.errors import LegosError

__all__ = ["app", "run"]

OK, REFUSED = 0, 2
_DEBUG, _JSON = "--debug", "--json"


def _make_app(*, brief: bool) -> App:
    """The program; its help of ``train`` has the usual options where it is brief, else all."""
    app = App(
        name="legos",
        help="Self-play reinforcement learning with LoRA, on the machine at hand.",
        help_epilogue=f"{_DEBUG} with any command shows where an error comes from.",
        version=lambda: version("legos"),
        result_action="return_value",
        suppress_keyboard_interrupt=False,
    )
    app.command(
        commands.train,
        help_formatter=BriefHelp() if brief else None,
        help_epilogue=f"{EVERYTHING} lists every setting." if brief else None,
    )
    app.command(commands.evaluate, name="eval")
    app.command(commands.serve)
    app.command(commands.chat)
    app.command(commands.export)
    app.command(commands.doctor)
    app.command(runs)
    app.command(commands.bench)
    app.command(commands.arenas)
    return app


app = _make_app(brief=True)


def run(given: Sequence[str]) -> int:
    """Run one command.

    Args:
        given: its name and options.

    Returns:
        Exit code: 0 done, 2 refused or failed with a message, or what the command asks for.
    """
    debug = _DEBUG in given
    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s")
    if debug:
        logging.getLogger("legos").setLevel(logging.DEBUG)
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.append(here)  # so that --arena module:Class finds modules as python -m would
    everything = EVERYTHING in given
    try:
        with results_alone() if _JSON in given else nullcontext():
            asked = (_make_app(brief=False) if everything else app)(
                ["--help" if word == EVERYTHING else word for word in given if word != _DEBUG],
                exit_on_error=False,
                print_error=False,
            )
    except (CycloptsError, LegosError) as error:
        if debug:
            raise
        notes: list[str] = getattr(error, "__notes__", [])
        sys.stderr.write("\n".join([f"error: {error}", *notes]) + "\n")
        return REFUSED
    return asked if isinstance(asked, int) else OK
