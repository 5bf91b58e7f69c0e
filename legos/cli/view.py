"""``legos view``: show runs on a local page."""

from legos.cli.output import Flag, show
from legos.cli.overrides import Integer, Key


def view(
    *run: str,
    host: str = "127.0.0.1",
    port: Integer = 8080,
    api_key: Key = None,
    model: str | None = None,
    open: Flag = False,
) -> None:
    """Show runs on a local page: their curves, their plays, and what is wrong.

    The page reads run folders only, also of runs that are running, and changes nothing in them.

    Args:
        run: Run folders, names of runs in runs/, or folders of runs; by default all of runs/.
        host: Address to listen on; addresses other than loopback need an API key.
        port: Port to listen on; 0: a free port.
        api_key: File with the key that the page asks for.
        model: Model folder, name on the hub, or "builtin", which answers in Positions, with and
            without adapters of the runs; by default no model is loaded.
        open: Open the page in the browser.
    """
    from legos.apps.view import view as serve

    serve(run, host=host, port=port, api_key=api_key, model=model, open_browser=open, say=show)
