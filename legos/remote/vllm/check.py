"""Check before a run what a vLLM server reports about the tokens that it samples."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from legos.errors import ModelError
from legos.losses.softmax import log_softmax
from legos.remote.vllm.api import VllmApi

__all__ = ["check_sampler"]

COOL = 0.5  # temperature of the sample; at 1, a server's kinds of log-probabilities are the same


async def check_sampler(
    api: VllmApi,
    served: str,
    *,
    prompt: Sequence[int],
    logits: NDArray[np.floating],
    tolerance: float,
) -> None:
    """Compare the log-probability of a sampled token with the trainer's.

    Args:
        api: the server, whose log-probabilities at temperature 1 are the trainer's.
        served: the server's name of an adapter that changes nothing.
        prompt: token ids of a fixed prompt.
        logits: [V] logits of the token after it, as the trainer's model computes them without LoRA.
        tolerance: largest difference, nats.

    Raises:
        ModelError: they differ; the message names the cause and the flag.
        EndpointError, RequestError: the server does not answer, or reports no token ids.
    """
    sampled = await api.sample(served, prompt, temperature=COOL)
    token, found = sampled.token_ids[0], sampled.logprobs[0]
    if token >= len(logits):
        raise ModelError(
            f"{api.url} sampled token {token}, but the trainer's model has {len(logits)} tokens; "
            "start the server with the trainer's model"
        )
    plain, own = (log_softmax(np, logits.astype(np.float64) / t)[token] for t in (1.0, COOL))
    if abs(found - own) <= tolerance:
        return
    if abs(found - plain) <= tolerance:
        raise ModelError(
            f"{api.url} reports log-probabilities before the temperature is applied; start it with "
            "--logprobs-mode processed_logprobs"
        )
    raise ModelError(
        f"{api.url} gives token {token} after a fixed prompt a log-probability of {found:.4f} at "
        f"temperature {COOL:g}, and the trainer's model {own:.4f}; start the server with the "
        "trainer's model, the same --dtype, --generation-config vllm and --logprobs-mode "
        "processed_logprobs"
    )
