"""Make the HTTP application of a model and its engine; importing this takes long."""

from collections.abc import Collection

from fastapi import FastAPI

from legos.clients.engine import EngineClient
from legos.device import ModelHandle
from legos.protocols import Engine
from legos.server.app import make_app
from legos.server.matches import MatchQueue, SeatKeys
from legos.server.options import ServerOptions
from legos.server.seats import HOST, SeatHost
from legos.server.service import Service
from legos.weights.base import fingerprint_of

NO_LIMIT = 1 << 30  # the plays' own limits apply to the requests of programs in their seats


def app_of(
    handle: ModelHandle,
    engine: Engine,
    *,
    name: str,
    options: ServerOptions,
    scale: float | None = None,
    matches: MatchQueue | None = None,
    seats_only: bool = False,
    reserved: Collection[str] = (),
    client: EngineClient | None = None,
) -> FastAPI:
    """The HTTP application of a model and its engine.

    Args:
        handle: the model.
        engine: an engine of the model, such as that of a trainer.
        name: name of the base model in the API.
        options: limits on requests, keys and logging.
        scale: LoRA scale of uploaded adapters that do not state one; None: the handle's.
        matches: plays that programs can start, and the keys of seats of running plays.
        seats_only: answer only requests with such a key, and start no play.
        reserved: names of adapters that no request may load or drop.
        client: a client of the engine; None: a new one.
    """
    if scale is None and handle.lora is not None:
        scale = handle.lora.scale
    service = Service(
        client or EngineClient(engine, handle.tokenizer, use_threads=True),
        engine,
        handle.tokenizer,
        model=name,
        context=handle.context,
        fingerprint=fingerprint_of(handle.folder),
        tools=handle.tool_format,
        lora_scale=scale,
        options=options,
        seats=SeatKeys() if matches is None else matches.keys,
        matches=None if seats_only else matches,
        seats_only=seats_only,
        reserved=reserved,
    )
    app = make_app(service)
    if not seats_only:
        app.openapi()  # built now, because the first call is slow and would block a request
    return app


def seat_host(handle: ModelHandle, engine: Engine) -> SeatHost:
    """Serves seats whose client is that of an engine, in this process or on servers.

    Args:
        handle: the model.
        engine: its engine.
    """
    matches = MatchQueue(SeatKeys())
    options = ServerOptions.for_host(
        HOST, api_key=None, max_queue=NO_LIMIT, request_timeout_s=NO_LIMIT
    )

    def app() -> FastAPI:
        name = handle.folder.name
        return app_of(handle, engine, name=name, options=options, matches=matches, seats_only=True)

    return SeatHost(matches, app)
