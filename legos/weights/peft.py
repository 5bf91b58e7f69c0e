"""Exact conversion of adapters to and from PEFT's format (vLLM, SGLang, transformers).

    ours  <module>.lora_a [in, r]         PEFT base_model.model.<module>.lora_A.weight [r, in]
          <module>.lora_b [r, out]             base_model.model.<module>.lora_B.weight [out, r]
    MoE   X.switch_mlp.M.lora_a [E, r, in]     base_model.model.X.experts.e.M.lora_A.weight [r, in]
          X.switch_mlp.M.lora_b [E, out, r]    base_model.model.X.experts.e.M.lora_B.weight [out, r]
    in a model of text and images:
          language_model.model.X               base_model.model.model.language_model.X
          language_model.lm_head               base_model.model.lm_head

    y = W x + scale * B A x, with scale = lora_alpha / r, or lora_alpha / sqrt(r) with rsLoRA

Source: PEFT's ``LoraConfig`` and checkpoint names; rsLoRA: arXiv:2312.03732.
"""

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from legos.errors import AdapterError
from legos.weights.adapter import Adapter, check_scale, shape_of
from legos.weights.peft_config import CONFIG_FILE, PeftConfig
from legos.weights.tensors import Floats, pack_tensors

PEFT_WEIGHTS_FILE = "adapter_model.safetensors"

_PREFIX = "base_model.model."
_TENSOR = re.compile(
    r"(?:base_model\.model\.)?(?P<module>.+)\."
    r"(?:lora_(?P<letter>[AB])(?:\.default)?\.weight"
    r"|(?P<base>base)_layer\.weight)"
)
_EXPERT = re.compile(r"(?P<block>.+)\.experts\.(?P<number>[0-9]{1,6})\.(?P<projection>\w+)")
_SWITCH = re.compile(r"(?P<block>.+)\.switch_mlp\.(?P<projection>\w+)")
_OURS, _THEIRS = "language_model.model.", "model.language_model."  # wrapped text models
_HEAD = "language_model.lm_head"
_MIXTRAL = {"w1": "gate_proj", "w2": "down_proj", "w3": "up_proj"}  # names in block_sparse_moe
_TO_MIXTRAL = {ours: theirs for theirs, ours in _MIXTRAL.items()}
_OTHER_NAMES = ("gpt2", "gpt_neox", "gptj")  # mlx-lm names their modules otherwise
_FUSED_EXPERTS = ("granitemoe", "granitemoehybrid")  # PEFT ignores LoRA of single experts there


def to_peft(adapter: Adapter, *, base_model: str = "") -> tuple[dict[str, Floats], dict[str, Any]]:
    """Convert an adapter to PEFT's tensors, and the content of its adapter_config.json.

    Args:
        adapter: the adapter to export.
        base_model: name of its base model, which some programs read.

    Raises:
        AdapterError: PEFT has no name for the module of an array; the message names it.
    """
    tensors: dict[str, Floats] = {}
    modules: set[str] = set()
    for name in sorted(adapter.arrays):
        array = np.asarray(adapter.arrays[name], np.float32)
        module, letter = name.rsplit(".lora_", 1)
        parts = {module: array.T} if array.ndim == 2 else _experts(module, array)
        for own, matrix in parts.items():
            part = "lm_head" if own == _HEAD else own
            if own.startswith(_OURS):
                part = _THEIRS + own.removeprefix(_OURS)
            modules.add(part)
            tensors[f"{_PREFIX}{part}.lora_{letter.upper()}.weight"] = np.ascontiguousarray(matrix)
    shape = adapter.shape
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base_model,
        "r": shape.rank,
        "lora_alpha": shape.scale * shape.rank,
        "use_rslora": False,
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
        "target_modules": sorted(modules),
    }
    return tensors, config


