"""Check a vLLM server before a run: its model, its sampler, and what it reports about tokens."""

from collections.abc import Callable, Sequence
from functools import partial

import msgspec
import numpy as np
from numpy.typing import NDArray

from legos.clients.answers import listed_models
from legos.clients.transport import Transport, api_root
from legos.errors import EndpointError, EngineError, ModelError, RequestError
from legos.remote.vllm.completions import Drawn, Query, body_of, drawn_of

__all__ = ["ServerFacts", "check_sampler", "server_facts"]

TEMPERATURES = (1.0, 0.5)  # of the samples whose log-probabilities are compared


class ServerFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What a vLLM server says about itself."""

    model: str  # name of its base model
    context: int  # maximum number of prompt and completion tokens together


async def server_facts(url: str, *, api_key: str | None, context: int) -> ServerFacts:
    """The server's base model and context.

    Args:
        url: address of the server.
        api_key: bearer token.
        context: the model's context, for a server that does not report its own.

    Raises:
        EngineError: it does not answer.
        ModelError: it lists no model.
    """
    transport = _transport(url, api_key)
    try:
        listed = await transport.request("GET", "/models", listed_models)
    except (EndpointError, RequestError) as error:
        raise EngineError(f"{url} does not list its models: {error}") from error
    finally:
        await transport.aclose()
    base = next((one for one in listed if one.parent is None), None)
    if base is None:
        raise ModelError(f"{url} lists no base model")
    return ServerFacts(model=base.id, context=min(context, base.max_model_len or context))


async def check_sampler(
    url: str,
    served: str,
    *,
    api_key: str | None,
    prompt: Sequence[int],
    logprobs: Callable[[float], NDArray[np.float64]],
    tolerance: float,
) -> None:
    """Compare the log-probabilities of sampled tokens with those of the trainer.

    Args:
        url: address of the server.
        served: the server's name of an adapter that changes nothing.
        api_key: bearer token.
        prompt: token ids of a fixed prompt.
        logprobs: temperature -> [V] nats of the token after the prompt, as the trainer's model
            computes them without LoRA.
        tolerance: largest difference of one log-probability, nats.

    Raises:
        ModelError: they differ, or are missing; the message names the cause and the flag.
        EngineError: the server does not answer.
    """
    transport = _transport(url, api_key)
    try:
        for temperature in TEMPERATURES:
            query = Query(adapter="base", max_tokens=1, temperature=temperature)
            body = body_of(query, [tuple(prompt)], model=served)
            read = partial(drawn_of, query=query, count=1)
            (drawn,) = await transport.request("POST", "/completions", read, json=body)
            _compare(url, drawn, temperature, logprobs, tolerance)
    except RequestError as error:
        raise ModelError(f"{url} refuses a prompt of token ids: {error}") from error
    except EndpointError as error:
        raise EngineError(f"{error}; vLLM from 0.32 on reports token ids") from error
    finally:
        await transport.aclose()


def _compare(
    url: str,
    drawn: Drawn,
    temperature: float,
    logprobs: Callable[[float], NDArray[np.float64]],
    tolerance: float,
) -> None:
    token, found = drawn.token_ids[0], drawn.logprobs[0]
    own = logprobs(temperature)
    if token >= len(own):
        raise ModelError(
            f"{url} sampled token {token}, but the trainer's model has {len(own)} tokens; start "
            "the server with the trainer's model"
        )
    if abs(found - own[token]) <= tolerance:
        return
    if temperature != 1.0 and abs(found - logprobs(1.0)[token]) <= tolerance:
        raise ModelError(
            f"{url} reports log-probabilities before the temperature is applied; start it with "
            "--logprobs-mode processed_logprobs"
        )
    raise ModelError(
        f"{url} gives token {token} after a fixed prompt a log-probability of {found:.4f} at "
        f"temperature {temperature:g}, and the trainer's model {own[token]:.4f}; start the server "
        "with the trainer's model, the same --dtype, --generation-config vllm and "
        "--logprobs-mode processed_logprobs"
    )


def _transport(url: str, api_key: str | None) -> Transport:
    return Transport(api_root(url), api_key=api_key, timeout_s=60.0, max_connections=1, retries=2)
