"""The command line that starts a run with the same settings."""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import cast

from legos.config.resolve import is_chosen
from legos.config.toml import toml_value

_OPTIONS = "play.options."


def train_command(values: Mapping[str, object], sources: Mapping[str, str]) -> list[str]:
    """The words of ``legos train`` with the settings that the user of a run chose.

    Args:
        values: dotted name -> value.
        sources: dotted name -> where the value came from.

    Returns:
        The words, from ``legos`` on; of a mix whose arenas have settings of their own, which no
        option can give, with ``--config config.toml`` in their place.
    """
    words = ["legos", "train"]
    chosen = [n for n, source in sources.items() if is_chosen(source) and n in values]
    if any(name.startswith("mix.") and not name.endswith(".share") for name in chosen):
        return [*words, "--config", "config.toml"]
    for name in chosen:
        if name != "out":
            words += _option(name, values[name])
    return words


def _option(name: str, value: object) -> list[str]:
    if name.startswith("mix."):
        return ["--mix", f"{name.removeprefix('mix.').removesuffix('.share')}={value}"]
    if name.startswith(_OPTIONS):
        return _words(name, _literal(value, name))
    option = name.replace("_", "-")
    if isinstance(value, bool):
        return [f"--{option}" if value else f"--no-{option}"]
    if isinstance(value, Mapping):
        shares = cast("Mapping[str, float]", value)
        return [word for who in shares for word in _words(option, f"{who}={shares[who]}")]
    if isinstance(value, tuple):
        items = cast("tuple[object, ...]", value)
        return [word for item in items for word in _words(option, f"{item}")]
    return _words(option, "none" if value is None else f"{value}")


def _words(option: str, text: str) -> list[str]:
    return [f"--{option}={text}"] if text.startswith("-") else [f"--{option}", text]


def _literal(value: object, name: str) -> str:
    """An option of an arena as TOML; a text as it is, unless TOML reads something else in it."""
    if isinstance(value, str | Path):
        try:
            tomllib.loads(f"value = {value}")
        except tomllib.TOMLDecodeError:
            return f"{value}"
    return toml_value(value, name)
