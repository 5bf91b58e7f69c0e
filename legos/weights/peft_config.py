"""What PEFT's ``adapter_config.json`` says about the arithmetic of an adapter.

Only settings under which every module computes y = W x + scale * B A x (or DoRA's product), and
which leave the base model's weights as they are, are accepted. What is not known is refused.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from pydantic_core import SchemaError, SchemaValidator, core_schema

from legos.errors import AdapterError
from legos.weights.adapter import MAX_RANK, MAX_SCALE, check_scale, is_number

__all__ = ["CONFIG_FILE", "PeftConfig", "is_set"]

CONFIG_FILE = "adapter_config.json"  # mlx-lm's file has the same name
_MOST_PATTERN_TEXT = 1 << 15  # characters of all patterns together, so that they compile in seconds
_LONGEST_PATTERN = 1024  # characters; the engine's time grows with their square times the name's
_MAX_ALPHA = MAX_SCALE * MAX_RANK
_READ = ("r", "lora_alpha", "rank_pattern", "alpha_pattern", "use_rslora", "use_dora")
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


@dataclass(frozen=True, slots=True, kw_only=True)
class PeftConfig:
    """The settings that the arithmetic depends on."""

    rank: int
    alpha: float
    ranks: tuple[tuple[_Matches, int], ...]  # the first that matches a module replaces the rank
    alphas: tuple[tuple[_Matches, float], ...]
    use_rslora: bool
    use_dora: bool

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> "PeftConfig":
        """Check the content of the file.

        Raises:
            AdapterError: a setting has a wrong type, is out of range, or may change the arithmetic;
                the message names it.
        """
        for name, value in config.items():
            _check_setting(name, value)
        return cls(
            rank=_rank(config.get("r"), "r"),
            alpha=_alpha(config.get("lora_alpha"), "lora_alpha"),
            ranks=_patterns(config, "rank_pattern", _rank),
            alphas=_patterns(config, "alpha_pattern", _alpha),
            use_rslora=_switch(config, "use_rslora"),
            use_dora=_switch(config, "use_dora"),
        )

    def rank_and_scale(self, module: str) -> tuple[int, float]:
        """Rank and scale of a module.

        Args:
            module: its name as PEFT has it, which the patterns match.

        Raises:
            AdapterError: its scale is out of range.
        """
        rank = next((rank for matches, rank in self.ranks if matches(module)), self.rank)
        alpha = next((alpha for matches, alpha in self.alphas if matches(module)), self.alpha)
        return rank, check_scale(alpha / (math.sqrt(rank) if self.use_rslora else rank))


def is_set(value: Any) -> bool:
    """Whether a setting is not at a value by which PEFT leaves something out."""
    return value not in (None, False, "", [], {})


def _check_setting(name: str, value: Any) -> None:
    if name in _READ or name in _WITHOUT_EFFECT or not is_set(value):
        return
    accepted = _ACCEPTED.get(name, ())
    if value in accepted:
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


def _rank(value: Any, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_RANK:
        raise AdapterError(
            f"{CONFIG_FILE} has {name} {_shown(value)}; expected a whole number from 1 to "
            f"{MAX_RANK}"
        )
    return value


def _alpha(value: Any, name: str) -> float:
    if not is_number(value) or not 0 < value <= _MAX_ALPHA:
        raise AdapterError(
            f"{CONFIG_FILE} has {name} {_shown(value)}; expected a number above 0 and at most "
            f"{_MAX_ALPHA:g}"
        )
    return float(value)


def _switch(config: Mapping[str, Any], name: str) -> bool:
    value = config.get(name)
    if not isinstance(value, bool | None):
        raise AdapterError(f"{CONFIG_FILE} has {name} {_shown(value)}; expected true or false")
    return bool(value)


def _patterns(
    config: Mapping[str, Any], name: str, read: Callable[[Any, str], Any]
) -> tuple[tuple[_Matches, Any], ...]:
    """Pairs of a pattern of module names, and a value that has been read."""
    found = config.get(name)
    if not is_set(found):
        return ()
    if not isinstance(found, dict):
        raise AdapterError(
            f"{CONFIG_FILE} has {name} {_shown(found)}; expected an object of patterns and numbers"
        )
    patterns = cast("dict[str, Any]", found)
    if sum(map(len, patterns)) > _MOST_PATTERN_TEXT:
        raise AdapterError(
            f"{CONFIG_FILE} has more than {_MOST_PATTERN_TEXT} characters of patterns in {name}; "
            "join patterns of equal values into one"
        )
    return tuple(
        (_matcher(pattern, name), read(value, f"{name}[{_shown(pattern)}]"))
        for pattern, value in patterns.items()
    )


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
