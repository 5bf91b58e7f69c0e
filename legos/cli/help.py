"""The short help of ``legos train``: the options that most runs need."""

from typing import TYPE_CHECKING

from cyclopts.help import DefaultFormatter, HelpPanel

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions

EVERYTHING = "--help-all"
_USUAL = """
    model arena steps out seed config resume serve dry-run
    play.tasks-per-step play.group-size play.restrict-choices play.options
    generation.max-tokens generation.temperature
    training.learning-rate training.kl-coef training.entropy-coef
"""
USUAL = frozenset(f"--{name}" for name in _USUAL.split())
"""Options that most runs need."""


class BriefHelp(DefaultFormatter):
    """Shows only the usual options; ``--help-all`` shows all."""

    def __call__(self, console: "Console", options: "ConsoleOptions", panel: HelpPanel) -> None:
        """Print the usual options of one group."""
        usual = [
            entry.copy(negative_names=())
            for entry in panel.entries
            if not USUAL.isdisjoint(entry.names)
        ]
        if usual:
            super().__call__(console, options, panel.copy(entries=usual))
