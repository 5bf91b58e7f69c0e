"""Find the folder of a model, and read from its configuration what no device needs to load."""

import json
import logging
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from legos.errors import ModelError
from legos.weights.adapter import is_number
from legos.weights.folder import is_adapter_folder

logger = logging.getLogger(__name__)
_CONTEXTS = (  # names that configurations have for the maximum number of tokens
    "max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "max_sequence_length",
    "model_max_length", "seq_length", "block_size",
)  # fmt: skip
_UNKNOWN_CONTEXT = 4096
WAY_OUT = "copy or download the whole model again, or use --model builtin"


def resolve_folder(model: str, *, refused: Mapping[str, str] | None = None) -> Path:
    """The local folder of a model: a given path, or the hub's cache for a hub name.

    Args:
        model: a folder, or a name on the hub.
        refused: ``model_type`` that the device cannot load -> the reason.

    Raises:
        ModelError: the folder is not found, this user may not read it, a file is missing, the
            architecture is refused, or the hub does not respond.
    """
    try:
        return _resolved(model, refused or {})
    except (OSError, RuntimeError) as error:  # RuntimeError: a user of ~USER is not known
        raise ModelError(
            f"model {model!r} cannot be read: {error}; give a folder that this user may read, a "
            "hub name (org/model), or 'builtin'"
        ) from error


def _resolved(model: str, refused: Mapping[str, str]) -> Path:
    folder = Path(model).expanduser()
    if folder.is_file():
        raise ModelError(
            f"model {model!r} is a file; give the folder with config.json, tokenizer.json and "
            "model*.safetensors, which the hub has beside a .gguf of the same model"
        )
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
            raise ModelError(f"{folder} is no model folder: {name} is missing; {WAY_OUT}")
    if not list(folder.glob("model*.safetensors")):
        raise ModelError(f"{folder} is no model folder: model*.safetensors is missing; {WAY_OUT}")
    try:
        config = json.loads((folder / "config.json").read_text())
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{folder}/config.json is not JSON: {error}; {WAY_OUT}") from error
    if not isinstance(config, dict):
        raise ModelError(f"{folder}/config.json is no JSON object; {WAY_OUT}")
    kind = str(cast("dict[str, Any]", config).get("model_type"))
    if kind in refused:
        raise ModelError(f"{folder} is a {kind} model: {refused[kind]}; take another one")
    return folder


def context_length(folder: Path) -> int:
    """The maximum number of tokens in the model's context, from its configuration.

    Where that leaves it out, as those of Gemma 3 do, it is the architecture's in transformers.

    Raises:
        ModelError: the configuration has something else there than a number.
    """
    config: dict[str, Any] = json.loads((folder / "config.json").read_text())
    inner = config.get("text_config")
    text: dict[str, Any] = {**config, **(inner if isinstance(inner, dict) else {})}
    given = {name: text[name] for name in _CONTEXTS if text.get(name)}
    given = given or _usual_contexts(text.get("model_type"))
    for name, value in given.items():
        if not is_number(value) or not 1 <= value < math.inf:
            raise ModelError(
                f"{folder}/config.json has {name} {value!r:.100}; expected a number of tokens"
            )
    found = [int(value) for value in given.values()]
    if not found:
        logger.warning(
            "%s/config.json has none of %s; the context is limited to %d tokens: add "
            "max_position_embeddings to it for another limit",
            folder,
            ", ".join(_CONTEXTS),
            _UNKNOWN_CONTEXT,
        )
    return min(found, default=_UNKNOWN_CONTEXT)


def _usual_contexts(kind: Any) -> dict[str, Any]:
    """What transformers takes where the configuration of an architecture says nothing."""
    from transformers import CONFIG_MAPPING

    try:
        fields = CONFIG_MAPPING[kind]().get_text_config().to_dict()
    except KeyError:  # an architecture that it does not have
        return {}
    return {name: fields[name] for name in _CONTEXTS if fields.get(name)}


def quantised_by(config: Mapping[str, Any]) -> str | None:
    """What quantised the weights, by a ``config.json``: ``mlx``, or the hub's name of another."""
    if "quantization" in config:
        return "mlx"
    found = config.get("quantization_config")
    if not isinstance(found, dict):
        return None
    method = cast("dict[str, Any]", found).get("quant_method")
    return None if method is None else str(method)


def _download(name: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    patterns = ["*.json", "*.jinja", "*.txt", "*.model", "model*.safetensors", "tokenizer*"]
    try:
        return Path(snapshot_download(name, allow_patterns=patterns))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError, ValueError) as error:
        raise ModelError(
            f"model {name!r} is no folder, and the hub does not give it ({type(error).__name__}); "
            "check the name and the network, log in where it is gated (uv run hf auth login), or "
            "use the built-in model: --model builtin"
        ) from error


def _has_other_tokenizer(folder: Path, name: str) -> bool:
    others = ("tokenizer.model", "vocab.json", "tokenizer.tiktoken")
    return name == "tokenizer.json" and any((folder / other).is_file() for other in others)
