"""Whether a model can be trained, or served, is decided from its files, with reasons."""

import json
import re
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from mac_rows import (
    FOUR_BITS,
    MACS_GB,
    USUAL_MODELS,
    longest_rows,
    preset_line,
    shapes_of,
    table_lines,
)

from legos.config.resolve import resolve
from legos.errors import ModelError
from legos.mlx import fits
from legos.mlx.model import machine
from legos.records.limits import TrainingSize

CONFIG = {
    "model_type": "llama",
    "hidden_size": 512,
    "num_hidden_layers": 4,
    "intermediate_size": 1408,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "rms_norm_eps": 1e-6,
    "vocab_size": 32000,
    "max_position_embeddings": 8192,
    "torch_dtype": "bfloat16",
}


def folder_of(tmp_path: Path, **fields: Any) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG | fields))
    (tmp_path / "weights.txt").touch()
    return tmp_path


def test_a_model_too_large_is_refused_with_what_would_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fits, "NEGLIGIBLE", 0.0)
    monkeypatch.setattr(fits, "shapes_of", shapes_of)
    folder = folder_of(tmp_path)
    line = fits.check_training(folder, TrainingSize(limit_bytes=8 << 30, micro_batch_tokens=4096))
    assert line is not None
    assert "4096 tokens at once in rows of 512" in line
    assert "of 8.00 GiB in all; rows of up to " in line
    small = fits.check_training(
        folder, TrainingSize(limit_bytes=int(1.2 * 2**30), micro_batch_tokens=4096)
    )
    assert small is not None
    assert "4096 tokens at once" not in small
    short = fits.check_training(folder, TrainingSize(limit_bytes=int(0.6 * 2**30)))
    assert short is not None
    found = re.search(
        r" 256 tokens at once in rows of (\d+) take .*; rows of up to \1 tokens", short
    )
    assert found is not None
    assert 256 <= int(found[1]) < 512
    assert short.endswith("tokens fit, and longer ones are left out")
    with pytest.raises(ModelError, match=r"a row of 64 tokens needs .* 0\.30 GiB can be used"):
        fits.check_training(folder, TrainingSize(limit_bytes=int(0.3 * 2**30)))
    with pytest.raises(ModelError, match=r"give --training\.gradient-checkpointing or a higher"):
        fits.check_training(folder, TrainingSize(limit_bytes=1 << 20))
    with pytest.raises(ModelError, match=r"give a higher .* 4 bits or a smaller model"):
        fits.check_training(folder, TrainingSize(limit_bytes=1 << 20, checkpointing=True))
    last, behind = TrainingSize(layers=3), TrainingSize(layers=1 << 20, before=1)
    assert fits.check_training(folder, last) == fits.check_training(folder, behind)
    assert fits.check_training(folder, last) != fits.check_training(folder, TrainingSize(layers=4))


def test_larger_macs_take_longer_rows_and_four_bits_longer_ones() -> None:
    config = {**CONFIG, "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 3}
    plain, quantised = longest_rows(config), longest_rows(config | FOUR_BITS)
    assert plain == sorted(plain)
    assert len(plain) == len(MACS_GB)
    assert all(few <= many for few, many in zip(plain, quantised, strict=True))
    assert plain[-1] == 8192


@pytest.mark.nightly
def test_the_table_of_longest_rows_in_the_docs() -> None:
    page = Path("docs/run/mac.md").read_text().splitlines()
    for name, model in USUAL_MODELS.items():
        assert set(table_lines(name, model)) <= set(page), name


@pytest.mark.parametrize(("gb", "usable"), [(8, 4.0), (16, 9.6), (64, 43.2), (128, 86.4)])
def test_what_macs_of_each_size_give(gb: int, usable: float) -> None:
    memory = gb << 30
    advised = memory * 2 // 3 if gb <= 36 else memory * 3 // 4
    assert machine.usable_of(advised, memory) == pytest.approx(usable * 2**30, rel=0.01)


@pytest.mark.parametrize("gb", MACS_GB)
def test_the_presets_of_the_docs_fit_and_are_settings(gb: int) -> None:
    assert preset_line(gb) in Path("docs/run/mac.md").read_text().splitlines()
    preset = resources.files("legos.apps") / f"templates/presets/mac-{gb}gb.toml"
    found = resolve(files=[Path(str(preset))])
    assert found.config.training.gradient_checkpointing
