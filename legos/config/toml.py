"""Settings as TOML: one line each, with the source of the value in a comment."""

import json
import re
from collections.abc import Container, Mapping, Sequence
from datetime import date, time
from pathlib import Path
from typing import cast

from legos.errors import ConfigError

_NOT_CHOSEN = "#: "
_HEADER = f"""\
# Lines that begin with "{_NOT_CHOSEN}" are defaults, recommendations, or belong to this run alone.
# --config ignores them; --resume and --fork-from read them.

"""


def write_toml(
    values: Mapping[str, object], sources: Mapping[str, str], *, not_chosen: Container[str] = ()
) -> str:
    """Write dotted settings as tables of TOML.

    TOML has no null, so None becomes the text ``"none"``.

    Args:
        values: dotted name -> value, those without a dot first.
        sources: dotted name -> where the value came from; written as a comment.
        not_chosen: dotted names whose lines are commented out; ``uncommented`` restores them.

    Raises:
        ConfigError: TOML cannot hold a value.
    """
    tables: dict[str, list[str]] = {}
    for name, value in values.items():
        groups, last = split_name(name)
        comment = f"  # {_printable(sources[name])}" if name in sources else ""
        mark = _NOT_CHOSEN if name in not_chosen else ""
        line = f"{mark}{_key(last)} = {toml_value(value, name)}{comment}"
        tables.setdefault(".".join(map(_key, groups)), []).append(line)
    blocks = [
        "\n".join([f"[{table}]", *lines] if table else lines) for table, lines in tables.items()
    ]
    return (_HEADER if not_chosen else "") + "\n\n".join(blocks) + "\n"


def uncommented(text: str) -> str:
    """The text of ``write_toml`` with its commented settings as settings."""
    return re.sub(f"^{_NOT_CHOSEN}", "", text, flags=re.MULTILINE)


def read_sources(text: str) -> dict[str, str]:
    """Dotted name -> source, from the comments of a text of ``write_toml``."""
    sources: dict[str, str] = {}
    table = ""
    for line in uncommented(text).split("\n"):
        setting, comment, source = line.rpartition("  # ")
        if line.startswith("["):
            table = line.strip("[]") + "."
            if table.startswith('mix."'):
                table = f"mix.{json.loads(table[4:-1])}."
        elif comment:
            key = setting.partition(" = ")[0]
            sources[table + (json.loads(key) if key.startswith('"') else key)] = source
    return sources


def split_name(name: str) -> tuple[list[str], str]:
    """The tables of a setting, and its key: ``play.options.a.b`` has the key ``a.b``.

    The arena in ``mix.ARENA.key`` may have dots.
    """
    if name.startswith("mix."):
        arena, _, last = name.removeprefix("mix.").rpartition(".")
        return ["mix", arena], last
    *groups, last = name.split(".", 2)
    return groups, last


def _printable(text: str) -> str:
    return "".join(letter if letter.isprintable() else " " for letter in text)


def _key(name: str) -> str:
    bare = name.isascii() and name.replace("_", "").replace("-", "").isalnum()
    return name if bare else _text(name)


def _text(text: str) -> str:
    # TOML has the escapes of JSON, except for the control character 0x7f.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def toml_value(value: object, name: str) -> str:
    """A value as TOML.

    Raises:
        ConfigError: TOML cannot hold it; ``name`` is its setting.
    """
    if value is None:
        return '"none"'
    if isinstance(value, bool | int | float):
        return str(value).lower()  # true, 3, 1e-05, inf
    if isinstance(value, date | time):  # a datetime is a date
        return value.isoformat()
    if isinstance(value, str | Path):
        return _text(str(value))
    if isinstance(value, Mapping):
        table = cast("Mapping[str, object]", value)
        return "{" + ", ".join(f"{_key(k)} = {toml_value(v, name)}" for k, v in table.items()) + "}"
    if isinstance(value, Sequence):
        items = cast("Sequence[object]", value)
        return "[" + ", ".join(toml_value(item, name) for item in items) + "]"
    raise ConfigError(f"{name} is {value!r}; expected a value that TOML can hold")
