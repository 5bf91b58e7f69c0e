"""``legos view``: serve the local page of runs until SIGINT or SIGTERM."""

import asyncio
import signal
import socket
import sys
import webbrowser
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing

from fastapi import FastAPI

from legos.apps.adapters import loaded
from legos.page.app import make_page
from legos.page.checkpoints import Checkpoints
from legos.page.shown import ShownRuns
from legos.records.limits import EngineLimits
from legos.server.listen import bind, listening
from legos.server.options import ServerOptions


def view(
    runs: Sequence[str],
    *,
    host: str,
    port: int,
    api_key: str | None,
    model: str | None = None,
    open_browser: bool,
    say: Callable[[str], object],
) -> None:
    """Show runs on a page until SIGINT or SIGTERM.

    Args:
        runs: run folders, names of runs in runs/, or folders of runs; none: all of runs/.
        host: address to listen on.
        port: port to listen on; 0: a free one.
        api_key: key that others have to enter; required where the address is not loopback.
        model: model that answers in positions, with adapters of the runs; None: none is loaded.
        open_browser: open the page in the browser of this machine.
        say: receives a message with the address.

    Raises:
        CheckpointError: a run is not found.
        ConfigError: the server cannot listen at the address, or the address needs a key.
        LegosError: the model cannot be loaded.
    """
    options = ServerOptions.for_host(host, api_key=api_key)
    shown = ShownRuns(runs)
    with closing(shown), bind(host, port) as listener, ExitStack() as stack:
        checkpoints = None
        if model is not None:
            live = stack.enter_context(loaded(model, [], EngineLimits()))
            checkpoints = Checkpoints(live.name, live.client, shown)
        app = make_page(shown, options, checkpoints)
        asyncio.run(_until_signal(app, listener, shown, open_browser=open_browser, say=say))


async def _until_signal(
    app: FastAPI,
    listener: socket.socket,
    shown: ShownRuns,
    *,
    open_browser: bool,
    say: Callable[[str], object],
) -> None:
    ended, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, ended.set)
    async with listening(app, listener) as url:
        count = len(shown.all())
        runs = "1 run" if count == 1 else f"{count} runs"
        hint = " (Ctrl-C ends it)" if sys.stdin.isatty() else ""
        say(f"showing {runs} of {', '.join(shown.places)} at {url}{hint}\n")
        if open_browser:
            await asyncio.to_thread(webbrowser.open, url)
        await ended.wait()
