"""The part of a vLLM server's HTTP interface that is about adapters."""

import re
from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from legos.clients.answers import listed_models
from legos.clients.transport import Transport, server_root
from legos.errors import AdapterError, EndpointError, ModelError, RequestError
from legos.remote.vllm.completions import Query, Sampled, body_of, sampled_of

REQUEST_S = 120.0  # maximum time of one request
EXACT = 0.01  # nats; a server that reports other probabilities is off by several
_SLOTS = re.compile(r'^vllm:lora_requests_info\{[^}]*max_lora="([0-9]{1,9})"', re.MULTILINE)
_FLAGS = (  # text of vLLM's refusal -> what mends it
    (r"max_lora_rank|lora rank", "start the server with a larger --max-lora-rank"),
    (r"lora is not enabled|enable.lora", "start the server with --enable-lora"),
    (
        r"\(40[45]\)(: not found)?;|does not exist \(40[45]\)",
        "start the server with --enable-lora and VLLM_ALLOW_RUNTIME_LORA_UPDATING=True",
    ),
    (
        r"no adapter found|no such file|permission denied",
        "the server must see this folder under the same path, and its user read it",
    ),
)


class VllmApi:
    """Loads and unloads adapters, and asks what the server computes with them.

    Every method raises ``EndpointError`` if the server fails.
    """

    def __init__(self, url: str, *, api_key: str | None = None) -> None:
        """Describe a server; nothing is sent yet.

        Args:
            url: its address, with or without ``/v1``.
            api_key: bearer token.
        """
        self.url = server_root(url)
        self._transport = Transport(
            self.url, api_key=api_key, timeout_s=REQUEST_S, max_connections=8, retries=2
        )

    async def listed(self) -> Mapping[str, str]:
        """Name of each model at the server -> its path; the base model comes first."""
        models = await self._transport.request("GET", "/v1/models", listed_models)
        return {model.id: model.root or "" for model in models}

    async def base(self) -> str:
        """The server's name of the base model.

        Raises:
            ModelError: the server lists none.
        """
        for model in await self._transport.request("GET", "/v1/models", listed_models):
            if model.parent is None:
                return model.id
        raise ModelError(f"{self.url} lists no base model")

    async def load(self, name: str, place: str, *, base_model: str) -> None:
        """Load an adapter, or find it loaded from the same place.

        Args:
            name: its name at the server.
            place: its folder in PEFT's format, as the server sees it.
            base_model: the server's name of the base model.

        Raises:
            AdapterError: the server refuses it; the message names the flag that mends it.
        """
        body = {"lora_name": name, "lora_path": place}
        try:
            await self._transport.request("POST", "/v1/load_lora_adapter", bytes, json=body)
        except (RequestError, EndpointError) as error:
            if (await self.listed()).get(name) == place:
                return
            await self.logprobs(base_model, (1,), (1,))  # otherwise its engine failed
            text = f"{error};".lower()
            remedy = "; ".join(flag for reason, flag in _FLAGS if re.search(reason, text))
            if isinstance(error, EndpointError) and not remedy:  # such as a connection that was cut
                raise
            raise AdapterError(f"adapter {name} cannot be loaded: {error}; {remedy}") from error

    async def unload(self, name: str) -> None:
        """Unload an adapter, unless it is not loaded."""
        try:
            await self._transport.request(
                "POST", "/v1/unload_lora_adapter", bytes, json={"lora_name": name}
            )
        except RequestError:
            if name in await self.listed():
                raise

    async def logprobs(
        self, name: str, prompt: Sequence[int], watched: Sequence[int]
    ) -> NDArray[np.float64]:
        """[K] nats of K tokens as the next one after a prompt, at temperature 1.

        vLLM's ``prompt_logprobs`` would give more positions, but applies LoRA on the output head to
        wrong rows, and kills the engine where other requests are in the batch.
        """
        query = Query(adapter=name, max_tokens=1, temperature=1.0, watched=tuple(watched))
        sampled = await self._sample(query, prompt)
        return np.array([sampled.others[0][token] for token in watched], np.float64)

    async def check_sampler(self, name: str, prompt: Sequence[int], token: int) -> None:
        """Check that the server reports the distribution that it samples from.

        Args:
            name: name of a model at the server.
            prompt: token ids.
            token: an unlikely one after the prompt. It alone is allowed, so its probability is 1.

        Raises:
            ModelError: the server reports another probability; the message names the flag.
        """
        query = Query(adapter=name, max_tokens=1, temperature=1.0, allowed=(token,))
        found = (await self._sample(query, prompt)).logprobs[0]
        if not abs(found) <= EXACT:  # also: not a number
            raise ModelError(
                f"{self.url} reports a log-probability of {found:.4g} for the only token that a "
                "request allows, and not 0: it is not of the distribution sampled from; start the "
                "server with --logprobs-mode processed_logprobs"
            )

    async def _sample(self, query: Query, prompt: Sequence[int]) -> Sampled:
        """Sample one token after a prompt."""
        body = body_of(query, [tuple(prompt)], model=query.adapter)
        read = partial(sampled_of, query=query, count=1)
        (sampled,) = await self._transport.request("POST", "/v1/completions", read, json=body)
        if sampled.finish_reason is None:
            raise EndpointError("the vLLM server aborted a request for log-probabilities")
        return sampled

    async def slots(self) -> int | None:
        """Number of adapters that can answer at the same time; None: the server does not say."""
        return await self._transport.request("GET", "/metrics", _slots)

    async def aclose(self) -> None:
        """Close this event loop's connections."""
        await self._transport.aclose()


def _slots(answer: bytes) -> int | None:
    """``--max-loras`` in the text of vLLM's metrics, where it reports them."""
    found = _SLOTS.search(answer.decode(errors="replace"))
    return None if found is None else int(found[1])
