"""Make the servers that compute reference log-probabilities, and compare them with the trainer."""

import asyncio
from contextlib import ExitStack

from legos.clients.references import ReferenceServers
from legos.clients.remote import RemoteEngine
from legos.clients.served import LegosServer
from legos.clients.transport import server_name
from legos.config.objective import ObjectiveSettings
from legos.device import ModelHandle
from legos.errors import ConfigError
from legos.wiring.engines import kind_of
from legos.wiring.same_model import check_same_model

__all__ = ["reference_servers"]

PATIENCE_S = 180.0  # maximum time of one answer


def reference_servers(
    config: ObjectiveSettings, model: ModelHandle, *, api_key: str | None
) -> ReferenceServers | None:
    """The servers of ``kl_server``; None: it is empty.

    Args:
        config: settings of training.
        model: the trainer's model with LoRA.
        api_key: API key of the servers.

    Raises:
        ConfigError: a server is not `legos serve`.
        ModelError: a server has another model or vocabulary.
        EngineError: a server does not answer.
    """
    urls = config.kl_server
    if not urls:
        return None
    servers = [asyncio.run(_server(url, api_key=api_key)) for url in urls]
    engine = RemoteEngine(servers, None)
    with ExitStack() as stack:
        stack.callback(engine.close)
        check_same_model(engine, model, where="training.kl_server")
        stack.pop_all()
    return ReferenceServers(
        engine, names=list(map(server_name, urls)), num_vocabulary=model.num_vocabulary
    )


async def _server(url: str, *, api_key: str | None) -> LegosServer:
    if await kind_of(url, api_key=api_key) != "legos":
        raise ConfigError(
            f"training.kl_server {url!r} is not `legos serve`, which alone reports the "
            "log-probabilities of given tokens; start it with the trainer's model"
        )
    return LegosServer(url, api_key=api_key, timeout_s=PATIENCE_S)
