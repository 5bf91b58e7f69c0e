"""The HTTP server of a run: the policy answers while it is trained, and programs start episodes."""

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

from legos.apps.shared_engine import SharedEngine
from legos.server.listen import bind, serve_app
from legos.server.options import ServerOptions
from legos.wiring.http import app_of
from legos.wiring.trainer import Trainer

__all__ = ["served_run"]

DRAIN_S = 0.5  # time that HTTP requests get when the run ends


@asynccontextmanager
async def served_run(
    trainer: Trainer,
    shared: SharedEngine,
    *,
    name: str,
    host: str,
    port: int,
    say: Callable[..., None],
) -> AsyncGenerator[None]:
    """Within the block, an HTTP server answers with the policy.

    Args:
        trainer: the run's trainer.
        shared: its engine, for requests that belong to no episode.
        name: name of the base model in the API.
        host: address to listen on.
        port: port to listen on; 0: a free one.
        say: receives lines with the address once the server answers.

    Raises:
        ConfigError: the port is taken.
    """
    listener = bind(host, port)
    await trainer.publish_weights()  # the policy must be live before the first request
    options = ServerOptions.for_host(host, api_key=None)
    lobby = trainer.endpoints.lobby
    app = app_of(trainer.model, shared, name=name, options=options, lobby=lobby)
    with lobby.open():
        async with serve_app(app, listener, drain_s=DRAIN_S) as url:
            say(
                f"the policy is served at {url}/v1; talk to it with",
                f"  uv run legos chat --url {url}/v1",
            )
            yield
