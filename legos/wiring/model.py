"""Load a model on a device or follow a process that has, add LoRA, and switch LoRA off."""

import os
import signal
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from pathlib import Path

from legos.builtin import BUILTIN, builtin_path
from legos.device import Device, ModelHandle
from legos.errors import ConfigError, ModelError
from legos.records.message import Thinking
from legos.weights.adapter import Adapter, LoraShape
from legos.weights.fits import completed, own_name
from legos.wiring.device import find_device, mlx_device, torch_device

_LAUNCHERS = {"torch": "torchrun", "mlx": "mlx.launch"}  # device -> what starts its processes
MOST_LAYERS = 1 << 20  # more than any model has
SMALL_MODEL = 10_000_000  # parameters; up to this size, LoRA adapts the output head by default


def load_model(
    name: str | Path = BUILTIN,
    *,
    inline: bool = False,
    device: str | Device = "mlx",
    thinking: Thinking = "default",
) -> ModelHandle:
    """Load a model: a folder in MLX or hub format, a hub name, or the built-in model.

    Args:
        name: folder, hub name, or "builtin".
        inline: run the model on the calling thread (deterministic runs) instead of its own thread.
        device: the device, or its name.
        thinking: whether the model thinks before it answers ("off", "on"), or how long ("low",
            "medium", "high"), where its chat template has a variable for it.

    Raises:
        ModelError: the model or device is not found, a file is missing, the device cannot load the
            model, or its chat template has no such variable.
    """
    found = find_device(device) if isinstance(device, str) else device
    model = found.load(model_place(name), inline=inline)
    with ExitStack() as stack:
        stack.callback(model.close)
        model.tokenizer = model.tokenizer.with_thinking(thinking)
        stack.pop_all()
    return model


def model_place(name: str | Path) -> str:
    """The folder or hub name of a model that may be named "builtin"."""
    return str(builtin_path() if name == BUILTIN else name)


def apply_lora(
    model: ModelHandle,
    *,
    rank: int = 8,
    layers: int = 16,
    alpha: float = 32.0,
    head: bool | None = None,
    seed: int = 0,
) -> LoraShape:
    """Add LoRA to every linear module of the last ``layers`` layers.

    Args:
        model: a model without LoRA.
        rank: inner dimension of each pair.
        layers: number of layers to adapt, counted from the last; at most all of them.
        alpha: strength; the scale is alpha / rank.
        head: also adapt the output head; None: only in models of at most ten million parameters,
            which have few other parameters to adapt.
        seed: seed of the first matrix of each pair; the second is zero.

    Raises:
        ModelError: the model has LoRA already, or is a name.
        AdapterError: there is no module to adapt.
        ConfigError: the rank or the number of layers is not positive.
    """
    check_loaded(model)
    if rank < 1 or layers < 1:
        raise ConfigError(f"rank is {rank} and layers is {layers}; expected at least 1 of each")
    shape = model.lora_shape(
        rank=rank,
        alpha=alpha,
        num_layers=layers,
        head=model.num_parameters <= SMALL_MODEL if head is None else head,
    )
    model.add_lora(shape, seed=seed)
    return shape


def apply_adapter(model: ModelHandle, adapter: Adapter) -> None:
    """Make a model compute with an adapter, for which LoRA is added unless it has some.

    LoRA is added to each kind of module that the adapter adapts, from its first layer to the
    model's last. Where the adapter has no pair, B is zero.

    Raises:
        AdapterError: the adapter does not fit.
    """
    if model.lora is None:
        shape, first = adapter.shape, adapter.first_layer
        every = model.lora_shape(rank=1, alpha=1.0, num_layers=MOST_LAYERS, head=True)
        if first is not None:
            shape = replace(shape, num_layers=max(every.num_layers - first, 1))
        modules = tuple(own_name(module, every.modules) for module in shape.modules)
        model.add_lora(replace(shape, modules=modules))
    arrays = completed(adapter.arrays, model.base_adapter().arrays)
    model.set_adapter(replace(adapter, arrays=arrays))


def check_loaded(model: object) -> None:
    """Refuse the name of a model in place of the model.

    Raises:
        ModelError: it is a name.
    """
    if isinstance(model, str | Path):
        raise ModelError(f"model is {model!r}, a name; expected a model: load_model({model!r})")


def disable_lora(model: ModelHandle) -> AbstractContextManager[None]:
    """Within the block, calls of the model compute the base model without LoRA."""
    return model.without_lora()


def follow(name: str | None, model: str) -> bool:
    """Compute what another process orders, if a launcher started this one and it is not first.

    Args:
        name: the device that trains; None: that of the launcher.
        model: folder, hub name, or "builtin".

    Returns:
        Whether this process followed; the run has ended then. False: it runs the loop itself.

    Raises:
        ConfigError: the launcher is that of another device.
        LegosError: the first process ended without a word, or a computation failed.
    """
    launcher, rank = launched()
    if launcher is None:
        return False
    if name is not None and _LAUNCHERS.get(name) != launcher:
        raise ConfigError(
            f"{launcher} started several processes, but device is {name!r}; start them with "
            f"{_LAUNCHERS.get(name, 'the launcher of the device')}, or start one process"
        )
    device = torch_device() if launcher == "torchrun" else mlx_device()
    device.join()
    if rank == 0:
        return False
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the first process ends the others in order
    device.follow(model_place(model))
    return True


def has_followers() -> bool:
    """Whether a launcher started this process with others, which follow it."""
    return launched()[0] is not None


def launched() -> tuple[str | None, int]:
    """What started several processes, and the index of this one; None: it was started alone."""
    if "TORCHELASTIC_RUN_ID" in os.environ and os.environ.get("WORLD_SIZE", "1") != "1":
        return "torchrun", int(os.environ["RANK"])
    for name in ("MLX_RANK", "OMPI_COMM_WORLD_RANK"):
        if name in os.environ:
            return "mlx.launch", int(os.environ[name])
    return None, 0
