"""The engine of a trainer: in this process, or on servers that run elsewhere."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from legos.clients.answers import dialect_of, listed_models
from legos.clients.engine import EngineClient
from legos.clients.requests import Dialect
from legos.clients.transport import Transport, api_root
from legos.device import LocalEngine, ModelHandle
from legos.errors import ConfigError, EndpointError, EngineError, RequestError
from legos.records.message import Thinking
from legos.records.names import frozen_name
from legos.remote.engine import RemoteEngine
from legos.remote.legos_server import RETRIES, LegosServer, ListedAdapters
from legos.remote.publish.broadcast import Broadcaster
from legos.wiring.same_model import check_same_model

if TYPE_CHECKING:
    from legos.server.seats import SeatHost


@dataclass(eq=False)
class TokenEngine:
    """An engine that takes token ids, wherever it runs, and the model that renders its prompts.

    Attributes:
        engine: the engine.
        model: its model.
        closing: called after the engine was closed.
    """

    engine: LocalEngine
    model: ModelHandle
    closing: Callable[[], object] = lambda: None

    def client(self, thinking: Thinking | None = None) -> EngineClient:
        """A client of the engine, whose seats other programs can play too.

        Args:
            thinking: what prompts of chats ask for; None: as the model's tokenizer does.
        """
        model = self.model
        return EngineClient(
            self.engine,
            model.tokenizer if thinking is None else model.tokenizer.with_thinking(thinking),
            tool_format=lambda: model.tool_format,
            endpoints=lambda: self.endpoints,
            context=model.context,
        )

    @cached_property
    def endpoints(self) -> "SeatHost":
        """Serves the seats of plays to other programs (``Table.endpoint``)."""
        from legos.wiring.http import seat_host  # a slow import

        return seat_host(self.model, self.engine)

    def close(self) -> None:
        """Stop the engine, and what was started for it; a server that ran before goes on."""
        self.engine.close()
        self.closing()


MakeEngine = Callable[[ModelHandle], TokenEngine]
"""Makes the engine of a model, which has LoRA."""


def served_engine(
    urls: Sequence[str],
    model: ModelHandle,
    *,
    api_key: str | None,
    policies: Sequence[str] | None = None,
    rivals: int = 0,
) -> TokenEngine:
    """The engine on running servers (``legos serve``), which must have the model.

    Args:
        urls: their addresses.
        model: the trainer's model, with LoRA.
        api_key: their API key.
        policies: names of the adapters that stay there after the run; None: all.
        rivals: number of further adapters that play at the same time.

    Raises:
        ConfigError: a server may not have as many adapters.
        ModelError: a server has another model, or another tokenizer.
        EngineError: a server does not answer.
    """
    servers = [
        LegosServer(url, api_key=api_key, load_retries=RETRIES, staying=policies) for url in urls
    ]
    engine = RemoteEngine(servers, Broadcaster((server.name, server) for server in servers))
    with ExitStack() as stack:
        stack.callback(engine.close)
        check_same_model(engine, model, where="server")
        for server in servers if rivals else ():
            _check_room(server, engine.call(server.live()).result(), policies or (), rivals)
        return TokenEngine(engine, model, closing=stack.pop_all().close)


def _check_room(
    server: LegosServer, live: ListedAdapters, policies: Sequence[str], rivals: int
) -> None:
    """Refuse a server whose adapters would be too many once the pool of a league is full.

    Those that may be of this run, which is resumed, count once.
    """
    most, own = live.max_adapters, (*policies, frozen_name(""))
    others = sum(not each.name.startswith(own) for each in live.adapters)
    needed = 2 * len(policies) + rivals
    if most is not None and others + needed > most:
        raise ConfigError(
            f"server {server.name} may have {most} adapters (--max-adapters) and has {others} of "
            f"others, but this run needs {needed}: its policies, their evaluated copies, and "
            f"{rivals} opponents; start it with --max-adapters {others + needed}, or keep fewer "
            "snapshots (league.snapshots)"
        )


async def kind_of(url: str, *, api_key: str | None) -> Dialect:
    """The kind of a server.

    Raises:
        EngineError: it does not answer.
    """
    server = Transport(api_root(url), api_key=api_key, timeout_s=60.0, max_connections=1, retries=2)
    try:
        return dialect_of(await server.request("GET", "/models", listed_models))
    except (EndpointError, RequestError) as error:
        raise EngineError(str(error)) from error
    finally:
        await server.aclose()
