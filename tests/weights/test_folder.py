"""Adapter folders that strangers have made: read, or refused with what to do."""

from pathlib import Path

import numpy as np
import pytest

from legos.errors import AdapterError, ModelError
from legos.weights.folder import read_adapter
from legos.weights.model_folder import resolve_folder
from legos.weights.tensors import pack_tensors


@pytest.mark.parametrize("content", ["[]", "null", "{", '{"r": 1e999}', "[" * 100_000, "\ud800"])
@pytest.mark.parametrize("weights", ["adapter_model.safetensors", "adapters.safetensors"])
def test_a_folder_whose_configuration_is_none_is_refused(
    tmp_path: Path, content: str, weights: str
) -> None:
    (tmp_path / "adapter_config.json").write_bytes(content.encode(errors="surrogatepass"))
    (tmp_path / weights).write_bytes(pack_tensors({"x": np.ones(1)}, {}))
    with pytest.raises(AdapterError, match=r"cannot be read as"):
        read_adapter(tmp_path)


def test_a_pickle_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text("{}")
    (tmp_path / "adapter_model.bin").write_bytes(b"x")
    with pytest.raises(AdapterError, match=r"adapter_model\.bin, a pickle.*save it again"):
        read_adapter(tmp_path)


def test_folders_at_which_this_user_may_not_look_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path) -> bool:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "is_file", refuse)
    with pytest.raises(AdapterError, match=r"cannot be read as an adapter: .*Permission denied"):
        read_adapter(tmp_path)
    with pytest.raises(ModelError, match=r"cannot be read: .*Permission denied.*; give a folder"):
        resolve_folder(str(tmp_path))
