"""``legos serve``: answer HTTP requests with a model and its adapters until SIGINT or SIGTERM."""

import asyncio
import json
import logging
import os
import signal
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path

from fastapi import FastAPI

from legos.apps.adapters import loaded
from legos.apps.restart import end_process
from legos.builtin import BUILTIN, EXAMPLE
from legos.config.schema import GenerationConfig
from legos.errors import ConfigError
from legos.mac import awake
from legos.machine import quiet_collector
from legos.records.message import Thinking
from legos.records.names import POLICY
from legos.server.app import service_of
from legos.server.listen import bind, serve_app
from legos.server.options import ServerOptions
from legos.stalls import LoopWatch, Watchdog
from legos.weights.adapter import Adapter, checked_name
from legos.wiring.http import app_of
from legos.wiring.named import named_adapter

STUCK_S = 300.0  # a step or a load of an adapter that takes longer hangs


def serve(
    *,
    model: str | None,
    adapters: Sequence[str],
    host: str,
    port: int,
    options: ServerOptions,
    memory_gib: float | None = None,
    thinking: Thinking | None = None,
    drain_s: float,
    keep_awake: bool = True,
    say: Callable[[str], None],
) -> None:
    """Answer requests until SIGINT or SIGTERM; running requests then get time to finish.

    Args:
        model: a folder, a name on the hub, or the built-in model; None: the model that the adapters
            were trained on.
        adapters: what ``named_adapter`` reads, live as ``policy``, or as NAME after ``NAME=``.
        host: address to listen on.
        port: port to listen on; 0: a free one.
        options: limits on requests, keys and logging.
        memory_gib: memory that the engine may use in all, in GiB; None: most of the machine's.
        thinking: what prompts of chats ask for; None: the same as in the training of the adapter.
        drain_s: time that running requests get to finish, in seconds.
        keep_awake: whether macOS does not sleep meanwhile.
        say: receives a message with the address once the server answers.

    Raises:
        ConfigError: the server cannot listen at the address, or two adapters have the same name.
        LegosError: the model or an adapter cannot be loaded.
    """
    logging.getLogger("legos.server").setLevel(logging.INFO)
    named = _read(adapters)
    limits = GenerationConfig(max_batch=options.max_running).limits(memory_gib)
    with (
        bind(host, port) as listener,  # before the model, which takes long to load
        loaded(model, named, limits, thinking=thinking) as live,
        awake() if keep_awake else nullcontext(),
    ):
        app = app_of(
            live.handle, live.engine, name=_short(live.name), options=options, scale=live.scale
        )
        quiet_collector()
        asyncio.run(_until_signal(app, listener, drain_s, say, lambda: live.handle.turns))


async def _until_signal(
    app: FastAPI,
    listener: socket.socket,
    drain_s: float,
    say: Callable[[str], None],
    turns: Callable[[], Mapping[str, int | None]],
) -> None:
    """Serve until SIGINT or SIGTERM; a second signal ends the process at once."""
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()

    def end(number: int) -> None:
        ended.set()
        loop.remove_signal_handler(number)

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, end, number)
    service = service_of(app)
    watch = LoopWatch(service.metrics.loop_lag_s.observe)
    async with serve_app(app, listener, drain_s=drain_s) as url:
        live = [f"{name}@{version}" for name, version in service.engine.versions().items()]
        key = bearer_option(service.options.api_key)
        plays = service.model == BUILTIN  # it has not learned language
        content = EXAMPLE if plays else "Hello"
        bound = {"choices": EXAMPLE.split()[-3:]} if plays else {"max_tokens": 64}
        body = {"messages": [{"role": "user", "content": content}], **bound}
        say(
            f"serving {', '.join([service.model, *live])} at {url}/v1 (page: {url}/docs)\n"
            f"curl {url}/v1/chat/completions {key}-H 'Content-Type: application/json' "
            f"-d '{json.dumps(body)}'\n"
        )

        def check(dog: Watchdog) -> None:
            watch.check(dog)
            end_if_stuck(dog, turns())

        with Watchdog(check, name="legos-serve-watchdog"):
            await ended.wait()
        say(f"stopping; running requests get {drain_s:g} s to finish (Ctrl-C again: at once)\n")


def bearer_option(key: str | None) -> str:
    """The option of a curl command that sends the key of a server; empty: it has none."""
    if not key:
        return ""
    named = "$LEGOS_API_KEY" if os.environ.get("LEGOS_API_KEY") == key else "KEY"
    return f'-H "Authorization: Bearer {named}" '


def end_if_stuck(dog: Watchdog, turns: Mapping[str, int | None]) -> None:
    """End this process where a thread of the model hangs: a GPU would hang in it again.

    Args:
        dog: measures how long each thread has been in its turn.
        turns: see ``ModelHandle.turns``.
    """
    for name, turn in turns.items():
        seconds = dog.still_s(name, turn)
        if seconds > STUCK_S:
            end_process(f"{name} has not responded for {seconds:.0f} s; start the server again")


def _read(adapters: Sequence[str]) -> list[Adapter]:
    """Read the adapters of a command line, in its order.

    Args:
        adapters: what ``named_adapter`` reads, or ``NAME=`` and that.

    Raises:
        ConfigError: two have the same name.
        LegosError: one cannot be read.
    """
    read: dict[str, Adapter] = {}
    for text in adapters:
        name, equals, source = text.partition("=")
        if not equals or not name or "/" in name:
            name, source = POLICY, text
        if name in read:
            raise ConfigError(
                f"two adapters are called {name!r}; name them: --adapter NAME=RUN --adapter ..."
            )
        read[name] = named_adapter(source, name=checked_name(name))
    return list(read.values())


def _short(model: str) -> str:
    """Name of a model in the API: the last part of a folder, a name on the hub as it is."""
    folder = Path(model)
    return folder.resolve().name if folder.is_dir() else model
