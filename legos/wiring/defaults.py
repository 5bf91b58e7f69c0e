"""What stands behind settings that are ``none``: the computed value and its reason, as text."""

import re
from collections.abc import Iterator

from legos.arena.arena import Arena, GameArena
from legos.arena.registry import find_arena
from legos.config.resolve import knobs, settings_of
from legos.config.schema import RunConfig, TrainingConfig
from legos.losses.policy import LOSSES
from legos.wiring.arena import DEFAULT_CREDIT

__all__ = ["computed"]

_RULE = re.compile(r"(?:none|left out): (.*?)(?:\. |\.$|$)")  # in the description of a setting
_OF_ARENAS = ("tasks_per_step", "group_size", "illegal", "restrict_choices")


def computed(config: RunConfig) -> dict[str, str]:
    """Dotted name of each setting that is None -> the value that holds in its place, and why.

    A value that depends on the model or on the memory of the machine is described, not computed.
    """
    values = settings_of(config)
    known = {**dict(_of_objective(config.training)), **dict(_of_arena(config))}
    found: dict[str, str] = {}
    for name, field in knobs().items():
        rule = _RULE.search(" ".join((field.description or "").split()))
        texts = [known.get(name), rule.group(1) if rule else None]
        if name in values and values[name] is None and any(texts):
            found[name] = ", ".join(text for text in texts if text)
    return found


def _of_objective(training: TrainingConfig) -> Iterator[tuple[str, str]]:
    loss = training.policy_loss
    yield "training.loss", loss
    if (usual := LOSSES[loss].clip_range) is not None:
        low, high = usual
        yield "training.clip_range", f"{low:g}"
        yield "training.clip_range_high", f"{training.clip_range or high:g}"


def _of_arena(config: RunConfig) -> Iterator[tuple[str, str]]:
    """The class attributes of the arena of a run; a constructor may still set others."""
    if config.mix:
        return
    kind = find_arena(config.arena)
    attributes = kind if issubclass(kind, Arena) else GameArena
    for name in _OF_ARENAS:
        yield f"play.{name}", str(getattr(attributes, name)).lower()
    if attributes.max_tokens is not None:
        yield "generation.max_tokens", str(attributes.max_tokens)
    yield "play.credit", DEFAULT_CREDIT
