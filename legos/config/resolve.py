"""Layers of settings become one configuration that remembers where each value came from.

defaults  <  what suits the built-in model  <  the arena's recommended settings
          <  what loop.deterministic implies  <  TOML files, in order  <  the command line
"""

import re
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from pydantic.fields import FieldInfo

from legos.builtin import BUILTIN, RECOMMENDED
from legos.config.schema import RunConfig
from legos.config.setting import Problem, Settings, SettingsError, admits_none
from legos.config.toml import uncommented, write_toml
from legos.errors import ConfigError, did_you_mean

__all__ = [
    "Recommend",
    "ResolvedConfig",
    "is_chosen",
    "knobs",
    "read_config",
    "resolve",
]

Recommend = Callable[[str, str], Mapping[str, object]]
"""Arena name, model name -> dotted setting -> value that the arena advises for that model."""

COMMAND_LINE = "command line"
_CHOSEN = (COMMAND_LINE, "file ", "run ")  # how the sources of chosen values begin
_OF_ONE_RUN = ("out", "fork_from")
_NONE = ("none", Path("none"))  # the command line makes paths of the text
_OPTIONS = "play.options"
_DETERMINISTIC = "loop.deterministic"
_LOSS, _RATIO = "training.loss", "training.importance_sampling"
_IMPLIED: Mapping[str, object] = {"training.staleness_limit": 0, "loop.step_concurrency": 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedConfig:
    """A checked configuration and the origin of each of its values."""

    config: RunConfig
    sources: Mapping[str, str]  # dotted name -> "default", "arena nim", "file x.toml", ...

    def toml(self) -> str:
        """The configuration as TOML, each line with its source.

        ``read_config`` reads all of it. As one of the files of ``resolve`` it gives only what was
        chosen, so that another arena's run does not inherit this one's defaults.
        """
        not_chosen = {name for name, source in self.sources.items() if not is_chosen(source)}
        return write_toml(
            _values(self.config), self.sources, not_chosen=not_chosen.union(_OF_ONE_RUN)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layer:
    source: str
    values: Mapping[str, object]  # dotted name -> value


def is_chosen(source: str) -> bool:
    """Whether somebody chose the value that came from here: no default, nothing recommended."""
    return source.startswith(_CHOSEN)


def knobs() -> dict[str, FieldInfo]:
    """Every setting by its dotted name, in the order of the schema."""
    found: dict[str, FieldInfo] = {}
    for name, field in RunConfig.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, Settings):
            found |= {f"{name}.{inner}": info for inner, info in kind.model_fields.items()}
        else:
            found[name] = field
    return found


_GROUPS = frozenset(name.partition(".")[0] for name in knobs() if "." in name)


def resolve(
    *,
    run: Path | None = None,
    files: Sequence[Path] = (),
    overrides: Mapping[str, object] | None = None,
    recommend: Recommend | None = None,
) -> ResolvedConfig:
    """Lay the layers over each other and check the result.

    Args:
        run: the file that a run keeps of its settings, read whole; anything else wins over it.
        files: TOML files; a later one wins.
        overrides: dotted name -> value from the command line; wins over everything.
        recommend: what the arena advises.

    Raises:
        ConfigError: a file that cannot be read, a setting that does not exist, a value of the wrong
            type or range, or settings that contradict each other; names where each came from.
    """
    given = [] if run is None else [_read_layer(run, whole=True)]
    given += [_read_layer(path) for path in files]
    given.append(_Layer(source=COMMAND_LINE, values=_checked(overrides or {}, COMMAND_LINE)))
    advised = _advice(recommend, _merge(given)[0]) if recommend is not None else []
    if _merge([*advised, *given])[0].get(_DETERMINISTIC) is True:
        advised.append(_Layer(source=_DETERMINISTIC, values=_IMPLIED))
    return _build(*_merge([*advised, *given]))


def _advice(recommend: Recommend, given: Mapping[str, object]) -> list[_Layer]:
    fields = RunConfig.model_fields
    arena, model = (given.get(name, fields[name].default) for name in ("arena", "model"))
    if not (isinstance(arena, str) and isinstance(model, str)):
        return []  # a wrong type, which the whole configuration's check will name
    advised = {f"model {BUILTIN}": RECOMMENDED} if model == BUILTIN else {}
    advised = {**advised, f"arena {arena}": recommend(arena, model)}
    return [
        _Layer(source=source, values=_checked(values, source)) for source, values in advised.items()
    ]


def read_config(path: Path) -> RunConfig:
    """The configuration in one TOML file, over the defaults; a run's own file is read whole.

    Raises:
        ConfigError: see ``resolve``.
    """
    return resolve(run=path).config


def _read_layer(path: Path, *, whole: bool = False) -> _Layer:
    source = f"file {path}"
    try:
        text = path.read_text(encoding="utf-8")
        table = tomllib.loads(uncommented(text) if whole else text)
    except OSError as error:
        raise ConfigError(f"cannot read the configuration {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from error
    return _Layer(source=source, values=_checked(dict(_flatten(table)), source))


def _flatten(table: Mapping[str, object], prefix: str = "") -> Iterable[tuple[str, object]]:
    for name, value in table.items():
        dotted = f"{prefix}{name}"
        if isinstance(value, Mapping) and (dotted in _GROUPS or dotted == _OPTIONS):
            yield from _flatten(cast("Mapping[str, object]", value), f"{dotted}.")
        else:
            yield dotted, value


def _checked(values: Mapping[str, object], source: str) -> dict[str, object]:
    """The values with "none" read as none; refuses names that do not exist."""
    known = knobs()
    checked: dict[str, object] = {}
    for name, value in values.items():
        if name.startswith(f"{_OPTIONS}."):
            checked[name] = value
        elif name == _OPTIONS and isinstance(value, Mapping):
            options = cast("Mapping[str, object]", value)
            checked |= {f"{_OPTIONS}.{option}": inner for option, inner in options.items()}
        elif name in _GROUPS or name == _OPTIONS:
            raise ConfigError(f"{name} ({source}) is {value!r}; expected a table")
        elif name not in known:
            raise ConfigError(f"{name} ({source}) is not a setting{_suggest(name, known)}")
        else:
            none = value in _NONE and admits_none(known[name])
            checked[name] = None if none else value
    return checked


def _suggest(name: str, known: Mapping[str, FieldInfo]) -> str:
    last = name.rpartition(".")[2]
    for key in known:
        if key.rpartition(".")[2] == last:
            return f"; did you mean {key!r}?"
    return did_you_mean(name, known if "." in name else {*known, *_GROUPS})


def _merge(layers: Iterable[_Layer]) -> tuple[dict[str, object], dict[str, str]]:
    values: dict[str, object] = {}
    sources: dict[str, str] = {}
    for layer in layers:
        if layer.values.get(_LOSS) is not None:  # it implies its ratio, whatever another loss did
            values.pop(_RATIO, None)
            sources.pop(_RATIO, None)
        values |= layer.values
        sources |= dict.fromkeys(layer.values, layer.source)
    return values, sources


def _build(values: Mapping[str, object], given: Mapping[str, str]) -> ResolvedConfig:
    nested: dict[str, Any] = {}
    for name, value in values.items():
        *groups, last = name.split(".", 2)
        place = nested
        for group in groups:
            place = place.setdefault(group, {})
        place[last] = value
    try:
        config = RunConfig(**nested)
    except SettingsError as error:
        lines = [_with_source(problem, given) for problem in error.problems]
        raise ConfigError("\n".join(lines)) from None
    sources = {name: given.get(name, "default") for name in _values(config)}
    return ResolvedConfig(config=config, sources=sources)


def _with_source(problem: Problem, given: Mapping[str, str]) -> str:
    if not problem.joint:
        return f"{problem} ({given.get(problem.key, 'default')})"
    words = set(re.findall(r"[a-z_0-9]+", problem.text))
    named = [name for name in knobs() if name.rpartition(".")[2] in words]
    origins = ", ".join(f"{name}: {given.get(name, 'default')}" for name in named)
    return f"{problem} [{origins}]"


def _values(config: RunConfig) -> dict[str, object]:
    """Dotted name -> value of every setting, the arena's options one by one."""
    values: dict[str, object] = {}
    for name in knobs():
        group, _, last = name.rpartition(".")
        value = getattr(getattr(config, group) if group else config, last)
        if name == _OPTIONS:
            values |= {f"{_OPTIONS}.{option}": inner for option, inner in value.items()}
        else:
            values[name] = value
    return values
