"""Make the parts of a vLLM server from a model."""

import numpy as np
from numpy.typing import NDArray

from legos.builtin import EXAMPLE
from legos.data.message import Message
from legos.device import ModelHandle
from legos.vllm.probe import TOLERANCE, Probe
from legos.weights.adapter import Adapter

__all__ = ["probe_of"]


def probe_of(model: ModelHandle) -> Probe:
    """A probe that compares a server with a model, whose LoRA it leaves as it is."""
    prompt = model.tokenizer.render((Message("user", EXAMPLE),))

    def logprobs(adapter: Adapter) -> NDArray[np.float64]:
        logits = model(prompt, adapter=adapter)[:-1].astype(np.float64)
        shifted = logits - logits.max(axis=-1, keepdims=True)
        chosen = shifted[np.arange(len(prompt) - 1), prompt[1:]]
        return chosen - np.log(np.exp(shifted).sum(axis=-1))

    dtype = model.dtype if model.dtype in TOLERANCE else "float32"
    return Probe(tuple(prompt), logprobs, like=model.base_adapter(), dtype=dtype)
