"""``legos serve``: a model and its adapters over HTTP, until the process is told to end."""

import asyncio
import json
import logging
import signal
import socket
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from fastapi import FastAPI

from legos.builtin import BUILTIN, EXAMPLE
from legos.clients.engine import EngineClient
from legos.data.limits import EngineLimits
from legos.data.names import POLICY
from legos.errors import ConfigError
from legos.protocols import Engine
from legos.run.find import find_adapter
from legos.server.app import make_app
from legos.server.endpoints.uploads import checked_name
from legos.server.listen import bind, serve_app
from legos.server.options import ServerOptions
from legos.weights.adapter import Adapter
from legos.weights.folder import read_adapter
from legos.wiring.machine import quiet_collector
from legos.wiring.model import ModelHandle, apply_lora, load_model
from legos.wiring.serving import base_of, put_on, tool_format_of, watched_engine

__all__ = ["app_of", "serve"]


def serve(
    *,
    model: str | None,
    adapters: Sequence[str],
    host: str,
    port: int,
    options: ServerOptions,
    drain_s: float,
    say: Callable[[str], None],
) -> None:
    """Answer requests until the process is told to end; those that run then may end.

    Args:
        model: a folder, a hub name, or the built-in model; None: what the adapters were trained on.
        adapters: what ``find_adapter`` finds, live as ``policy``, or as NAME where NAME= stands
            before it.
        host: address to listen on.
        port: 0 picks a free one.
        options: what is let in.
        drain_s: how long running requests may take to end, seconds.
        say: told the address, once requests are answered.

    Raises:
        ConfigError: the address cannot be listened on, or two adapters have one name.
        LegosError: the model or an adapter cannot be loaded.
    """
    logging.getLogger("legos.server").setLevel(logging.INFO)
    loaded = _read(adapters)
    model = base_of(model, loaded)
    with ExitStack() as stack:
        listener = stack.enter_context(bind(host, port))  # before the model, which takes long
        handle = load_model(model)
        stack.callback(handle.close)
        if not loaded:
            apply_lora(handle)
            loaded = [handle.base_adapter()]
        engine = watched_engine(handle, EngineLimits(max_rows=options.max_running))
        stack.callback(engine.close)
        for adapter in loaded:
            put_on(engine, adapter, model)
        scale = loaded[0].shape.scale
        app = app_of(handle, engine, name=_short(model), options=options, scale=scale)
        quiet_collector()
        asyncio.run(_until_told(app, listener, drain_s, say))


def app_of(
    handle: ModelHandle,
    engine: Engine,
    *,
    name: str,
    options: ServerOptions,
    scale: float | None = None,
) -> FastAPI:
    """The application over a loaded model and its engine.

    Args:
        handle: the model.
        engine: one of its engines, a trainer's for instance.
        name: what the base model is called.
        options: what is let in.
        scale: LoRA's multiplier where a loaded adapter says none; None: the handle's.
    """
    if scale is None and handle.lora is not None:
        scale = handle.lora.scale
    app = make_app(
        EngineClient(engine, handle.tokenizer, use_threads=True),
        engine,
        handle.tokenizer,
        model=name,
        context=handle.context,
        tools=tool_format_of(handle),
        lora_scale=scale,
        options=options,
    )
    app.openapi()  # which takes a while the first time, and holds whoever asks then
    return app


async def _until_told(
    app: FastAPI, listener: socket.socket, drain_s: float, say: Callable[[str], None]
) -> None:
    """Serve until SIGINT or SIGTERM; a second one ends the process at once."""
    loop = asyncio.get_running_loop()
    told = asyncio.Event()

    def end(number: int) -> None:
        told.set()
        loop.remove_signal_handler(number)

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, end, number)
    async with serve_app(app, listener, drain_s=drain_s) as url:
        service = app.state.service
        live = [f"{name}@{version}" for name, version in service.engine.versions().items()]
        key = '-H "Authorization: Bearer $LEGOS_API_KEY" ' if service.options.api_key else ""
        plays = service.model == BUILTIN  # and knows no language
        content = EXAMPLE if plays else "Hello"
        bound = {"choices": EXAMPLE.split()[-3:]} if plays else {"max_tokens": 64}
        asked = {"messages": [{"role": "user", "content": content}], **bound}
        say(
            f"serving {', '.join([service.model, *live])} at {url}/v1 (page: {url}/docs)\n"
            f"curl {url}/v1/chat/completions {key}-H 'Content-Type: application/json' "
            f"-d '{json.dumps(asked)}'\n"
        )
        await told.wait()


def _read(adapters: Sequence[str]) -> list[Adapter]:
    """The adapters of a command line, in its order."""
    read: dict[str, Adapter] = {}
    for given in adapters:
        name, found, folder = given.partition("=")
        if not found or not name or "/" in name:
            name, folder = POLICY, given
        if name in read:
            raise ConfigError(
                f"two adapters are called {name!r}; name them: --adapter NAME=RUN --adapter ..."
            )
        read[name] = replace(read_adapter(find_adapter(folder)), name=checked_name(name))
    return list(read.values())


def _short(model: str) -> str:
    """What a model is called: a folder's own name, a hub name as it is."""
    folder = Path(model)
    return folder.resolve().name if folder.is_dir() else model
