"""Make the servers that compute reference log-probabilities, and compare them with the trainer."""

import asyncio
from collections.abc import Sequence
from contextlib import ExitStack

import numpy as np

from legos.builtin import EXAMPLE
from legos.clients.references import ReferenceServers
from legos.clients.remote import RemoteEngine, RemoteServer
from legos.clients.served import LegosServer
from legos.clients.transport import server_name
from legos.config.objective import ObjectiveSettings
from legos.data.message import Message
from legos.data.names import BASE
from legos.device import ModelHandle
from legos.errors import ConfigError, EndpointError, EngineError, ModelError, RequestError
from legos.losses.softmax import log_softmax
from legos.vllm.api import VllmApi
from legos.vllm.check import server_facts
from legos.vllm.live import LiveAdapters
from legos.vllm.server import VllmServer
from legos.wiring.engines import kind_of
from legos.wiring.same_model import tolerance

__all__ = ["reference_servers"]


def reference_servers(
    config: ObjectiveSettings, model: ModelHandle, *, api_key: str | None
) -> ReferenceServers | None:
    """The servers of ``kl_server``; None: it is empty.

    Args:
        config: settings of training.
        model: the trainer's model with LoRA.
        api_key: API key of the servers.

    Raises:
        ConfigError: a server cannot score tokens, or has no adapters.
        ModelError: a server has another model or vocabulary, or lacks the adapter.
        EngineError: a server does not answer.
    """
    urls, adapter = config.kl_server, config.kl_server_adapter
    if not urls:
        return None
    servers = [asyncio.run(_server(url, model, adapter=adapter, api_key=api_key)) for url in urls]
    engine = RemoteEngine(servers, None, num_vocabulary=model.num_vocabulary, context=model.context)
    with ExitStack() as stack:
        stack.callback(engine.close)
        for url, server in zip(urls, servers, strict=True):
            _check(url, server, engine, model, adapter=adapter)
        stack.pop_all()
    return ReferenceServers(
        engine,
        adapter=adapter,
        names=list(map(server_name, urls)),
        num_vocabulary=model.num_vocabulary,
    )


async def _server(
    url: str, model: ModelHandle, *, adapter: str, api_key: str | None
) -> RemoteServer:
    kind = await kind_of(url, api_key=api_key)
    if kind == "legos":
        return LegosServer(url, api_key=api_key)
    if kind != "vllm":
        raise ConfigError(
            f"training.kl_server {url!r} is neither `legos serve` nor vLLM, and reports no "
            "log-probabilities of given tokens; start one of them with the trainer's model"
        )
    if adapter != BASE:
        raise ConfigError(
            f"training.kl_server_adapter is {adapter!r} but {url!r} is vLLM, which scores tokens "
            "right without LoRA only; start `legos serve --adapter` there"
        )
    api = VllmApi(url, api_key=api_key)
    try:
        has_lora = await api.has_lora()
    except (EndpointError, RequestError) as error:
        raise EngineError(f"{url} does not show its metrics: {error}") from error
    finally:
        await api.aclose()
    if has_lora:
        raise ConfigError(
            f"training.kl_server {url!r} is vLLM with LoRA, whose prompt_logprobs are wrong or end "
            "its engine; start one without --enable-lora, or `legos serve`"
        )
    facts = await server_facts(url, api_key=api_key, context=model.context)
    return VllmServer(url, LiveAdapters(facts.model), api_key=api_key, has_lora=False)


def _check(
    url: str, server: RemoteServer, engine: RemoteEngine, model: ModelHandle, *, adapter: str
) -> None:
    """Compare the log-probabilities of a fixed text's tokens, and of the vocabulary's last one."""
    row = (*model.tokenizer.render((Message("user", EXAMPLE),)), model.num_vocabulary - 1)
    asked = [(row[:1], [row[1:]])]
    try:
        for name in dict.fromkeys((BASE, adapter)):
            scored = server.score(asked, end_ids=(), adapter=name, by_token=True)
            (found,) = engine.call(scored).result()
            if name == BASE:
                _compare(url, found, row, model)
    except RequestError as error:
        raise ModelError(
            f"training.kl_server {url!r} cannot score the tokens of a fixed text: {error}; start "
            "it with the trainer's model, and with the adapter of training.kl_server_adapter"
        ) from error
    except EndpointError as error:
        raise EngineError(str(error)) from error


def _compare(url: str, found: Sequence[float], row: Sequence[int], model: ModelHandle) -> None:
    with model.without_lora():
        logits = model(row)[:-1].astype(np.float64)
    own = log_softmax(np, logits)[np.arange(len(row) - 1), list(row[1:])]
    gap = float(np.abs(np.asarray(found) - own).mean())
    if not gap <= tolerance(model):
        raise ModelError(
            f"training.kl_server {url!r} has another model than the trainer ({model.folder}): the "
            f"log-probabilities of a fixed text differ by {gap:.3g} nats a token, more than "
            f"{tolerance(model):g}; start it with the trainer's model"
        )
