"""Load a model with transformers, and run its trunk and its output head apart.

R rows, T tokens, V vocabulary, H hidden size.
"""

import json
import os
from collections.abc import Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import AutoModelForCausalLM
from transformers.utils import logging as transformers_logging
from transformers.utils.import_utils import is_flash_attn_2_available

from legos.device.leader import check_same
from legos.errors import ModelError, TrainerError
from legos.installed import adding
from legos.machine import wanted_device
from legos.torch.ranks import Ranks
from legos.weights.model_folder import WAY_OUT, quantised_by

_ANY_MODEL: Any = AutoModelForCausalLM
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
PROBE = ((1, 2, 3, 4, 5), (6, 7, 8))
LARGEST_GAP = 0.05  # of the largest hidden value: bfloat16 rounds to less, a leak gives more


def choose_device() -> torch.device:
    """CUDA where there is a GPU, and otherwise the CPU, unless ``LEGOS_DEVICE`` says it.

    Raises:
        ModelError: ``LEGOS_DEVICE`` names no device, or a GPU, which torch does not find.
    """
    wanted, found = wanted_device(), torch.cuda.is_available()
    if wanted == "gpu" and not found:
        raise ModelError(
            f"LEGOS_DEVICE is gpu, but torch {torch.__version__} finds no CUDA device; unset it to "
            "train on the CPU, or install a torch with CUDA and a driver"
        )
    if not found or wanted == "cpu":
        return torch.device("cpu")
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))  # as torchrun sets it


class CausalModel:
    """A model of transformers, split into trunk and head.

    Attributes:
        whole: the module.
        layers: its layers, in order.
        num_vocabulary: rows of its output head.
    """

    def __init__(self, whole: Any) -> None:
        """Check that the trunk and the head give the model's logits.

        Raises:
            ModelError: they do not, or the layout is unknown.
        """
        self.whole = whole
        self._trunk: Any = whole.base_model
        layers = getattr(self._trunk, "layers", None)
        if not isinstance(layers, nn.ModuleList) or whole.get_output_embeddings() is None:
            raise ModelError(
                f"{whole.config.model_type} has no layers and head where torch training expects "
                "them; train it with --device mlx, or take a model such as llama or qwen3"
            )
        self.layers: Sequence[nn.Module] = list(layers)
        self.num_vocabulary: int = whole.get_output_embeddings().weight.shape[0]
        ids = torch.tensor([PROBE[0]], device=self.device)
        with torch.no_grad():
            expected = whole(ids, use_cache=False).logits.float()
            found = self.head(self.hidden(ids)).float()
        if not torch.allclose(found, expected, rtol=1e-2, atol=1e-2):
            raise ModelError(
                f"{whole.config.model_type} scales or caps its logits, which torch training does "
                "not; train it with --device mlx"
            )

    @property
    def device(self) -> torch.device:
        """Device of its weights."""
        return self.whole.device

    @property
    def tied(self) -> bool:
        """Whether the head has the weights of the embedding."""
        return self.whole.get_output_embeddings().weight is self.whole.get_input_embeddings().weight

    def hidden(self, input_ids: Tensor, position_ids: Tensor | None = None) -> Tensor:
        """[R, T, H] output of the trunk; a sequence starts wherever positions do not go on."""
        return self._trunk(input_ids, position_ids=position_ids, use_cache=False).last_hidden_state

    def head(self, hidden: Tensor) -> Tensor:
        """[..., V] logits of [..., H] hidden states."""
        return self.whole.get_output_embeddings()(hidden)

    def all_logits(self, input_ids: Sequence[int]) -> NDArray[np.float32]:
        """[T, V] next-token logits after each of T tokens of one row."""
        with torch.no_grad():
            hidden = self.hidden(torch.tensor([list(input_ids)], device=self.device))
            return self.head(hidden)[0].float().cpu().numpy()

    def check_packing(self) -> None:
        """Check that packed sequences do not see each other.

        Raises:
            TrainerError: they do, as where a layer keeps a state between tokens.
        """

        def tensor(values: Sequence[int]) -> Tensor:
            return torch.tensor([values], device=self.device)

        with torch.no_grad():
            alone = torch.cat([self.hidden(tensor(row)) for row in PROBE], dim=1).float()
            positions = [position for row in PROBE for position in range(len(row))]
            tokens = [token for row in PROBE for token in row]
            packed = self.hidden(tensor(tokens), tensor(positions)).float()
        if not (packed - alone).abs().max() <= LARGEST_GAP * alone.abs().max():
            raise TrainerError(
                f"packed samples of a {self.whole.config.model_type} model see each other, so that "
                "torch cannot train it; train it with --device mlx"
            )

    def last_layers(self, number: int) -> Sequence[nn.Module]:
        """The last layers, in order."""
        return self.layers[-number:] if number else ()

    def checkpoint_layers(self) -> None:
        """Compute the layers again in the backward pass, instead of keeping their activations."""
        for layer in self.layers:
            layer.forward = partial(checkpoint, layer.forward, use_reentrant=False)