def from_peft(
    tensors: Mapping[str, Any], config: Mapping[str, Any], *, name: str, version: int
) -> Adapter:
    """Convert PEFT's tensors and configuration to an adapter.

    Args:
        tensors: PEFT name -> array, with or without the prefix ``base_model.model.``.
        config: content of adapter_config.json.
        name: name of the adapter.
        version: its version, a number of optimiser steps.

    Raises:
        AdapterError: a tensor or setting is not plain LoRA; the message names it.
    """
    read = PeftConfig.read(config)
    scale = read.scale
    pairs: dict[str, dict[str, Floats]] = {}
    wrapped = any(_THEIRS in key for key in tensors)
    for key in sorted(tensors):
        theirs, part = _module_and_part(key)
        module = f"model.{theirs}" if theirs.startswith("layers.") else theirs
        if module.startswith(_THEIRS):
            module = _OURS + module.removeprefix(_THEIRS)
        elif wrapped and module == "lm_head":
            module = _HEAD
        pair = pairs.setdefault(module, {})
        if part in pair:
            raise AdapterError(f"tensor {key} gives lora_{part} of {module} a second time")
        pair[part] = np.asarray(tensors[key], np.float32)
    if not pairs:
        raise AdapterError("the PEFT adapter holds no tensor of LoRA")
    arrays: dict[str, Floats] = {}
    for module, pair in pairs.items():
        _check_pair(module, pair, read.r)
        arrays |= {f"{module}.lora_a": pair["A"].T, f"{module}.lora_b": pair["B"].T}
    whole, base = _switched(arrays), config.get("base_model_name_or_path")
    return Adapter(
        name=name,
        version=version,
        shape=shape_of(whole, scale),
        arrays=whole,
        base_model=base if base and isinstance(base, str) else None,
        exact_base=False,  # which may be a copy for another program
    )


def write_peft(adapter: Adapter, folder: Path, *, base_model: str = "") -> None:
    """Write an adapter into an existing folder, in PEFT's format.

    The caller renames the folder into place, so that a half-written one is never seen.

    Raises:
        AdapterError: PEFT has no name for the module of an array; the message names it.
    """
    tensors, config = to_peft(adapter, base_model=base_model)
    texts = {"format": "pt", **adapter.header}
    (folder / PEFT_WEIGHTS_FILE).write_bytes(pack_tensors(tensors, texts))
    (folder / CONFIG_FILE).write_text(json.dumps(config, indent=2) + "\n")


def check_exportable(adapter: Adapter, model: str, kind: str | None) -> None:
    """Refuse an adapter that PEFT would load without an error and compute wrongly, or not fit.

    Args:
        adapter: the adapter to export.
        model: its base model, for messages.
        kind: the ``model_type`` of the base model; None: it is not known.

    Raises:
        AdapterError: the adapter is one; the message names the model and another format.
    """
    reason = None
    if kind in _FUSED_EXPERTS and any(".switch_mlp." in name for name in adapter.arrays):
        reason = "transformers keeps its experts fused in one parameter"
    elif kind == "falcon_h1":
        reason = "mlx-lm multiplies its weights by the multipliers that transformers applies apart"
    elif kind in _OTHER_NAMES:
        reason = "transformers has other names for its modules"
    if reason is not None:
        raise AdapterError(
            f"an adapter of {model!r}, a {kind} model, cannot be exported for PEFT: {reason}; "
            "export it with --format mlx"
        )


def is_peft(names: Iterable[str]) -> bool:
    """Whether tensors have PEFT's names."""
    return any(".lora_A" in name or ".lora_B" in name for name in names)


def implied_config(tensors: Mapping[str, Any], scale: float | None) -> dict[str, Any]:
    """The content of PEFT's adapter_config.json, derived from the tensors and the scale.

    Raises:
        AdapterError: there is no scale, or no matrix A.
    """
    if scale is None:
        raise AdapterError("PEFT's weights need config (adapter_config.json) or scale")
    first = next((tensors[name] for name in sorted(tensors) if ".lora_A" in name), None)
    if first is None or not first.shape:
        raise AdapterError("the file has no lora_A tensor")
    rank = int(first.shape[0])
    scale = check_scale(scale)
    return {"r": rank, "lora_alpha": scale * rank}


