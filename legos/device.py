"""The seams of a device: what a folder such as ``legos/mlx`` gives to ``legos.wiring``.

    Device.load → ModelHandle → make_engine, make_backend

``legos.testing.logit_table`` is a whole device in NumPy.
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from legos.chat.tokenizer import ChatTokenizer
from legos.chat.tools import ToolFormat
from legos.data.limits import EngineLimits
from legos.data.sample import Sample
from legos.data.step import BackendConfig
from legos.protocols import Backend, Engine
from legos.weights.adapter import Adapter, LoraShape

__all__ = ["Device", "LocalEngine", "ModelHandle", "Processes"]


class LocalEngine(Engine, Protocol):
    """An engine in this process, as its owner sees it."""

    def tokens_generated(self, adapter: str) -> "Future[int]":
        """Tokens sampled so far under an adapter's name, counted between two steps.

        Every counted token has been delivered, or will be with the request that it belongs to.
        """
        ...

    def close(self) -> None:
        """End; every waiting request is answered with ``EngineError``."""
        ...


class Processes(Protocol):
    """Processes that were launched together and make the same optimiser steps."""

    @property
    def rank(self) -> int:
        """Number of this process."""
        ...

    @property
    def size(self) -> int:
        """How many there are."""
        ...

    def gather(self, samples: Sequence[Sample], version: int) -> "Future[list[Sample]]":
        """The samples of all processes, in the order of their ranks.

        Every process calls it, with the version of its policy; the future raises ``TrainerError``
        where the versions differ.
        """
        ...


class ModelHandle(Protocol):
    """A loaded model, and the engines and backends that are made from it."""

    folder: Path  # where it was loaded from
    tokenizer: ChatTokenizer
    num_parameters: int  # without LoRA
    dtype: str  # the narrowest type that it computes in: float32, bfloat16 or float16
    context: int  # longest prompt plus completion, tokens
    lora: LoraShape | None  # where LoRA stands; None before ``add_lora``

    @property
    def tool_format(self) -> ToolFormat:
        """How it writes tool calls."""
        ...

    @property
    def processes(self) -> Processes | None:
        """The processes that share the training; None where this one is alone."""
        ...

    def __call__(self, input_ids: Sequence[int]) -> NDArray[np.float32]:
        """[T, V] next-token logits after each of T tokens, LoRA included."""
        ...

    def lora_shape(
        self, *, rank: int, alpha: float, num_layers: int, head: bool, use_dora: bool
    ) -> LoraShape:
        """Where LoRA would stand on the linear modules of the last layers.

        Raises:
            AdapterError: there is nothing to adapt, or DoRA is asked for where there are experts.
        """
        ...

    def add_lora(self, shape: LoraShape, *, seed: int = 0) -> None:
        """Put LoRA on the model, which changes nothing before the first update.

        Raises:
            ModelError: the model has LoRA already.
            AdapterError: the model has no such modules.
        """
        ...

    def set_adapter(self, adapter: Adapter) -> None:
        """Make calls compute an adapter.

        Raises:
            AdapterError: it does not fit the LoRA that was put on.
        """
        ...

    def without_lora(self) -> AbstractContextManager[None]:
        """Within the block, calls compute the model without LoRA."""
        ...

    def base_adapter(self) -> Adapter:
        """LoRA as it was put on, version 0; it changes nothing.

        Raises:
            ModelError: the model has no LoRA.
        """
        ...

    def write_fused(self, adapter: Adapter, folder: Path) -> float:
        """Merge an adapter into the model, and write both as one model into an empty folder.

        The handle computes the merged model afterwards; make a new one for anything else.

        Returns:
            The largest difference of a token's log-probability between the model on disk and the
            base with the adapter applied, nats.

        Raises:
            AdapterError: the adapter does not fit, or the written model computes something else.
        """
        ...

    def make_engine(
        self, limits: EngineLimits | None = None, *, watched: bool = False
    ) -> LocalEngine:
        """An engine of this model.

        Args:
            limits: what it may use; None: the defaults.
            watched: whether it is replaced, its adapters with it, when it dies or hangs.
        """
        ...

    def make_backend(self, config: BackendConfig | None = None) -> Backend:
        """What trains the LoRA of this model; at most one of a handle.

        Raises:
            ModelError: the model has no LoRA.
            TrainerError: weight decay with DoRA.
            AdapterError: the reference does not exist, or does not fit.
        """
        ...

    def close(self) -> None:
        """Let go of the model; its engines are closed before."""
        ...


class Device(Protocol):
    """What computes: a folder such as ``legos/mlx`` gives one to ``legos.wiring``."""

    def load(self, name: str, *, inline: bool = False) -> ModelHandle:
        """Load a model.

        Args:
            name: a folder, or a hub name.
            inline: run the model, its engine and its backend on the calling thread.

        Raises:
            ModelError: no such model, a file is missing, or the architecture does not fit.
        """
        ...

    def facts(self) -> Mapping[str, str | int | float | bool]:
        """Versions, and the kind and memory of what computes."""
        ...