def load_model(folder: Path, device: torch.device, ranks: Ranks | None = None) -> CausalModel:
    """Load a model folder in the hub's format, frozen, in the type of its weights.

    Args:
        folder: the folder.
        device: the device that computes.
        ranks: processes that keep a shard of every layer each, and all load the model now.

    Raises:
        ModelError: transformers cannot load it, or torch training does not support it; the message
            names what does.
    """
    if ranks is not None:
        check_same(folder, ranks)
    config = json.loads((folder / "config.json").read_text())
    four_bits = _four_bits(folder, config, ranks)
    if any(config.get(name) for name in EXPERTS):
        raise ModelError(
            f"{folder} is a mixture of experts, which torch training does not adapt; train it with "
            "--device mlx, or take a dense model"
        )
    flash = device.type == "cuda" and is_flash_attn_2_available()
    attention = "flash_attention_2" if flash else "sdpa"
    transformers_logging.disable_progress_bar()
    try:
        whole, report = _ANY_MODEL.from_pretrained(
            folder,
            dtype="auto",
            attn_implementation=attention,
            local_files_only=True,
            trust_remote_code=False,  # left out, the user is asked whether code of the folder runs
            output_loading_info=True,
            **({"device_map": {"": device}} if four_bits else {}),
        )
    except Exception as error:  # of the code of any architecture
        first = f"{error}".partition("\n")[0]
        raise ModelError(f"{folder} cannot be loaded with torch: {first}; {WAY_OUT}") from error
    if lacking := sorted(report["missing_keys"]):
        raise ModelError(f"{folder} lacks the weights {', '.join(lacking[:3])}; {WAY_OUT}")
    whole.requires_grad_(False)
    if four_bits:
        _keep_exact(whole)
    if ranks is not None:
        ranks.shard(whole.base_model, whole.get_input_embeddings())
    return CausalModel((whole if four_bits else whole.to(device)).eval())


def _four_bits(folder: Path, config: Mapping[str, Any], ranks: Ranks | None) -> bool:
    """Whether a folder's weights are in 4 bits, for QLoRA (Dettmers et al., 2023).

    Raises:
        ModelError: they are quantised in another way, several processes would share them, or a
            package is missing.
    """
    program = quantised_by(config)
    if program is None:
        return False
    if program != "bitsandbytes" or not config["quantization_config"].get("load_in_4bit"):
        kind, else_ = f"{program} in a form", ""
        if program == "mlx":
            kind, else_ = "MLX", ", or train with --device mlx"
        raise ModelError(
            f"{folder} holds weights that are quantised for {kind}, which torch cannot train on; "
            f"take the model without quantisation or in 4 bits of bitsandbytes{else_}"
        )
    if ranks is not None:
        raise ModelError(
            f"{folder} holds weights in 4 bits, which several processes cannot share; start one "
            "process without torchrun, or take the model without quantisation"
        )
    lacking = [name for name in ("bitsandbytes", "accelerate") if find_spec(name) is None]
    if lacking:
        raise ModelError(
            f"{folder} holds weights in 4 bits, which need {' and '.join(lacking)}: "
            f"{adding('qlora')}"
        )
    return True


def _keep_exact(whole: Any) -> None:
    """Compute with weights in 4 bits as on the other devices, where the CPU has bfloat16.

    bitsandbytes has a product of its own for such CPUs. It has no gradient and rounds inputs in
    float32 to bfloat16, but is also taken in the forward pass of training, because the base model
    is in evaluation mode.
    """
    for module in whole.modules():
        if hasattr(module, "support_avx512bf16_for_cpu"):
            module.support_avx512bf16_for_cpu = False