def _module_and_part(key: str) -> tuple[str, str]:
    """Module and part of a PEFT tensor's name: A or B."""
    found = _TENSOR.fullmatch(key)
    if found is None:
        raise AdapterError(
            f"tensor {key} is no LoRA matrix; expected <module>.lora_A.weight or "
            "<module>.lora_B.weight"
        )
    module = found["module"]
    if module.endswith((".experts", ".experts.base_layer")):
        raise AdapterError(
            f"tensor {key} adapts all experts fused in one parameter; export it with one pair "
            "per expert (<block>.experts.<number>.<projection>)"
        )
    if found["base"]:
        raise AdapterError(
            f"tensor {key} is a weight of the base model, which the adapter may have changed; "
            "write the adapter with PEFT's save_pretrained(save_embedding_layers=False)"
        )
    return module, found["letter"]


def _check_pair(module: str, pair: Mapping[str, Floats], rank: int) -> None:
    """Refuse an incomplete pair, another rank, and matrices in mlx-lm's transposed layout."""
    for letter, axis, form in (("A", 0, "[r, in]"), ("B", 1, "[out, r]")):
        name = f"{module}.lora_{letter}.weight"
        if letter not in pair:
            raise AdapterError(f"tensor {name} is missing; every module needs lora_A and lora_B")
        dimensions = pair[letter].shape
        if len(dimensions) == 2 and dimensions[axis] == rank:
            continue
        hint = ""
        if len(dimensions) == 2 and dimensions[1 - axis] == rank:
            hint = "; it looks like the transpose, as mlx-lm keeps it"
        raise AdapterError(
            f"tensor {name} has shape {dimensions}; expected {form} with r = {rank}{hint}"
        )


def _experts(module: str, array: Floats) -> dict[str, Floats]:
    """Split the stacked matrices [E, x, y] of all experts into one matrix per expert, by name."""
    found = _SWITCH.fullmatch(module)
    if found is None:
        raise AdapterError(
            f"array {module} has shape {array.shape}, and PEFT has no name for such a module; "
            "only <block>.switch_mlp.<projection> can be exported expert by expert"
        )
    projection = found["projection"]
    if found["block"].endswith("block_sparse_moe"):
        projection = _TO_MIXTRAL[projection]
    return {
        f"{found['block']}.experts.{number}.{projection}": matrix
        for number, matrix in enumerate(array)
    }


def _switched(arrays: Mapping[str, Floats]) -> dict[str, Floats]:
    """The arrays, with those of experts stacked in the order of the experts' numbers."""
    whole: dict[str, Floats] = {}
    stacks: dict[str, dict[int, Floats]] = {}
    for name, array in arrays.items():
        module, _, letter = name.rpartition(".lora_")
        found = _EXPERT.fullmatch(module)
        if found is None:
            whole[name] = np.ascontiguousarray(array)
            continue
        projection = _MIXTRAL.get(found["projection"], found["projection"])
        stack = stacks.setdefault(f"{found['block']}.switch_mlp.{projection}.lora_{letter}", {})
        if (number := int(found["number"])) in stack:
            raise AdapterError(f"{name} gives LoRA of expert {number} a second time")
        stack[number] = array.T
    for name, stack in stacks.items():
        lacking = next(number for number in range(len(stack) + 1) if number not in stack)
        if lacking < len(stack):
            raise AdapterError(f"{name} has no LoRA for expert {lacking}; adapt all or none")
        for number, array in stack.items():
            if array.shape != stack[0].shape:
                raise AdapterError(
                    f"{name} of expert {number} has shape {array.shape}, and that of expert 0 has "
                    f"{stack[0].shape}; expected one shape"
                )
        whole[name] = np.stack([stack[number] for number in sorted(stack)])
    return whole
