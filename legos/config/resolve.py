"""Merge layers of settings into one configuration that records the source of every value.

Later layers win: the defaults, the settings for an engine in this process or for the built-in
model, the arena's recommended settings, what ``loop.deterministic`` implies, TOML files in order,
and the command line.
"""

import re
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from operator import attrgetter
from pathlib import Path
from typing import Any, cast

from pydantic.fields import FieldInfo

from legos.builtin import BUILTIN, RECOMMENDED
from legos.config.play import MixedArena
from legos.config.schema import RunConfig
from legos.config.setting import BadSetting, Settings, SettingsError, admits_none
from legos.config.toml import read_sources, split_name, uncommented, write_toml
from legos.errors import ConfigError, did_you_mean

Recommend = Callable[[str, str], Mapping[str, object]]
"""(arena name, model name) -> dotted setting -> value that the arena recommends."""

COMMAND_LINE = "command line"
_CHOSEN = (COMMAND_LINE, "file ", "run ")  # first words of the sources that a user chose
_OF_ONE_RUN = ("out", "fork_from")  # never inherited by another run
_NONE = ("none", Path("none"))  # the command line converts the text of a path
_OPTIONS = "play.options"
_MIX = "mix."
_OWN = "play."  # of each arena of a mix
_ONE_DEVICE: Mapping[str, object] = {"training.staleness_limit": 0}
"""Where one device trains and generates, turns take no longer than both at once, and large steps
learn far more of what the newest policy sampled."""
_DETERMINISTIC = "loop.deterministic"
_IMPLIED: Mapping[str, object] = {
    "training.staleness_limit": 0,
    "loop.step_concurrency": 1,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedConfig:
    """A checked configuration and the source of each value."""

    config: RunConfig
    sources: Mapping[str, str]  # dotted name -> "default", "arena nim", "file x.toml", ...

    def toml(self) -> str:
        """The configuration as TOML, each line with its source.

        Values that the user did not choose are comments: ``read_config`` reads them too, while
        ``resolve`` ignores them in its ``files``, so that another run gets its own defaults.
        """
        not_chosen = {name for name, source in self.sources.items() if not is_chosen(source)}
        return write_toml(
            settings_of(self.config), self.sources, not_chosen=not_chosen.union(_OF_ONE_RUN)
        )


_Layer = tuple[str, Mapping[str, object]]
"""The source of some settings; and dotted name -> value."""


def is_chosen(source: str) -> bool:
    """Whether the user chose values of this source: neither defaults nor recommendations."""
    return source.startswith(_CHOSEN)


@cache
def knobs() -> Mapping[str, FieldInfo]:
    """Dotted name -> field of every setting, in the order of the schema, without ``mix``."""
    found: dict[str, FieldInfo] = {}
    for name, field in RunConfig.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, Settings):
            found |= {f"{name}.{inner}": info for inner, info in kind.model_fields.items()}
        elif name != "mix":
            found[name] = field
    return found


_GROUPS = frozenset(name.partition(".")[0] for name in knobs() if "." in name)


def resolve(
    *,
    run: Path | None = None,
    files: Sequence[Path] = (),
    overrides: Mapping[str, object] | None = None,
    recommend: Recommend | None = None,
    inherit: Callable[[str], str] = str,
) -> ResolvedConfig:
    """Merge the layers and check the result.

    Args:
        run: ``config.toml`` of a run, read with its comments; files and overrides win over it.
        files: TOML files; a later one wins.
        overrides: dotted name -> value from the command line; wins over everything.
        recommend: returns what the arena recommends.
        inherit: source of a value in the run -> its source in the result.

    Raises:
        ConfigError: a file cannot be read, a setting does not exist, a value has the wrong type or
            is out of range, or settings contradict each other; with the source of each value.
    """
    asked = [_read_layer(path) for path in files]
    asked.append((COMMAND_LINE, _checked(overrides or {}, COMMAND_LINE)))
    before, origins = ([], {}) if run is None else _layer_of_run(run, _merge(asked)[0])
    advice = _advice(recommend, _merge([*before, *asked])[0]) if recommend is not None else []
    if _merge([*advice, *before, *asked])[0].get(_DETERMINISTIC) is True:
        implied = {n: v for n, v in _IMPLIED.items() if not is_chosen(origins.get(n, ""))}
        before.append((_DETERMINISTIC, implied))
    resolved = _build(*_merge([*advice, *before, *asked]))
    sources = {
        name: inherit(origins.get(name, source)) if source == f"file {run}" else source
        for name, source in resolved.sources.items()
    }
    return replace(resolved, sources=sources)


def _advice(recommend: Recommend, chosen: Mapping[str, object]) -> list[_Layer]:
    """Layers of what the built-in model and the arenas recommend.

    In a mix, what an arena recommends of play holds for itself, unless the run has another value;
    of all other settings, the first arena that recommends one decides.
    """
    fields = RunConfig.model_fields
    arena, model = (chosen.get(name, fields[name].default) for name in ("arena", "model"))
    if not (isinstance(arena, str) and isinstance(model, str)):
        return []  # a wrong type, which the check of the whole configuration reports
    layers: list[_Layer] = []
    remote = chosen.get("server") or chosen.get("ray") or chosen.get("engine") == "vllm"
    if not remote:
        layers.append(("one device", _ONE_DEVICE))
    if model == BUILTIN:
        layers.append((f"model {BUILTIN}", RECOMMENDED))
    mixed = list(dict.fromkeys(split_name(n)[0][1] for n in chosen if n.startswith(_MIX)))
    found = {name: recommend(name, model) for name in mixed}
    for name, values in found.items():
        own = {
            f"{_MIX}{name}.{key.partition('.')[2]}": value
            for key, value in values.items()
            if key.startswith(_OWN) and key not in chosen
        }
        layers.append((f"arena {name}", own))
    for name, values in reversed(found.items()):
        rest = {key: value for key, value in values.items() if not key.startswith(_OWN)}
        layers.append((f"arena {name}", rest))
    if not mixed:
        layers.append((f"arena {arena}", recommend(arena, model)))
    return [(source, _checked(values, source)) for source, values in layers]


