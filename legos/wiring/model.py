"""Models: loaded by a device, adapted, called with and without LoRA."""

from contextlib import AbstractContextManager
from pathlib import Path

from legos.builtin import BUILTIN, builtin_path
from legos.device import Device, ModelHandle
from legos.weights.adapter import LoraShape
from legos.wiring.device import find_device

__all__ = ["apply_lora", "disable_lora", "load_model"]

SMALL_MODEL = 10_000_000  # parameters; up to so many, LoRA reaches the output head by default


def load_model(
    name: str | Path = BUILTIN, *, inline: bool = False, device: str | Device = "mlx"
) -> ModelHandle:
    """Load a model: a folder in MLX or hub format, a hub name, or the built-in model.

    Args:
        name: which.
        inline: run it on the calling thread (deterministic runs) instead of one of its own.
        device: what computes it, by name or itself.

    Raises:
        ModelError: no such model or device, a file is missing, or the architecture does not fit.
    """
    found = find_device(device) if isinstance(device, str) else device
    return found.load(str(builtin_path() if name == BUILTIN else name), inline=inline)


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
    shape = model.lora_shape(
        rank=rank,
        alpha=alpha,
        num_layers=layers,
        head=model.num_parameters <= SMALL_MODEL if head is None else head,
        use_dora=use_dora,
    )
    model.add_lora(shape, seed=seed)
    return shape


def disable_lora(model: ModelHandle) -> AbstractContextManager[None]:
    """Within the block, calls on the handle compute the reference: the model without LoRA."""
    return model.without_lora()
