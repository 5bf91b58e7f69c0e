"""The fingerprint of a base model: what changes it, and what does not."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tiny_models import write_any_model

from legos.errors import CheckpointError
from legos.weights.base import check_base, fingerprint_of


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_any_model(tmp_path / "model")


def weights_of(folder: Path) -> dict[str, np.ndarray]:
    (file,) = folder.glob("model*.safetensors")
    return load_file(file)


def test_a_copy_in_other_files_is_the_same(folder: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    copy.mkdir()
    config = {"transformers_version": "9", **json.loads((folder / "config.json").read_text())}
    (copy / "config.json").write_text(json.dumps(dict(reversed(config.items()))))
    arrays = list(weights_of(folder).items())
    save_file(dict(arrays[::2]), copy / "model-1.safetensors", metadata={"format": "mlx"})
    save_file(dict(arrays[1::2]), copy / "model-2.safetensors")
    assert fingerprint_of(copy) == fingerprint_of(folder)
    assert fingerprint_of(folder).startswith("llama-")


def test_every_tensor_and_setting_counts(folder: Path) -> None:
    before = weights_of(folder)
    seen = {fingerprint_of(folder)}
    for name, array in before.items():
        save_file({**before, name: array + 0.5}, folder / "model.safetensors")
        seen.add(fingerprint_of(folder))
    assert len(seen) == 1 + len(before)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "rope_theta": 77.0}))
    seen.add(fingerprint_of(folder))
    assert len(seen) == 2 + len(before)


def test_a_quantised_copy_is_another_base(tmp_path: Path) -> None:
    four_bits = write_any_model(tmp_path / "four", bits=4)
    assert fingerprint_of(four_bits) != fingerprint_of(write_any_model(tmp_path / "whole"))


def test_a_checkpoint_of_another_base_names_both() -> None:
    saved, own = ({"model": name, "fingerprint": f"llama-{name}"} for name in ("a", "b"))
    check_base(saved, {**own, "fingerprint": "llama-a"}, Path("step-1"))
    with pytest.raises(
        CheckpointError,
        match=r"step-1 .* base model a \(llama-a\), and this is b \(llama-b\).* put the former",
    ):
        check_base(saved, own, Path("step-1"))
