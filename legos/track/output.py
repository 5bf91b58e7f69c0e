"""A console of rich on standard output, which may be closed before the command has ended."""

from rich.console import Console


class OutputConsole(Console):
    """Where nobody reads any more, it raises what other writes do, and not ``SystemExit``."""

    def on_broken_pipe(self) -> None:
        """Raise the error that ends a command, for which ``legos.cli.process`` has an exit code.

        Raises:
            BrokenPipeError: in any case.
        """
        raise BrokenPipeError("standard output was closed")
