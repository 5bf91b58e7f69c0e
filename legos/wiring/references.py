"""Make the servers that compute reference log-probabilities, and compare them with the trainer."""

import asyncio
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from functools import partial

from legos.clients.pool import all_done
from legos.clients.references import ReferenceServers
from legos.clients.remote import RemoteEngine, RemoteServer
from legos.clients.served import LegosServer
from legos.clients.transport import server_name
from legos.config.objective import ObjectiveSettings
from legos.device import ModelHandle
from legos.errors import ConfigError, EndpointError, EngineError, RequestError
from legos.records.names import BASE
from legos.remote.vllm.api import VllmApi
from legos.remote.vllm.check import server_facts
from legos.remote.vllm.live import LiveAdapters
from legos.remote.vllm.server import VllmServer
from legos.wiring.engines import kind_of
from legos.wiring.same_model import check_same_model, fixed_text, gap, tolerance

__all__ = ["reference_servers"]

PATIENCE_S = 180.0  # how long the run waits where no server answers anything
Tokens = tuple[int, ...]


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
    engine = RemoteEngine(
        servers,
        None,
        num_vocabulary=model.num_vocabulary,
        context=model.context,
        patience_s=PATIENCE_S,
    )
    with ExitStack() as stack:
        stack.callback(engine.close)
        check_same_model(engine, model, where="training.kl_server", adapter=adapter)
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
        has_lora, base = await api.has_lora(), await api.base()
    except (EndpointError, RequestError) as error:
        raise EngineError(f"{url} does not show its metrics and models: {error}") from error
    finally:
        await api.aclose()
    if has_lora:
        raise ConfigError(
            f"training.kl_server {url!r} is vLLM with LoRA, whose prompt_logprobs are wrong or end "
            "its engine; start one without --enable-lora, or `legos serve`"
        )
    facts = await server_facts(url, api_key=api_key, context=model.context)
    server = VllmServer(url, LiveAdapters(facts.model), api_key=api_key, has_lora=False)
    return _OneModel(server, api, base, model)


class _OneModel:
    """A vLLM server whose model is checked after every answer, because it may be started again."""

    def __init__(self, server: VllmServer, api: VllmApi, base: str, model: ModelHandle) -> None:
        self.name, self.healthy, self.answer = server.name, server.healthy, server.answer
        self._server, self._api, self._base = server, api, base
        self._text, self._tolerance = fixed_text(model), tolerance(model)
        self._first: Sequence[float] | None = None  # log-probabilities of a fixed text

    async def score(
        self,
        prompts: Sequence[tuple[Tokens, Sequence[Tokens]]],
        *,
        end_ids: Sequence[int],
        adapter: str,
        by_token: bool = False,
    ) -> list[list[float]]:
        """See ``RemoteServer``.

        Raises:
            EngineError: another model answers than before.
        """
        ask = partial(self._server.score, end_ids=end_ids, adapter=adapter)
        now = self._base
        try:
            scores = await ask(prompts, by_token=by_token)
            (found,) = await ask(self._text, by_token=True)
        except (RequestError, EngineError) as error:
            with suppress(RequestError, EndpointError):  # not known to be another one
                now = await self._api.base()
            if now == self._base:
                raise
            raise self._changed(now, str(error)) from error
        self._first = self._first or found
        if gap(found, self._first) <= self._tolerance:
            return scores
        with suppress(RequestError, EndpointError):
            now = await self._api.base()
        difference = f"{gap(found, self._first):.3g} nats a token"
        raise self._changed(now, f"the log-probabilities of a fixed text differ by {difference}")

    async def aclose(self) -> None:
        """Close the connections."""
        await all_done([self._server.aclose(), self._api.aclose()])

    def _changed(self, now: str, reason: str) -> EngineError:
        return EngineError(
            f"training.kl_server {self._api.url} had base model {self._base} and has come back "
            f"with {now}: {reason}; start it again with the former model, and resume the run"
        )
