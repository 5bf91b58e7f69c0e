"""Whether a model can be trained, or served, in the memory of a machine, before it is loaded."""

from dataclasses import replace
from pathlib import Path

from msgspec import structs

from legos.errors import ModelError
from legos.mlx.model.forecast import Sizes, engine_bytes, held_bytes
from legos.mlx.model.load import shapes_of
from legos.mlx.model.machine import NEGLIGIBLE, usable_bytes
from legos.mlx.train.memory import MemoryPlan, usual_tokens
from legos.records.limits import TrainingSize
from legos.weights.model_folder import context_length

GIB = 1 << 30
LEAST_ROW = 64  # tokens; where no such row fits, training is refused: a play of nim has 40
USUAL_ROW = 512  # tokens of the rows with which the forecast counts where they fit


def plan_of(sizes: Sizes, size: TrainingSize, usable: int, context: int) -> MemoryPlan:
    """The memory of training a model with an engine whose caches are full.

    Args:
        sizes: sizes of the model.
        size: what is trained.
        usable: bytes that can be allocated.
        context: tokens of the longest row that the model takes.
    """
    engine = 0
    if size.engine is not None:
        engine = engine_bytes(sizes, size.engine, usable - sizes.weights)
    return MemoryPlan(
        sizes=sizes,
        size=size,
        held_bytes=sizes.weights + held_bytes(sizes, size) + engine,
        ceiling_bytes=usable,
        longest=context,
        factor=1.0,
    )


def check_training(folder: Path, size: TrainingSize) -> str | None:
    """Check, from a model's files alone, that it can be trained on this machine.

    Args:
        folder: the model's folder.
        size: what is trained.

    Returns:
        The forecast as one line; None for models so small that it does not matter.

    Raises:
        ModelError: it cannot; the message says what is needed, what the machine has, and which
            settings would make it fit.
    """
    usable = size.limit_bytes or usable_bytes()
    if sum(file.stat().st_size for file in folder.glob("model*.safetensors")) < NEGLIGIBLE * usable:
        return None
    sizes, context = Sizes.of(shapes_of(folder)), context_length(folder)
    size = structs.replace(size, layers=min(size.layers, sizes.layers - size.before))
    plan = plan_of(sizes, size, usable, context)
    longest = context if plan.row_limit is None else plan.row_limit
    others = "held" if size.engine is None else "for LoRA and full caches of the engine"
    held = f"{_gib(sizes.weights)} of weights, {_gib(plan.held_bytes - sizes.weights)} {others}"
    row = min(LEAST_ROW, context)
    if longest < row:
        give = "" if size.checkpointing else "--training.gradient-checkpointing or "
        raise ModelError(
            f"{folder} cannot be trained here: a row of {row} tokens needs "
            f"{_gib(replace(plan, longest=row).peak_bytes(row))} ({held}), and {_gib(usable)} can "
            f"be used; give {give}a higher training.memory_limit_gib, or take a copy of the model "
            "in 4 bits or a smaller model (docs/run/mac.md lists what fits)"
        )
    usual = replace(plan, longest=min(USUAL_ROW, longest))
    tokens = usual.max_tokens(size.micro_batch_tokens or usual_tokens(sizes, size, usable))
    left = ", and longer ones are left out" if longest < USUAL_ROW else ""
    return (
        f"memory, planned from the model's files: {held}; {tokens} tokens at once in rows of "
        f"{usual.longest} take {_gib(usual.step_bytes(tokens))} of {_gib(usable)} in all; rows of "
        f"up to {longest} tokens fit{left}"
    )


def _gib(count: int) -> str:
    return f"{count / GIB:.2f} GiB"
