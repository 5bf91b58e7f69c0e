"""Settings that exclude each other, or that need another one."""

from collections.abc import Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any, cast

from legos.errors import ConfigError

Pair = tuple[str, str, str]
"""Two settings by their dotted names; and why they exclude each other, or what to do about the
second, without which the first has no meaning."""

_OFF: Mapping[str, Sequence[object]] = {
    "device": ("mlx",),
    "engine": ("device",),
    "players": (1,),
    "generation.max_batch": (256,),
    "loop.step_concurrency": (1,),
    "loop.serve_port": (None,),
    "kl_estimator": ("k2", "k3"),
}
"""Values with which a setting asks for nothing; of all other settings, those that are false."""

_ARRIVAL = "a server batches requests as they arrive, which changes rounding"
_LIMITS = "a server has limits of its own, which are set there"
_CLUSTER = "give the address of a Ray cluster, --ray local for one of this machine"

EXCLUSIVE: Sequence[Pair] = (
    ("loop.deterministic", "training.staleness_limit", "a deterministic run allows no lag"),
    ("loop.deterministic", "loop.step_concurrency", "it plays for one step at a time"),
    ("training.decode_pause_s", "loop.deterministic", "passes by the clock do not repeat"),
    ("loop.deterministic", "loop.serve_port", _ARRIVAL),
    ("loop.deterministic", "training.kl_server", "its answers decide which group comes first"),
    ("loop.deterministic", "server", _ARRIVAL),
    ("loop.deterministic", "engine", _ARRIVAL),
    ("loop.deterministic", "ray", _ARRIVAL),
    ("engine", "server", "either generates"),
    ("ray", "engine", "engines of a cluster are of the device"),
    ("engines", "server", "players ask either"),
    ("generation.max_batch", "server", _LIMITS),
    ("generation.max_batch", "engine", _LIMITS),
    ("device", "training.memory_limit_gib", "torch plans no memory"),
    ("device", "training.decode_pause_s", "torch does not measure its passes"),
    ("play.options", "mix", "an arena has its own options, [mix.NAME] options = {...}"),
)
"""Settings of a run that exclude each other."""

NEEDED: Sequence[Pair] = (
    ("adapter_folder", "server", "vLLM servers read adapters there: give their addresses"),
    ("players", "ray", _CLUSTER),
    ("engines", "ray", _CLUSTER),
)
"""Settings of a run that have a meaning only with another one."""


def check_together(
    settings: object, exclusive: Sequence[Pair], needed: Sequence[Pair], *, where: str = ""
) -> None:
    """Refuse settings that exclude each other, and those that lack another one.

    Args:
        settings: a group of settings.
        exclusive: pairs of which at most one may be set.
        needed: pairs whose first is set only with the second.
        where: what the names of the settings begin with in messages.

    Raises:
        ConfigError: the message names both settings, and what they are.
    """
    for one, other, why in exclusive:
        if _is_on(settings, one) and _is_on(settings, other):
            both = f"{where}{_shown(settings, one)} but {where}{_shown(settings, other)}"
            raise ConfigError(f"{both}; {why}: leave one of them out")
    for one, other, remedy in needed:
        if _is_on(settings, one) and not _is_on(settings, other):
            both = f"{where}{_shown(settings, one)} but {where}{_shown(settings, other)}"
            raise ConfigError(f"{both}; {remedy}, or leave {where}{one} out")


def _is_on(settings: object, name: str) -> bool:
    value: Any = attrgetter(name)(settings)
    return value not in _OFF[name] if name in _OFF else bool(value)


def _shown(settings: object, name: str) -> str:
    """The name of a setting and its value, for messages."""
    value: Any = attrgetter(name)(settings)
    if value is None or value in ((), {}):
        return f"{name} is {'not set' if value is None else 'empty'}"
    if isinstance(value, Mapping):
        return f"{name} names {', '.join(cast('Mapping[str, object]', value))}"
    if isinstance(value, bool):
        return f"{name} is {str(value).lower()}"
    if isinstance(value, Path):
        return f"{name} is {str(value)!r}"
    if isinstance(value, tuple):
        value = cast("tuple[object, ...]", value)[0]
    return f"{name} is {value!r}"
