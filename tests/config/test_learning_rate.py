"""The advice is the formula it says it is."""

import json
from pathlib import Path

import pytest

from legos.config.learning_rate import learning_rates


def write(folder: Path, **config: object) -> Path:
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize(
    ("family", "hidden", "highest"),
    [
        ("llama", 4096, 5e-4 * (2000 / 4096) ** 0.781),
        ("qwen3_moe", 2048, 5e-4 * (2000 / 2048) ** 0.0775),
        ("gemma3_text", 4000, 5e-4 * 0.5**0.781),  # an unknown family gets the smaller one
        ("gemma3_text", 1000, 5e-4 * 2**0.0775),
    ],
)
def test_the_rate_falls_with_the_hidden_size(
    tmp_path: Path, family: str, hidden: int, highest: float
) -> None:
    advice = learning_rates(write(tmp_path, model_type=family, hidden_size=hidden))
    assert advice is not None
    assert advice == pytest.approx((highest / 10, highest))


def test_the_text_model_of_a_larger_one_counts(tmp_path: Path) -> None:
    folder = write(
        tmp_path, model_type="gemma3", text_config={"hidden_size": 2000, "model_type": "llama"}
    )
    advice = learning_rates(folder)
    assert advice is not None
    assert advice.highest == pytest.approx(5e-4)
    assert learning_rates(write(tmp_path, model_type="mamba")) is None
