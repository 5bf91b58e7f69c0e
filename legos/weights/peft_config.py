"""What PEFT's ``adapter_config.json`` says about the arithmetic of an adapter.

Only settings under which every module computes y = W x + scale * B A x, and
which leave the base model's weights as they are, are accepted. What is not known is refused.
"""

import math
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from legos.errors import AdapterError
from legos.weights.adapter import MAX_RANK, MAX_SCALE, check_scale

CONFIG_FILE = "adapter_config.json"  # mlx-lm's file has the same name
_Rank = Annotated[int, msgspec.Meta(ge=1, le=MAX_RANK)]
_Alpha = Annotated[float, msgspec.Meta(gt=0, le=MAX_SCALE * MAX_RANK)]
_WITHOUT_EFFECT = frozenset((  # on what a trained adapter computes
    "auto_mapping", "base_model_name_or_path", "corda_config", "ensure_weight_tying", "eva_config",
    "exclude_modules", "fan_in_fan_out", "inference_mode", "layers_pattern", "layers_to_transform",
    "lora_dropout", "lora_ga_config", "megatron_core", "merge_weights", "peft_version",
    "qalora_group_size", "revision", "runtime_config", "target_modules", "task_type",
))  # fmt: skip
_ACCEPTED = {
    "peft_type": ("LORA",),
    "bias": ("none",),
    "init_lora_weights": (True, "gaussian", "eva", "orthogonal", "mica"),  # W stays as it is
}
_UNSET: tuple[Any, ...] = (None, False, "", [], {})  # values by which PEFT leaves something out


class PeftConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The settings that the arithmetic depends on, as the file has them."""

    r: _Rank
    lora_alpha: _Alpha
    use_rslora: bool = False

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> "PeftConfig":
        """Check the content of the file.

        Raises:
            AdapterError: a setting has a wrong type, is out of range, or may change the arithmetic;
                the message names it.
        """
        given = {name: value for name, value in config.items() if value not in _UNSET}
        for name, value in given.items():
            known = name in cls.__struct_fields__ or name in _WITHOUT_EFFECT
            if not known and value not in _ACCEPTED.get(name, ()):
                raise AdapterError(
                    f"{CONFIG_FILE} sets {name} to {value!r:.200}; with it, the adapter may "
                    "compute something else than W x + scale * B A x, the same for all modules: "
                    "train it without, or merge it into the model with PEFT (where it says how W "
                    "starts, save_pretrained(path_initial_model_for_weight_conversion=...) helps)"
                )
        try:
            return msgspec.convert(given, cls)
        except msgspec.ValidationError as error:
            raise AdapterError(f"{CONFIG_FILE} is not as PEFT writes it: {error}") from error

    @property
    def scale(self) -> float:
        """LoRA's scale.

        Raises:
            AdapterError: it is out of range.
        """
        return check_scale(self.lora_alpha / (math.sqrt(self.r) if self.use_rslora else self.r))
