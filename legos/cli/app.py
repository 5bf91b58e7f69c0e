"""The program ``legos``: its commands, and the message when one is refused."""

import logging
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from itertools import pairwise
from pathlib import Path
from typing import Any, TextIO, cast

from cyclopts import App, CycloptsError
from cyclopts.exceptions import (
    CoercionError,
    MissingArgumentError,
    UnknownOptionError,
    UnusedCliTokensError,
)

from legos.cli.help import EVERYTHING, BriefHelp
from legos.cli.output import results_alone
from legos.errors import ConfigError, LegosError
from legos.installed import own_version

OK, REFUSED = 0, 2
_DEBUG, _JSON = "--debug", "--json"
_MORE = f"{EVERYTHING} lists every setting."
_COMMANDS = {  # name -> first sentence of its help, for which its module need not be imported
    "train": "Train a model by self-play; without options, the built-in model on nim.",
    "eval": "Evaluate the newest adapter of a run, exactly where the game allows it.",
    "init": "Write a project: an arena, its test, settings and a README.",
    "imitate": "Train a model to give the answers of a file, or the best answers of a run.",
    "serve": "Serve a model and its adapters over an OpenAI-compatible HTTP interface.",
    "chat": "Chat with a model in the terminal, in this process or on a server.",
    "play": "Play an arena in the terminal: you, bots, models and servers in any seat.",
    "tournament": "Let every member meet every other one in every seat, and rate them.",
    "exploit": "Train a policy against an adapter that stays as it is, and report what it earns.",
    "league": "Show who plays against the policy of a run, and who of them is stronger.",
    "watch": "Show the plays of a run as it writes them, or replay one.",
    "view": "Show runs on a local page: their curves, their plays, and what is wrong.",
    "report": "Write one HTML file with the curves, plays and settings of runs.",
    "runs": "List runs, or show one.",
    "export": "Write the newest adapter of a run in the format of another program.",
    "doctor": "Report facts about this machine, and check that its device computes correctly.",
    "bench": "Measure how fast a model is on this machine, beside mlx-lm alone: a table to post.",
    "arenas": "List the arenas that are known by name, check or begin one.",
}
_ALSO_CALLED = {  # what other programs call a setting -> the last part of its option
    "alpha": "lora-alpha",
    "batch-size": "tasks-per-step",
    "beta": "kl-coef",
    "epochs": "steps",
    "iters": "steps",
    "lr": "learning-rate",
    "rank": "lora-rank",
}
_KEY = "--api-key"
_NO_KEY = (
    f"{_KEY} does not exist: every user of this machine can read a command line; write the key "
    "into a file and give --api-key-file FILE, or set LEGOS_API_KEY"
)
_USUAL = {  # option of a word without one
    "bench": "--model",
    "chat": "--adapter",
    "eval": "--against",
    "imitate": "--model",
    "play": "--against",
    "serve": "--adapter",
    "train": "--arena",
}


def make_app(*, brief: bool, summaries: bool = False) -> App:
    """The program, which imports a command when it is asked for.

    Args:
        brief: whether the help of ``train`` shows only the usual options.
        summaries: whether the help of a command is its first sentence, and neither a command nor
            a parser of Markdown is imported for the list of all.
    """
    app = App(
        name="legos",
        help="Train language models by self-play, with LoRA, on one machine.",
        help_epilogue=f"{_DEBUG} with any command shows where an error comes from.",
        version=own_version,
        help_format="plaintext" if summaries else None,
        result_action="return_value",
        suppress_keyboard_interrupt=False,
    )
    for name, summary in _COMMANDS.items():
        module = "evaluate" if name == "eval" else name
        settings: dict[str, Any] = {"help": summary} if summaries else {}
        if name == "train" and brief:
            settings |= {"help_formatter": BriefHelp(), "help_epilogue": _MORE}
        app.command(f"legos.cli.{module}:{module}", name=name, **settings)
    untyped = cast("Any", app)
    untyped.register_install_completion_command(help="Complete commands and options in this shell.")
    return app


class _Log(logging.StreamHandler[TextIO]):
    """Writes to what is standard error now: a table on the terminal takes its place."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line."""
        self.setStream(sys.stderr)
        super().emit(record)


def run(arguments: Sequence[str]) -> int:
    """Run one command.

    Args:
        arguments: the name of the command, and its options.

    Returns:
        Exit code: 0 success, 2 refused or failed with a message, or the command's own.
    """
    debug = _DEBUG in arguments
    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s", handlers=[_Log()])
    if debug:
        logging.getLogger("legos").setLevel(logging.DEBUG)
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.append(here)  # --arena module:Class finds modules as python -m does
    named = bool(arguments) and arguments[0] in _COMMANDS
    program = make_app(brief=EVERYTHING not in arguments, summaries=not named)
    try:
        _check_encoding(arguments)
        with results_alone() if _JSON in arguments else nullcontext():
            result = program(
                ["--help" if word == EVERYTHING else word for word in arguments if word != _DEBUG],
                exit_on_error=False,
                print_error=False,
            )
    except (CycloptsError, LegosError) as error:
        if debug:
            raise
        notes = [note for note in getattr(error, "__notes__", []) if note != str(error)]
        sys.stderr.write("\n".join([f"error: {_message(error, arguments)}", *notes]) + "\n")
        return REFUSED
    return result if isinstance(result, int) else OK


def _check_encoding(arguments: Sequence[str]) -> None:
    """Refuse arguments that no file of a run could hold.

    Raises:
        ConfigError: an argument is not in the encoding of the terminal.
    """
    for word in arguments:
        try:
            word.encode()
        except UnicodeEncodeError:
            raise ConfigError(
                f"argument {word!r} is not text in UTF-8; rename the file, or set the encoding of "
                "the terminal to UTF-8"
            ) from None


def _unknown_option(error: UnknownOptionError) -> str:
    word = error.token.keyword or error.token.value
    if word == _KEY:
        return _NO_KEY
    last = word.lstrip("-").rpartition(".")[2].replace("_", "-")
    known = (name for argument in error.argument_collection for name in argument.names)
    wanted = (last, _ALSO_CALLED.get(last))
    found = next((n for n in known if n.lstrip("-").rpartition(".")[2] in wanted), None)
    return f"Unknown option: {word}. Did you mean {found}?" if found else f"{error}"


def _message(error: Exception, arguments: Sequence[str]) -> str:
    if isinstance(error, UnknownOptionError):
        return _unknown_option(error)
    if isinstance(error, CoercionError | MissingArgumentError) and "Choose from" not in f"{error}":
        return f"{error} See `legos {' '.join(error.command_chain or ())} --help`."
    if not isinstance(error, UnusedCliTokensError) or not error.unused_tokens:
        return f"{error}"
    word = error.unused_tokens[0]
    if arguments[0] == "runs":
        return f"{word!r} is not expected here; `legos runs show {word}` describes a run"
    before = [one for one, two in pairwise(arguments) if two == word]
    if before and all(one.startswith("--") and "=" not in one for one in before):
        return f"{before[0]} takes no value: it is on where it is given; leave {word!r} out"
    usual = _USUAL.get(arguments[0])
    example = f", for instance `legos {arguments[0]} {usual} {word}`" if usual else ""
    return f"{word!r} is not expected here; options have names{example}; --help lists them"
