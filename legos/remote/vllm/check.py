"""Check before a run what a vLLM server reports about the tokens that it samples."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from legos.errors import EndpointError, EngineError, ModelError, RequestError
from legos.remote.vllm.api import VllmApi
from legos.remote.vllm.completions import Sampled

__all__ = ["check_sampler"]

TEMPERATURES = (1.0, 0.5)  # of the samples whose log-probabilities are compared


async def check_sampler(
    api: VllmApi,
    served: str,
    *,
    prompt: Sequence[int],
    logprobs: Callable[[float], NDArray[np.float64]],
    tolerance: float,
) -> None:
    """Compare the log-probabilities of sampled tokens with those of the trainer.

    Args:
        api: the server.
        served: the server's name of an adapter that changes nothing.
        prompt: token ids of a fixed prompt.
        logprobs: temperature -> [V] nats of the token after the prompt, as the trainer's model
            computes them without LoRA.
        tolerance: largest difference of one log-probability, nats.

    Raises:
        ModelError: they differ, or are missing; the message names the cause and the flag.
        EngineError: the server does not answer.
    """
    try:
        for temperature in TEMPERATURES:
            sampled = await api.sample(served, prompt, temperature=temperature)
            _compare(str(api.url), sampled, temperature, logprobs, tolerance)
    except RequestError as error:
        raise ModelError(f"{api.url} refuses a prompt of token ids: {error}") from error
    except EndpointError as error:
        raise EngineError(f"{error}; vLLM from 0.32 on reports token ids") from error


def _compare(
    url: str,
    sampled: Sampled,
    temperature: float,
    logprobs: Callable[[float], NDArray[np.float64]],
    tolerance: float,
) -> None:
    token, found = sampled.token_ids[0], sampled.logprobs[0]
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