def read_config(path: Path) -> RunConfig:
    """The configuration of a ``config.toml``, its comments included, over the defaults.

    Raises:
        ConfigError: see ``resolve``.
    """
    return resolve(run=path).config


def _read_layer(path: Path, *, whole: bool = False) -> _Layer:
    source = f"file {path}"
    try:
        text = path.read_text(encoding="utf-8")
        values = dict(_flatten(tomllib.loads(uncommented(text) if whole else text)))
    except OSError as error:
        raise ConfigError(
            f"cannot read the configuration {path}: {error.strerror}; `legos train --dry-run > "
            f"{path.name}` writes one"
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from error
    return source, _checked(values, source)


def _layer_of_run(run: Path, asked: Mapping[str, object]) -> tuple[list[_Layer], Mapping[str, str]]:
    """A run's settings, and the source of each in the run.

    What an arena of its mix recommended is left out where ``asked`` has it for all arenas.
    """
    source, values = _read_layer(run, whole=True)
    origins = read_sources(run.read_text(encoding="utf-8"))
    kept = {
        name: value
        for name, value in values.items()
        if is_chosen(origins.get(name, "")) or f"{_OWN}{split_name(name)[1]}" not in asked
    }
    return [(source, kept)], origins


def _flatten(table: Mapping[str, object], prefix: str = "") -> Iterable[tuple[str, object]]:
    """Dotted settings; a number in place of the table of an arena of a mix is its share."""
    for name, value in table.items():
        dotted = f"{prefix}{name}"
        inside = prefix == _MIX or dotted in (*_GROUPS, _OPTIONS, "mix")
        if isinstance(value, Mapping) and inside:
            yield from _flatten(cast("Mapping[str, object]", value), f"{dotted}.")
        else:
            yield f"{dotted}.share" if prefix == _MIX else dotted, value


def _checked(values: Mapping[str, object], source: str) -> dict[str, object]:
    """The values with "none" replaced by None; refuses names that do not exist."""
    checked: dict[str, object] = {}
    for name, value in _flatten(values):
        if name.startswith(f"{_OPTIONS}."):
            checked[name] = value
            continue
        if name in (*_GROUPS, _OPTIONS, "mix"):
            raise ConfigError(f"{name} ({source}) is {value!r}; expected a table")
        field = _field(name, source)
        checked[name] = None if value in _NONE and admits_none(field) else value
    return checked


def _field(name: str, source: str) -> FieldInfo:
    """The field of a setting.

    Raises:
        ConfigError: there is no such setting.
    """
    mixed = name.startswith(_MIX)
    key, known = (name.rpartition(".")[2], MixedArena.model_fields) if mixed else (name, knobs())
    if key not in known:
        raise ConfigError(f"{name} ({source}) is not a setting{_suggest(key, known)}")
    return known[key]


def _suggest(name: str, known: Mapping[str, FieldInfo]) -> str:
    last = name.rpartition(".")[2]
    for key in known:
        if key.rpartition(".")[2] == last:
            return f"; did you mean {key!r}?"
    return did_you_mean(name, known if "." in name else {*known, *_GROUPS})


def _merge(layers: Iterable[_Layer]) -> tuple[dict[str, object], dict[str, str]]:
    values: dict[str, object] = {}
    sources: dict[str, str] = {}
    for source, chosen in layers:
        values |= chosen
        sources |= dict.fromkeys(chosen, source)
    return values, sources


def _build(values: Mapping[str, object], origins: Mapping[str, str]) -> ResolvedConfig:
    nested: dict[str, Any] = {}
    for name, value in values.items():
        groups, last = split_name(name)
        table = nested
        for group in groups:
            table = table.setdefault(group, {})
        table[last] = value
    try:
        config = RunConfig(**nested)
    except SettingsError as error:
        lines = [_with_source(problem, origins) for problem in error.problems]
        raise ConfigError("\n".join(lines)) from None
    sources = {name: origins.get(name, "default") for name in settings_of(config)}
    return ResolvedConfig(config=config, sources=sources)


def _with_source(problem: BadSetting, origins: Mapping[str, str]) -> str:
    """A problem's message with the source of every setting in it."""
    if not problem.joint:
        whole = (name for name in origins if f"{problem.key}.".startswith(f"{name}."))
        return f"{problem} ({origins.get(next(whole, ''), 'default')})"
    told = problem.text.partition(";")[0]  # without the advice
    words = set(re.findall(r"[a-z_0-9]+(?= is | names | ')", told))  # before a value
    named = [name for name in knobs() if name.rpartition(".")[2] in words]
    listed = ", ".join(f"{name}: {origins.get(name, 'default')}" for name in named)
    return f"{problem} [{listed}]"


def settings_of(config: RunConfig) -> dict[str, object]:
    """Dotted name -> value of every setting and of every option of the arena.

    Of the arenas of a mix, only settings that somebody set; ``arena`` is left out then.
    """
    values: dict[str, object] = {}
    for name in knobs():
        if name == "arena" and config.mix:
            values |= {
                f"{_MIX}{arena}.{field}": getattr(one, field)
                for arena, one in config.mix.items()
                for field in MixedArena.model_fields
                if field in one.model_fields_set
            }
            continue
        value = attrgetter(name)(config)
        if name == _OPTIONS:
            values |= {f"{_OPTIONS}.{option}": inner for option, inner in value.items()}
        else:
            values[name] = value
    return values
