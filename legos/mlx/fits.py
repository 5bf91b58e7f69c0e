"""Whether a model can be trained, or served, in the memory of a machine, before it is loaded."""

from dataclasses import replace
from pathlib import Path

import msgspec

from legos.errors import ModelError
from legos.mlx.model.forecast import EngineForecast, Sizes, TrainingForecast
from legos.mlx.model.load import shapes_of
from legos.mlx.model.machine import NEGLIGIBLE, usable_bytes
from legos.mlx.train.memory import MemoryPlan
from legos.records.limits import EngineLimits, TrainingSize
from legos.weights.model_folder import context_length

__all__ = ["check_replicas", "check_training", "plan_of"]

GIB = 1 << 30
LEAST_ROW = 64  # tokens; where no such row fits, training is refused: a play of nim has 40
USUAL_ROW = 512  # tokens of the rows with which the forecast counts where they fit
FOUR_BITS = 4.5 / 16  # bytes of a 4-bit copy with its scales / bytes in 16 bits
CHECKPOINTING = "--training.gradient-checkpointing"


def plan_of(sizes: Sizes, size: TrainingSize, usable: int, context: int) -> MemoryPlan:
    """The memory of training a model with an engine whose caches are full.

    Args:
        sizes: sizes of the model.
        size: what is trained.
        usable: bytes that can be allocated.
        context: tokens of the longest row that the model takes.
    """
    forecast = TrainingForecast(sizes, size)
    engine = 0
    if size.engine is not None:
        engine = EngineForecast(sizes, size.engine).peak_bytes(usable - sizes.weights)
    return MemoryPlan(
        forecast=forecast,
        held_bytes=sizes.weights + forecast.held_bytes + engine,
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
    plan = plan_of(sizes, size, usable, context)
    longest = _longest(plan)
    if longest < min(LEAST_ROW, context):
        raise ModelError(_refusal(folder, plan, limited=size.limit_bytes is not None))
    engine = "no engine"
    if size.engine is not None:
        tokens = EngineForecast(sizes, size.engine).prefill_tokens(usable - sizes.weights)
        engine = f"{_gib(_engine_bytes(plan))} for the engine (prefills of up to {tokens} tokens)"
    usual = replace(plan, longest=min(USUAL_ROW, longest))
    tokens = usual.max_tokens(size.micro_batch_tokens)
    left = ", and longer ones are left out" if longest < USUAL_ROW else ""
    return (
        f"memory, planned from the model's files: {_gib(sizes.weights)} of weights, {engine}; "
        f"{tokens} tokens at once in rows of {usual.longest} take {_gib(usual.peak_bytes(tokens))} "
        f"of {_gib(usable)} in all; rows of up to {longest} tokens fit{left}"
    )


def check_replicas(folder: Path, limits: EngineLimits, num: int) -> int:
    """Check, from a model's files alone, that several engines fit on this machine.

    Args:
        folder: the model's folder.
        limits: limits of each engine; its memory is that of all together.
        num: number of engines, each in a process of its own.

    Returns:
        Bytes that each of them may use.

    Raises:
        ModelError: they do not fit; the message says what each needs, and how many fit.
    """
    usable = limits.memory_bytes or usable_bytes()
    sizes = Sizes.of(shapes_of(folder))
    weights, forecast = sizes.weights, EngineForecast(sizes, limits)

    def needed(engines: int) -> int:
        return weights + forecast.peak_bytes(max(usable // engines - weights, 0))

    if weights < NEGLIGIBLE * (usable // num) or needed(num) <= usable // num:
        return usable // num
    fitting = next((n for n in range(num - 1, 0, -1) if needed(n) <= usable // n), 0)
    raise ModelError(
        f"{num} replicas of {folder} do not fit: each needs {_gib(needed(num))} "
        f"({_gib(weights)} of weights) and has {_gib(usable // num)} of {_gib(usable)}; "
        + (f"--replicas {fitting} fits" if fitting else "not even one fits; take a smaller model")
    )


def _engine_bytes(plan: MemoryPlan) -> int:
    return plan.held_bytes - plan.forecast.sizes.weights - plan.forecast.held_bytes


def _longest(plan: MemoryPlan) -> int:
    """Tokens of the longest row that fits."""
    limit = plan.row_limit
    return plan.longest if limit is None else limit


def _refusal(folder: Path, plan: MemoryPlan, *, limited: bool) -> str:
    """What is needed, what the machine has, and what would fit."""
    row = min(LEAST_ROW, plan.longest)
    size, weights = plan.forecast.size, plan.forecast.sizes.weights
    first = (
        f"{folder} cannot be trained here: a row of {row} tokens needs "
        f"{_gib(replace(plan, longest=row).peak_bytes(row))} ({_gib(weights)} of weights, "
        f"{_gib(_engine_bytes(plan))} for the engine, LoRA of rank {size.rank} on {size.layers} "
        f"layers), and {_gib(plan.ceiling_bytes)} can be used"
        + (" (training.memory_limit_gib)" if limited else "")
    )
    changed = msgspec.structs.replace(size, checkpointing=True)
    smaller = replace(plan, forecast=replace(plan.forecast, size=changed))
    if (fitting := _longest(smaller)) >= row:
        return f"{first}; with {CHECKPOINTING}, rows of up to {fitting} tokens fit"
    spared = int(weights * (1 - FOUR_BITS))
    if _longest(replace(smaller, held_bytes=plan.held_bytes - spared)) >= row:
        return (
            f"{first}; a copy of the model in 4 bits has about {_gib(weights - spared)} of weights "
            f"and fits with {CHECKPOINTING}"
        )
    more = "set a higher training.memory_limit_gib, or " if limited else ""
    return f"{first}; {more}take a smaller model (docs/run/mac.md lists usual ones)"


def _gib(count: int) -> str:
    return f"{count / GIB:.2f} GiB"
