"""Load a model folder once for each thread; the threads share the base arrays."""

import json
import logging
import resource
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten, tree_unflatten
from mlx_lm.utils import load_model as load_mlx_model

from legos.errors import ModelError
from legos.weights.folder import is_adapter_folder

__all__ = [
    "REFUSED",
    "base_arrays",
    "context_length",
    "load_tree",
    "num_token_ids",
    "resolve_folder",
    "shapes_of",
]

logger = logging.getLogger(__name__)
_CONTEXTS = (  # names that configurations have for the maximum number of tokens
    "max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "max_sequence_length",
    "model_max_length", "seq_length", "block_size",
)  # fmt: skip
REFUSED = {"phi3small": "mlx-lm's code for it corrupts the memory of the process"}
_UNKNOWN_CONTEXT = 4096
_BY_TOKEN = ("embed_tokens", "wte", "embed_in", "embeddings", "tok_embeddings", "lm_head")
_WAY_OUT = "copy or download the whole model again, or use --model builtin"


def resolve_folder(model: str) -> Path:
    """The local folder of a model: a given path, or the hub's cache for a hub name.

    Raises:
        ModelError: the folder is not found, a file is missing, or the hub does not respond.
    """
    folder = Path(model).expanduser()
    if not folder.is_dir():
        if model.startswith((".", "/", "~")) or model.count("/") != 1:
            raise ModelError(
                f"no model folder {model!r}; give a folder, a hub name (org/model), or 'builtin'"
            )
        folder = _download(model)
    if is_adapter_folder(folder) and not (folder / "config.json").is_file():
        raise ModelError(f"{folder} holds an adapter and no model; give it as --adapter {model}")
    for name in ("config.json", "tokenizer.json"):
        if not (folder / name).is_file() and not _has_other_tokenizer(folder, name):
            raise ModelError(f"{folder} is no model folder: {name} is missing; {_WAY_OUT}")
    if not list(folder.glob("model*.safetensors")):
        raise ModelError(f"{folder} is no model folder: model*.safetensors is missing; {_WAY_OUT}")
    try:
        config = json.loads((folder / "config.json").read_text())
    except ValueError as error:
        raise ModelError(f"{folder}/config.json is not JSON: {error}; {_WAY_OUT}") from error
    if not isinstance(config, dict):
        raise ModelError(f"{folder}/config.json is no JSON object; {_WAY_OUT}")
    if (reason := REFUSED.get(config.get("model_type", ""))) is not None:
        raise ModelError(f"{folder} is a {config['model_type']} model: {reason}; take another one")
    return folder


def load_tree(folder: Path, *, share: dict[str, mx.array] | None = None) -> nn.Module:
    """Build the module tree of a model on the calling thread.

    Args:
        folder: model folder in MLX or hub format.
        share: evaluated arrays of another tree of the same model. The new tree uses them instead of
            loading its own, so that both trees share one copy of the weights.

    Returns:
        The module in evaluation mode, frozen, its arrays evaluated.

    Raises:
        ModelError: the model does not fit into memory, or mlx-lm cannot load it.
    """
    if share is None:
        _check_memory(folder)
    try:
        model, _ = load_mlx_model(folder, lazy=share is not None)
    except Exception as error:
        first, _, more = f"{error}".partition("\n")
        reason = f"{first.rstrip()} ..." if more else first
        raise ModelError(f"{folder} cannot be loaded: {reason}; {_WAY_OUT}") from error
    if share is not None:
        model.update(tree_unflatten(list(share.items())))
    model.eval()
    model.freeze()
    mx.eval(model.parameters())
    return model


def shapes_of(folder: Path) -> nn.Module:
    """The module tree of a model whose arrays are not read: only shapes and types are known.

    Args:
        folder: model folder; without weights, ``config.json`` gives types and quantisation.

    Raises:
        ModelError: mlx-lm cannot build it.
    """
    weights = any(folder.glob("model*.safetensors"))
    try:
        model, config = load_mlx_model(folder, lazy=True, strict=weights)
        if not weights:
            kind = config.get("torch_dtype") or config.get("dtype") or "bfloat16"
            model.set_dtype(getattr(mx, str(kind)))
            if (quantisation := config.get("quantization")) is not None:
                nn.quantize(model, quantisation["group_size"], quantisation["bits"])
    except Exception as error:
        raise ModelError(f"{folder} cannot be read: {error}; {_WAY_OUT}") from error
    model.freeze()
    return model


def _check_memory(folder: Path) -> None:
    """Refuse weights that do not fit into memory; MLX would hang.

    Raises:
        ModelError: the weights do not fit; the message gives both sizes.
    """
    size = sum(file.stat().st_size for file in folder.glob("model*.safetensors"))
    free = _free_memory()
    if size > free:
        raise ModelError(
            f"{folder} has {size / 2**30:.1f} GiB of weights but {free / 2**30:.1f} GiB of memory "
            "are free; close other programs, or take a smaller or quantised model"
        )


def _free_memory() -> int:
    """Bytes that the process may still allocate; where /proc is absent (macOS), all memory."""
    if not Path("/proc/meminfo").exists():
        return int(mx.device_info()["memory_size"])
    lines = (line.split() for line in Path("/proc/meminfo").read_text().splitlines())
    sizes = {words[0]: int(words[1]) for words in lines}
    free = 1024 * (sizes["MemAvailable:"] + sizes["SwapFree:"])
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit == resource.RLIM_INFINITY:
        return free
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    return min(free, max(limit - used, 0))


def base_arrays(model: nn.Module) -> dict[str, mx.array]:
    """Name -> array of a newly loaded tree, to share with another tree."""
    return dict(tree_flatten(model.parameters()))


def context_length(folder: Path) -> int:
    """The maximum number of tokens in the model's context, from its configuration."""
    config: dict[str, Any] = json.loads((folder / "config.json").read_text())
    text = {**config, **(config.get("text_config") or {})}
    found = [int(text[name]) for name in _CONTEXTS if text.get(name)]
    if not found:
        logger.warning(
            "%s/config.json has none of %s; the context is limited to %d tokens: add "
            "max_position_embeddings to it for another limit",
            folder,
            ", ".join(_CONTEXTS),
            _UNKNOWN_CONTEXT,
        )
    return min(found, default=_UNKNOWN_CONTEXT)


def num_token_ids(model: nn.Module) -> int:
    """Number of token ids that a tree takes and gives: the rows of its embedding and its head.

    A larger id would read memory behind the embedding.
    """
    rows = [
        module["weight"].shape[0]
        for name, module in model.named_modules()
        if name.rpartition(".")[2] in _BY_TOKEN and "weight" in module
    ]
    return min(rows, default=1 << 31)


def _download(name: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    patterns = ["*.json", "*.jinja", "*.txt", "*.model", "model*.safetensors", "tokenizer*"]
    try:
        return Path(snapshot_download(name, allow_patterns=patterns))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError, ValueError) as error:
        raise ModelError(
            f"model {name!r} is no folder, and the hub does not give it ({type(error).__name__}); "
            "check the name and the network, or use the built-in model: --model builtin"
        ) from error


def _has_other_tokenizer(folder: Path, name: str) -> bool:
    others = ("tokenizer.model", "vocab.json", "tokenizer.tiktoken")
    return name == "tokenizer.json" and any((folder / other).is_file() for other in others)
