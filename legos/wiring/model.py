"""Models: loaded once, owned by one thread, callable from any."""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from legos.builtin import BUILTIN, builtin_path
from legos.chat.tokenizer import ChatTokenizer, load_tokenizer
from legos.data.limits import EngineLimits
from legos.data.names import POLICY
from legos.errors import ModelError
from legos.weights.adapter import Adapter, LoraShape

if TYPE_CHECKING:
    from legos.mlx.generate.engine import MlxEngine
    from legos.mlx.model.worker import Worker

__all__ = [
    "ModelHandle",
    "apply_adapter_shape",
    "apply_lora",
    "disable_lora",
    "load_model",
]

SMALL_MODEL = (
    10_000_000  # parameters up to which LoRA reaches the output head unless told otherwise
)


class ModelHandle:
    """A loaded model; its module tree is touched by its own thread alone.

    Attributes:
        folder: where it was loaded from.
        tokenizer: its tokenizer and chat template.
        num_parameters: of the base model.
        context: longest prompt plus completion, tokens.
        lora: where LoRA stands, or None before ``apply_lora``.
    """

    def __init__(self, folder: Path, tokenizer: ChatTokenizer, *, inline: bool) -> None:
        from legos.mlx.model.load import base_arrays, context_length, load_tree
        from legos.mlx.model.worker import InlineWorker, ThreadWorker

        self.folder = folder
        self.tokenizer = tokenizer
        self.context = context_length(folder)
        self.lora: LoraShape | None = None
        self.inline = inline
        self.worker: Worker = InlineWorker() if inline else ThreadWorker("legos-trainer")
        self.tree: Any = self.worker.call(load_tree, folder).result()
        self._base = base_arrays(self.tree)
        self.num_parameters = sum(array.size for array in self._base.values())

    def __call__(self, input_ids: Sequence[int]) -> NDArray[np.float32]:
        """[T, V] next-token logits after each of T tokens."""
        from legos.mlx.model.forward import all_logits

        return self.worker.call(all_logits, self.tree, list(input_ids)).result()

    def make_engine(self, limits: EngineLimits | None = None) -> "MlxEngine":
        """An engine on a thread and module tree of its own, sharing this model's base arrays."""
        from legos.mlx.generate.engine import MlxEngine
        from legos.mlx.model.load import load_tree
        from legos.mlx.model.worker import InlineWorker, ThreadWorker

        worker: Worker = InlineWorker() if self.inline else ThreadWorker("legos-engine")

        def build() -> MlxEngine:
            tree = load_tree(self.folder, share=self._base)
            return MlxEngine(
                worker,
                tree,
                num_vocabulary=self.tokenizer.vocab_size,
                context=self.context,
                limits=limits,
            )

        return worker.call(build).result()

    def base_adapter(self) -> Adapter:
        """The adapter that changes nothing: LoRA as it was put on, version 0.

        Raises:
            ModelError: the model has no LoRA.
        """
        from legos.mlx.model.lora import lora_arrays

        if self.lora is None:
            raise ModelError("the model has no LoRA; call apply_lora first")
        arrays = self.worker.call(lora_arrays, self.tree).result()
        return Adapter(name=POLICY, version=0, shape=self.lora, arrays=arrays)

    def close(self) -> None:
        """End the owning thread."""
        self.worker.close()


def load_model(name: str | Path = BUILTIN, *, inline: bool = False) -> ModelHandle:
    """Load a model: a folder in MLX or hub format, a hub name, or the built-in model.

    Args:
        name: which.
        inline: run it on the calling thread (deterministic runs) instead of one of its own.

    Raises:
        ModelError: no such model, a file is missing, or the architecture does not fit.
    """
    from legos.mlx.model.load import resolve_folder

    folder = builtin_path() if name == BUILTIN else resolve_folder(str(name))
    return ModelHandle(folder, load_tokenizer(folder), inline=inline)


def apply_lora(
    model: ModelHandle,
    *,
    rank: int = 8,
    layers: int = 16,
    alpha: float = 32.0,
    head: bool | None = None,
    use_dora: bool = False,
    seed: int = 0,
) -> LoraShape:
    """Put LoRA on every linear module of the last ``layers`` layers.

    Args:
        model: without LoRA so far.
        rank: inner dimension of each pair.
        layers: the last n, clamped to the model's depth.
        alpha: strength; the scale is alpha / rank.
        head: also adapt the output head; None: only in models of at most ten million parameters,
            which have little else to adapt.
        use_dora: learn the length of every adapted row as well (DoRA); not for experts.
        seed: of the first matrix of each pair; the second is zero.

    Raises:
        ModelError: the model has LoRA already.
        AdapterError: there is nothing to adapt, or DoRA is asked for where there are experts.
    """
    from legos.mlx.model.lora import add_lora, lora_shape

    if model.lora is not None:
        raise ModelError("the model has LoRA already; load it again for another shape")
    adapt_head = model.num_parameters <= SMALL_MODEL if head is None else head

    def put() -> LoraShape:
        shape = lora_shape(
            model.tree,
            rank=rank,
            alpha=alpha,
            num_layers=layers,
            head=adapt_head,
            use_dora=use_dora,
        )
        add_lora(model.tree, shape, seed=seed)
        return shape

    model.lora = model.worker.call(put).result()
    return model.lora


def apply_adapter_shape(model: ModelHandle, shape: LoraShape) -> None:
    """Put LoRA where an adapter from disk expects it; its arrays are loaded by an engine.

    Raises:
        ModelError: the model has LoRA already.
        AdapterError: the model has no such modules.
    """
    from legos.mlx.model.lora import add_lora

    if model.lora is not None:
        raise ModelError("the model has LoRA already; load it again for another shape")
    model.worker.call(lambda: add_lora(model.tree, shape, seed=0)).result()
    model.lora = shape


@contextmanager
def disable_lora(model: ModelHandle) -> Generator[None]:
    """Within the block, calls on the handle compute the reference: the model without LoRA."""
    from legos.mlx.model.lora import without_lora

    block = without_lora(model.tree)
    model.worker.call(block.__enter__).result()
    try:
        yield
    finally:
        model.worker.call(block.__exit__, None, None, None).result()
