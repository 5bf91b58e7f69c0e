"""Whether a model can be trained, or served, in the memory of a machine, before it is loaded."""

import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from legos.errors import ModelError
from legos.mlx.model.forecast import EngineForecast, Sizes, TrainingForecast
from legos.mlx.model.load import shapes_of
from legos.mlx.model.machine import NEGLIGIBLE, usable_bytes
from legos.records.limits import EngineLimits, TrainingSize
from legos.weights.model_folder import context_length

__all__ = ["check_replicas", "check_training", "room_of"]

GIB = 1 << 30
LEAST_ROW = 64  # tokens; where no such row fits, training is refused: a play of nim has 40
USUAL_ROW = 512  # tokens of the rows with which the forecast counts where they fit
FOUR_BITS = 4.5 / 16  # bytes of a 4-bit copy with its scales / bytes in 16 bits
CHECKPOINTING = "--training.gradient-checkpointing"
USUAL_MODELS = Path(__file__).with_name("mac_models.json")  # name -> content of config.json


@dataclass(frozen=True)
class _Room:
    """A model's forecasts in the memory of a machine."""

    forecast: TrainingForecast
    usable_bytes: int
    context: int  # tokens of the longest row that the model takes

    @property
    def weights(self) -> int:
        """Bytes of the weights."""
        return self.forecast.sizes.weights

    @property
    def engine(self) -> EngineForecast | None:
        """The engine; None: it runs elsewhere."""
        limits = self.forecast.size.engine
        return None if limits is None else EngineForecast(self.forecast.sizes, limits)

    @property
    def engine_bytes(self) -> int:
        """Peak bytes of the engine without the weights."""
        return self.engine.peak_bytes(self.usable_bytes - self.weights) if self.engine else 0

    @property
    def engine_share(self) -> str:
        """What the engine needs, in words."""
        if self.engine is None:
            return "no engine"
        tokens = self.engine.prefill_tokens(self.usable_bytes - self.weights)
        return f"{_gib(self.engine_bytes)} for the engine (prefills of up to {tokens} tokens)"

    def peak(self, rows: int, length: int) -> int:
        return self.forecast.peak_bytes(rows, length) + self.engine_bytes

    @property
    def least_row(self) -> int:
        return min(LEAST_ROW, self.context)

    @property
    def longest(self) -> int:
        """Tokens of the longest row that fits, a power of two or the context; 0: none fits."""
        found, length = 0, self.least_row
        while length > found and self.peak(1, length) <= self.usable_bytes:
            found, length = length, min(2 * length, self.context)
        return found

    @property
    def usual_row(self) -> int:
        """Tokens of the rows with which the forecast counts; only called where a row fits."""
        return min(USUAL_ROW, self.longest)

    def tokens_at_once(self, asked: int) -> int:
        """The requested tokens of a pass, in usual rows, halved until they fit."""
        tokens = asked
        while tokens > self.usual_row and self.pass_peak(tokens) > self.usable_bytes:
            tokens //= 2
        return tokens

    def pass_peak(self, tokens: int) -> int:
        """Peak bytes while so many tokens are computed at once, in usual rows."""
        length = min(self.usual_row, tokens)
        return self.peak(max(1, tokens // length), length)


def check_training(folder: Path, size: TrainingSize) -> str | None:
    """Check, from a model's files alone, that it can be trained on this machine.

    Args:
        folder: the model's folder.
        size: what is trained.

    Returns:
        The forecast as one line; None for models so small that it does not matter.

    Raises:
        ModelError: it cannot; the message says what is needed, what the machine has, which
            settings would make it fit, and which is the largest usual model that fits.
    """
    usable = size.limit_bytes or usable_bytes()
    if sum(file.stat().st_size for file in folder.glob("model*.safetensors")) < NEGLIGIBLE * usable:
        return None
    room = _room(folder, size, usable)
    if not room.longest:
        raise ModelError(_refusal(folder, size, room) + _largest_that_fits(size, usable))
    tokens = room.tokens_at_once(size.micro_batch_tokens)
    left = ", and longer ones are left out" if room.longest < USUAL_ROW else ""
    return (
        f"memory, planned from the model's files: {_gib(room.weights)} of weights, "
        f"{room.engine_share}; {tokens} tokens at once in rows of {room.usual_row} take "
        f"{_gib(room.pass_peak(tokens))} of {_gib(usable)} in all; rows of up to {room.longest} "
        f"tokens fit{left}"
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


def _room(folder: Path, size: TrainingSize, usable: int) -> _Room:
    forecast = TrainingForecast(Sizes.of(shapes_of(folder)), size)
    return _Room(forecast, usable, context_length(folder))


def room_of(config: Mapping[str, Any], size: TrainingSize, usable: int) -> _Room:
    """The room of a model of which only the configuration is here.

    Args:
        config: the content of ``config.json``.
        size: what is trained.
        usable: bytes that can be allocated.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "config.json").write_text(json.dumps(config))
        return _room(folder, size, usable)


def _refusal(folder: Path, size: TrainingSize, room: _Room) -> str:
    """What is needed, what the machine has, and what would fit."""
    needed, weights = room.peak(1, room.least_row), room.weights
    first = (
        f"{folder} cannot be trained here: a row of {room.least_row} tokens needs {_gib(needed)} "
        f"({_gib(weights)} of weights, {_gib(room.engine_bytes)} for the engine, LoRA of rank "
        f"{size.rank} on {size.layers} layers), and {_gib(room.usable_bytes)} can be used"
        + (" (training.memory_limit_gib)" if size.limit_bytes else "")
    )
    changed = msgspec.structs.replace(size, checkpointing=True)
    smaller = replace(room, forecast=replace(room.forecast, size=changed))
    spared = int(weights * (1 - FOUR_BITS))
    if smaller.longest:
        return f"{first}; with {CHECKPOINTING}, rows of up to {smaller.longest} tokens fit"
    if smaller.peak(1, room.least_row) - spared <= room.usable_bytes:
        return (
            f"{first}; a copy of the model in 4 bits has about {_gib(weights - spared)} of weights "
            f"and fits with {CHECKPOINTING}"
        )
    more = "set a higher training.memory_limit_gib, or " if size.limit_bytes else ""
    return f"{first}; {more}take a smaller model"


def _largest_that_fits(size: TrainingSize, usable: int) -> str:
    """The largest usual model that can be trained in usual rows, as the end of a refusal."""
    size = msgspec.structs.replace(size, checkpointing=True)
    models: Mapping[str, Any] = json.loads(USUAL_MODELS.read_text())
    rooms = {name: room_of(config, size, usable) for name, config in models.items()}
    for name, room in sorted(rooms.items(), key=lambda pair: -pair[1].weights):
        for bits, share in ((16, 1.0), (4, FOUR_BITS)):
            if room.peak(1, USUAL_ROW) - int((1 - share) * room.weights) <= usable:
                return (
                    f"; {name} in {bits} bits is the largest of the usual models that fits, in "
                    f"rows of {USUAL_ROW} tokens with {CHECKPOINTING}"
                )
    return ""


def _gib(count: int) -> str:
    return f"{count / GIB:.2f} GiB"
