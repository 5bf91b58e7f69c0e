"""One random model of every architecture that the tests of parity run through."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tiny_models import write_any_model

ARCHITECTURES: Mapping[str, Mapping[str, Any]] = {
    "llama": {"architecture": "llama"},
    "llama_4bit": {"architecture": "llama", "bits": 4},
    "qwen2": {"architecture": "qwen2"},
    "qwen3": {"architecture": "qwen3"},
    "qwen3_moe": {"architecture": "qwen3_moe"},
    "gemma3_text": {"architecture": "gemma3_text"},
    "falcon_h1": {"architecture": "falcon_h1"},
    "lfm2": {"architecture": "lfm2"},
    "qwen3_5": {"architecture": "qwen3_5"},
}


@pytest.fixture(params=ARCHITECTURES)
def architecture(request: pytest.FixtureRequest) -> str:
    """Each one's name in turn."""
    return request.param


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """Name -> model folder, two layers each."""
    root = tmp_path_factory.mktemp("architectures")
    return {
        name: write_any_model(root / name, layers=2, seed=3, **arguments)
        for name, arguments in ARCHITECTURES.items()
    }
