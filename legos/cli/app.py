"""The program ``legos``: its commands, and how it ends."""

import logging
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from cyclopts import App, CycloptsError

from legos.cli import commands
from legos.errors import LegosError

__all__ = ["app", "main"]

OK, REFUSED, INTERRUPTED = 0, 2, 130
_DEBUG = "--debug"

app = App(
    name="legos",
    help="Self-play reinforcement learning with LoRA, on the machine at hand.",
    help_epilogue=f"{_DEBUG} with any command shows where an error comes from.",
    version=lambda: version("legos"),
    result_action="return_value",
    suppress_keyboard_interrupt=False,
)
app.command(commands.train)
app.command(commands.evaluate, name="eval")
app.command(commands.serve)
app.command(commands.bench)
app.command(commands.arenas)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        arguments: of the command line; those of the process by default.

    Returns:
        Exit code: 0 done, 2 refused or failed with a message, 130 interrupted.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    debug = _DEBUG in given
    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s")
    if debug:
        logging.getLogger("legos").setLevel(logging.DEBUG)
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.append(here)  # so that --arena module:Class finds modules as python -m would
    try:
        app(
            [argument for argument in given if argument != _DEBUG],
            exit_on_error=False,
            print_error=False,
        )
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        return INTERRUPTED
    except (CycloptsError, LegosError) as error:
        if debug:
            raise
        sys.stderr.write(f"error: {error}\n")
        return REFUSED
    return OK
