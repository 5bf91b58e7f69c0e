"""What PEFT's ``adapter_config.json`` says about the arithmetic of an adapter.

Only settings under which every module computes y = W x + scale * B A x (or DoRA's product), and
which leave the base model's weights as they are, are accepted. What is not known is refused.
"""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

import msgspec
from pydantic_core import SchemaError, SchemaValidator, core_schema

from legos.errors import AdapterError
from legos.weights.adapter import MAX_RANK, MAX_SCALE, check_scale

__all__ = ["CONFIG_FILE", "PeftConfig", "is_set"]

CONFIG_FILE = "adapter_config.json"  # mlx-lm's file has the same name
_MOST_PATTERN_TEXT = 1 << 15  # characters of all patterns together, so that they compile in seconds
_LONGEST_PATTERN = 1024  # characters; the engine's time grows with their square times the name's
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
_CHANGE_BASE = ("pissa", "olora", "corda", "lora_ga")  # beginnings of the names
_Matches = Callable[[str], bool]
T = TypeVar("T")


class _Settings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings that the arithmetic depends on, as the file has them."""

    r: _Rank
    lora_alpha: _Alpha
    rank_pattern: dict[str, _Rank] = {}
    alpha_pattern: dict[str, _Alpha] = {}
    use_rslora: bool = False
    use_dora: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PeftConfig:
    """The arithmetic of an adapter's modules."""

    settings: _Settings
    ranks: tuple[tuple[_Matches, int], ...]  # the first that matches a module replaces the rank
    alphas: tuple[tuple[_Matches, float], ...]

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> "PeftConfig":
        """Check the content of the file.

        Raises:
            AdapterError: a setting has a wrong type, is out of range, or may change the arithmetic;
                the message names it.
        """
        given = {name: value for name, value in config.items() if is_set(value)}
        for name, value in given.items():
            _check_setting(name, value)
        try:
            settings = msgspec.convert(given, _Settings)
        except msgspec.ValidationError as error:
            (name,) = re.findall(r"`(?:\$\.)?([a-z_]+)(?:\[\.\.\.\])*`$", f"{error}")
            value = _shown(config.get(name))
            raise AdapterError(f"{CONFIG_FILE} has {name} {value}: {error}") from error
        return cls(
            settings=settings,
            ranks=_patterns(settings.rank_pattern, "rank_pattern"),
            alphas=_patterns(settings.alpha_pattern, "alpha_pattern"),
        )

    def rank_and_scale(self, module: str) -> tuple[int, float]:
        """Rank and scale of a module.

        Args:
            module: its name as PEFT has it, which the patterns match.

        Raises:
            AdapterError: its scale is out of range.
        """
        plain = self.settings
        rank = next((rank for matches, rank in self.ranks if matches(module)), plain.r)
        alpha = next((alpha for matches, alpha in self.alphas if matches(module)), plain.lora_alpha)
        return rank, check_scale(alpha / (math.sqrt(rank) if plain.use_rslora else rank))


def is_set(value: Any) -> bool:
    """Whether a setting is not at a value by which PEFT leaves something out."""
    return value not in (None, False, "", [], {})


def _check_setting(name: str, value: Any) -> None:
    accepted = _ACCEPTED.get(name, ())
    if name in _Settings.__struct_fields__ or name in _WITHOUT_EFFECT or value in accepted:
        return
    if name == "init_lora_weights" and str(value).startswith(_CHANGE_BASE):
        advice = (
            "this start changes the base model's weights; convert the adapter with PEFT's "
            "save_pretrained(path_initial_model_for_weight_conversion=...)"
        )
    elif accepted:
        advice = f"expected {' or '.join(map(repr, accepted))}"
    else:
        advice = (
            "with it, the adapter may compute something else than W x + scale * B A x; train it "
            "without"
        )
    raise AdapterError(f"{CONFIG_FILE} sets {name} to {_shown(value)}; {advice}")


def _shown(value: Any) -> str:
    """A value of a configuration, at a length for messages."""
    return f"{value!r:.200}"


def _patterns(patterns: Mapping[str, T], name: str) -> tuple[tuple[_Matches, T], ...]:
    """Pairs of a pattern of module names, and a value."""
    if sum(map(len, patterns)) > _MOST_PATTERN_TEXT:
        raise AdapterError(
            f"{CONFIG_FILE} has more than {_MOST_PATTERN_TEXT} characters of patterns in {name}; "
            "join patterns of equal values into one"
        )
    return tuple((_matcher(pattern, name), value) for pattern, value in patterns.items())


def _matcher(pattern: str, name: str) -> _Matches:
    """Whether a pattern matches a module, as PEFT decides it: the whole name, or its end.

    The pattern is a stranger's, and Python's own engine can take for ever over it while it holds
    the interpreter's lock. This engine's time grows with the lengths of the name and of the
    pattern, so both are bounded. Counts are refused because what they repeat is copied that often.
    """
    reason = "it repeats by a count in braces; write out what it repeats"
    if len(pattern) > _LONGEST_PATTERN:
        reason = f"it is longer than {_LONGEST_PATTERN} characters; split it into several"
    elif "{" not in pattern:
        whole = rf"\A(?:(.*\.)?({pattern})$)"
        try:
            schema = core_schema.str_schema(pattern=whole, regex_engine="rust-regex")
            return SchemaValidator(schema).isinstance_python
        except (ValueError, SchemaError) as error:
            reason = str(error).rpartition("rror: ")[2].strip()
    raise AdapterError(
        f"{CONFIG_FILE} has the pattern {_shown(pattern)} in {name}, which cannot be used: {reason}"
    )
