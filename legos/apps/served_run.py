"""The HTTP server of a run: the policy answers while it is trained, and programs start episodes."""

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

from legos.clients.engine import EngineClient
from legos.records.names import evaluated_name
from legos.server.listen import bind, serve_app
from legos.server.options import ServerOptions
from legos.wiring.http import app_of
from legos.wiring.trainer import Trainer

DRAIN_S = 0.5  # time that HTTP requests get when the run ends


class ServedRun:
    """Serves the policies of a run, which its clients may ask but not replace."""

    def __init__(self, trainer: Trainer, *, name: str, host: str, port: int) -> None:
        """Make the application; it does not listen yet.

        Args:
            trainer: the run's trainer.
            name: name of the base model in the API.
            host: address to listen on.
            port: port to listen on; 0: a free one.
        """
        self._trainer, self._address = trainer, (host, port)
        self._trained = {*trainer.policies, *map(evaluated_name, trainer.policies)}
        self._client = EngineClient(trainer.engine, trainer.model.tokenizer, use_threads=True)
        self._app = app_of(
            trainer.model,
            trainer.engine,
            name=name,
            options=ServerOptions.for_host(host, api_key=None),
            matches=trainer.generation.endpoints.matches,
            reserved=self._trained,
            client=self._client,
        )

    @property
    def tokens_generated(self) -> int:
        """Tokens of the run's adapters for HTTP clients, in requests that have ended."""
        return sum(self._client.tokens[name] for name in self._trained)

    @asynccontextmanager
    async def open(self, say: Callable[..., None]) -> AsyncGenerator[None]:
        """Within the block, the server answers.

        Args:
            say: receives lines with the address once the server answers.

        Raises:
            ConfigError: the port is taken.
        """
        with bind(*self._address) as listener:
            await self._trainer.publish_weights()  # the policy must be live for the first request
            with self._trainer.generation.endpoints.matches.open():
                async with serve_app(self._app, listener, drain_s=DRAIN_S) as url:
                    say(
                        f"the policy is served at {url}/v1; talk to it with",
                        f"  uv run legos chat --url {url}/v1",
                    )
                    yield
