"""The protocols of a device, which a folder such as ``legos/mlx`` implements.

    Device.load → ModelHandle → make_engine, make_backend

``legos.wiring`` uses them; ``tests/logit_table.py`` is a complete device in NumPy.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from legos.chat.tokenizer import ChatTokenizer
from legos.chat.tools import ToolFormat
from legos.errors import ModelError
from legos.protocols import Backend, Engine
from legos.records.limits import EngineLimits, TrainingSize
from legos.records.names import POLICY
from legos.records.step import BackendConfig
from legos.weights.adapter import Adapter, LoraShape

__all__ = ["Device", "LocalEngine", "ModelHandle"]


class LocalEngine(Engine, Protocol):
    """An engine in this process, with the methods for its owner."""

    def tokens_generated(self, adapter: str) -> "Future[int]":
        """Number of tokens sampled so far under an adapter's name, counted between decode steps.

        Every counted token has been delivered, or will be delivered with its request.
        """

    def close(self) -> None:
        """Close the engine; every waiting request gets an ``EngineError``."""


class ModelHandle(Protocol):
    """A loaded model, which makes engines and backends.

    The class of a device derives from this one, and inherits what it does not define.
    """

    folder: Path  # folder that it was loaded from
    tokenizer: ChatTokenizer
    num_vocabulary: int  # token ids that both the tokenizer and the model have are below this
    num_parameters: int  # number of parameters without LoRA
    dtype: str  # the narrowest type that it computes in: float32, bfloat16 or float16
    context: int  # maximum length of prompt plus completion, in tokens
    lora: LoraShape | None  # rank and modules of its LoRA; None before ``add_lora``
    _without_lora: int = 0  # number of blocks ``without_lora`` that are open

    @property
    def tool_format(self) -> ToolFormat:
        """Format in which the model writes tool calls."""

    @property
    def turns(self) -> Mapping[str, int | None]:
        """Name of each device thread -> number of the call that it runs now; None: it is idle."""

    def __call__(
        self, input_ids: Sequence[int], *, adapter: Adapter | None = None
    ) -> NDArray[np.float32]:
        """[T, V] next-token logits after each of T tokens, LoRA included.

        Args:
            input_ids: [T] token ids.
            adapter: used in place of the model's own LoRA arrays, for this call only; any thread
                may make it while the model is trained.

        Raises:
            AdapterError: the adapter does not fit.
        """

    def lora_shape(self, *, rank: int, alpha: float, num_layers: int, head: bool) -> LoraShape:
        """The shape of LoRA on the linear modules of the last layers.

        Raises:
            AdapterError: no module can be adapted.
        """

    def add_lora(self, shape: LoraShape, *, seed: int = 0) -> None:
        """Add LoRA to the model; its output does not change before the first update.

        Raises:
            ModelError: the model has LoRA already.
            AdapterError: the model has no such modules.
        """

    def set_adapter(self, adapter: Adapter) -> None:
        """Use an adapter in later calls.

        Raises:
            AdapterError: it does not fit the LoRA that was added.
        """

    @contextmanager
    def without_lora(self) -> Generator[None]:
        """Within the block, calls use the model without LoRA; training steps keep it."""
        self._without_lora += 1
        try:
            yield
        finally:
            self._without_lora -= 1

    def base_adapter(self) -> Adapter:
        """An adapter of the model's LoRA that has no effect, as version 0.

        Raises:
            ModelError: the model has no LoRA.
        """
        return self._adapter().without_effect()

    def _adapter(self) -> Adapter:
        """The model's LoRA as version 0.

        Raises:
            ModelError: the model has no LoRA.
        """
        if self.lora is None:
            raise ModelError("the model has no LoRA; call apply_lora first")
        return Adapter(name=POLICY, version=0, shape=self.lora, arrays=self._lora_arrays())

    def _lora_arrays(self) -> Mapping[str, Any]:
        """The arrays of the model's LoRA, as ``Adapter`` has them."""

    def write_fused(self, adapter: Adapter, folder: Path) -> float | None:
        """Merge an adapter into the model, and write the merged model into an empty folder.

        The handle has no weights afterwards; load the model again for other purposes.

        Returns:
            The mean difference of a token's log-probability between the written model and the base
            model with the adapter, nats; None: it is too large to be loaded here for this.

        Raises:
            AdapterError: the adapter does not fit, or the written model gives different results.
        """

    def make_engine(self, limits: EngineLimits | None = None) -> LocalEngine:
        """Make an engine of this model; without limits it has the defaults."""

    def make_backend(self, config: BackendConfig | None = None) -> Backend:
        """Make the backend that trains the LoRA of this model; at most one per handle.

        Raises:
            ModelError: the model has no LoRA.
            TrainerError: the model cannot be trained.
            AdapterError: the reference does not exist, or does not fit.
        """

    def close(self) -> None:
        """Release the model; its engines must be closed before."""


class Device(Protocol):
    """Loads models; a folder such as ``legos/mlx`` provides one to ``legos.wiring``."""

    def load(
        self,
        name: str,
        *,
        inline: bool = False,
        training: TrainingSize | None = None,
        report: Callable[[str], object] | None = None,
    ) -> ModelHandle:
        """Load a model.

        Args:
            name: a folder, or a name on the model hub.
            inline: run the model, its engine and its backend on the calling thread.
            training: what will be trained. Before anything is loaded, the memory that it needs is
                forecast from the model's files and compared with that of this machine. The first of
                several processes orders the work of the others.
            report: receives the forecast as one line.

        Raises:
            ModelError: there is no such model, a file is missing, the architecture does not fit,
                training does not fit into memory, or another process has another model.
            TrainerError: another process has ended.
        """

    def facts(self) -> Mapping[str, str | int | float | bool]:
        """Software versions, and the kind and memory of the hardware."""
