"""The program ``legos``: its commands, and the message when one is refused."""

import logging
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from importlib.metadata import version
from pathlib import Path

from cyclopts import App, CycloptsError
from cyclopts.exceptions import UnusedCliTokensError

from legos.cli import commands
from legos.cli.arenas import arenas
from legos.cli.help import EVERYTHING, BriefHelp
from legos.cli.output import results_alone
from legos.cli.play import play, watch
from legos.cli.runs import runs
from legos.errors import LegosError

__all__ = ["app", "run"]

OK, REFUSED = 0, 2
_DEBUG, _JSON = "--debug", "--json"


def _make_app(*, brief: bool) -> App:
    """The program; with ``brief``, the help of ``train`` shows only the usual options."""
    app = App(
        name="legos",
        help="Train language models by self-play, with LoRA, on one machine.",
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
    for command in (
        commands.serve,
        commands.chat,
        play,
        watch,
        commands.export,
        commands.doctor,
        runs,
        commands.bench,
        arenas,
    ):
        app.command(command)
    return app


app = _make_app(brief=True)


def run(arguments: Sequence[str]) -> int:
    """Run one command.

    Args:
        arguments: the name of the command, and its options.

    Returns:
        Exit code: 0 success, 2 refused or failed with a message, or the command's own.
    """
    debug = _DEBUG in arguments
    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s")
    if debug:
        logging.getLogger("legos").setLevel(logging.DEBUG)
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.append(here)  # --arena module:Class finds modules as python -m does
    program = _make_app(brief=False) if EVERYTHING in arguments else app
    try:
        with results_alone() if _JSON in arguments else nullcontext():
            result = program(
                ["--help" if word == EVERYTHING else word for word in arguments if word != _DEBUG],
                exit_on_error=False,
                print_error=False,
            )
    except (CycloptsError, LegosError) as error:
        if debug:
            raise
        notes: list[str] = getattr(error, "__notes__", [])
        sys.stderr.write("\n".join([f"error: {_message(error)}", *notes]) + "\n")
        return REFUSED
    return result if isinstance(result, int) else OK


def _message(error: Exception) -> str:
    if not isinstance(error, UnusedCliTokensError) or not error.unused_tokens:
        return f"{error}"
    return (
        f"{error.unused_tokens[0]!r} is not expected here; options have names, for instance "
        "`legos train --arena nim`; --help lists them"
    )
