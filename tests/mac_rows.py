"""The longest rows that models train with on Macs of each size: the table in docs/run/mac.md."""

import json
import tempfile
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import pytest
from mlx_lm.utils import load_model

import legos
from legos.mlx.fits import GIB, USUAL_ROW, plan_of
from legos.mlx.model import forecast
from legos.mlx.model.forecast import Sizes
from legos.mlx.model.machine import usable_of
from legos.mlx.train.memory import usual_tokens
from legos.records.limits import TrainingSize
from legos.weights.model_folder import context_length

USUAL_MODELS: Mapping[str, Any] = json.loads(
    Path(__file__).with_name("mac_models.json").read_text()
)
"""Name -> content of config.json."""
MACS_GB = (8, 16, 24, 32, 48, 64, 96, 128)  # memory of the usual Macs with Apple Silicon
SMALL_MAC = 36  # GB; up to here Metal recommends two thirds of the memory, above three quarters
FOUR_BITS = {"quantization": {"group_size": 64, "bits": 4}}


@contextmanager
def as_on_a_gpu() -> Iterator[None]:
    """Within the block, chunks of the output head are those of a GPU."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(forecast, "on_gpu", lambda: True)
        yield


def usable_on(gb: int) -> int:
    """Bytes that a process may allocate on a Mac with so many GB of memory."""
    memory = gb << 30
    return usable_of(memory * 2 // 3 if gb <= SMALL_MAC else memory * 3 // 4, memory)


def shapes_of(folder: Path) -> nn.Module:
    """The lazy module tree of a folder that has only ``config.json``."""
    model, config = load_model(folder, lazy=True, strict=False)
    model.set_dtype(getattr(mx, config.get("torch_dtype") or config.get("dtype") or "bfloat16"))
    if (quantisation := config.get("quantization")) is not None:
        nn.quantize(model, quantisation["group_size"], quantisation["bits"])
    model.freeze()
    return model


def longest_rows(config: Mapping[str, Any]) -> list[int]:
    """Tokens of the longest row that can be trained on a Mac of each size; 0: none.

    They are powers of two, or the model's context.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "config.json").write_text(json.dumps(config))
        sizes, context = Sizes.of(shapes_of(folder)), context_length(folder)
    size = TrainingSize(checkpointing=True)
    found: list[int] = []
    with as_on_a_gpu():
        for gb in MACS_GB:
            plan = plan_of(sizes, size, usable_on(gb), context)
            lengths = [*(1 << n for n in range(6, 30) if 1 << n < context), context]
            fits = [n for n in lengths if replace(plan, longest=n).row_limit is None]
            found.append(max(fits, default=0))
    return found


def table_lines(name: str, config: Mapping[str, Any]) -> Iterator[str]:
    """The lines of a model in the table."""
    for weights, changed in (("16 bits", config), ("4 bits", {**config, **FOUR_BITS})):
        cells = (f"{row:,}" if row else "-" for row in longest_rows(changed))
        yield f"| {' | '.join([name, weights, *cells])} |"


def preset_line(gb: int) -> str:
    """The line of a preset in the table of presets."""
    file = f"legos/apps/templates/presets/mac-{gb}gb.toml"
    model = tomllib.loads((Path(legos.__file__).parents[1] / file).read_text())["model"]
    title = model.rpartition("/")[2].removesuffix("-4bit")
    name = title.replace("-", " ")
    four_bits = model.endswith("-4bit")
    with tempfile.TemporaryDirectory() as folder:
        config = USUAL_MODELS[name] | (FOUR_BITS if four_bits else {})
        (Path(folder) / "config.json").write_text(json.dumps(config))
        sizes, context = Sizes.of(shapes_of(Path(folder))), context_length(Path(folder))
    size, usable = TrainingSize(checkpointing=True), usable_on(gb)
    plan = plan_of(sizes, size, usable, context)
    usual = replace(plan, longest=USUAL_ROW)
    with as_on_a_gpu():
        tokens = usual.max_tokens(usual_tokens(sizes, size, usable))
        peak, limit = usual.step_bytes(tokens), plan.row_limit
    cells = (
        f"{gb} GB",
        f"[mac-{gb}gb](../../{file})",
        f"{name}, {4 if four_bits else 16} bits",
        *(f"{count / GIB:.1f}" for count in (sizes.weights, peak, usable)),
        f"{tokens:,}",
        f"{context if limit is None else limit:,}",
    )
    return f"| {' | '.join(cells)} |"
