"""A terminal that was closed, and an output that nobody reads."""

import errno
import io
from collections.abc import Callable

import pytest
from rich.console import Console

from legos.cli.output import show_table
from legos.track.console import ConsoleTracker


class Terminal(io.StringIO):
    """A terminal, which may be closed."""

    closed_by_user = False

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        if self.closed_by_user:
            raise OSError(errno.EIO, "Input/output error")
        return super().write(text)


def test_a_run_whose_terminal_was_closed_ends_without_an_error() -> None:
    """So that it counts as stopped, and not as failed."""
    out = Terminal()
    tracker = ConsoleTracker(num_steps=2, console=Console(file=out, width=80))
    tracker.log({"loss": 1.0}, step=1)
    out.closed_by_user = True
    tracker.close()
    assert "1.0000" in out.getvalue()


class Closed(io.StringIO):
    def write(self, text: str) -> int:
        raise BrokenPipeError


@pytest.mark.parametrize(
    "show",
    [
        lambda: ConsoleTracker(num_steps=1).say("a line"),
        lambda: show_table("member", {"random": {"rating": 0}}),
    ],
)
def test_a_closed_output_ends_a_command_as_other_writes_do(
    show: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout", Closed())
    with pytest.raises(BrokenPipeError):
        show()
