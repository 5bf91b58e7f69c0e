"""One dotted option for every setting, generated from the schema."""

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypedDict, cast, get_args

from cyclopts import Group, Parameter, Token, validators
from pydantic.fields import FieldInfo

from legos.config.league import LeagueConfig
from legos.config.resolve import knobs
from legos.config.schema import (
    GenerationConfig,
    LoopConfig,
    PlayConfig,
    RunConfig,
    TrackConfig,
    TrainingConfig,
)
from legos.config.setting import Settings, admits_none, limits
from legos.errors import ConfigError


def _whole_number(_: Any, tokens: Sequence[Token]) -> int:
    """Parse an integer; a fraction is an error and is not rounded."""
    text = tokens[0].value
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a whole number.") from None


Integer = Annotated[int, Parameter(converter=_whole_number)]
"""A number that is not rounded."""

Count = Annotated[Integer, Parameter(validator=validators.Number(gte=1))]
"""A number of plays, or of other things, of which there must be one."""

Whole = Annotated[Integer, Parameter(validator=validators.Number(gte=0))]
"""A number of things, of which there may be none."""


def _check_finite(_: Any, value: float | None) -> None:
    if value is not None and not isfinite(value):
        raise ValueError("Expected a finite number.")


Amount = Annotated[float, Parameter(validator=_check_finite)]
"""A size or a time."""

Limit = Annotated[float, Parameter(validator=(_check_finite, validators.Number(gt=0)))]
"""A size or a time above 0."""

Several = Annotated[tuple[str, ...], Parameter(negative="", show_default=False)]
Files = Annotated[tuple[Path, ...], Parameter(negative="", show_default=False)]
"""Options that may be repeated."""


def _key(_: Any, tokens: Sequence[Token]) -> str:
    """The API key: the text of the named file, or of the variable of the environment.

    Raises:
        ValueError: the file cannot be read, or holds no key.
    """
    [token] = tokens
    if token.source == "env":
        return token.value
    try:
        key = Path(token.value).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeError) as error:
        raise ValueError(f"{error}; give a file of text that holds the key alone") from None
    if not key or len(key.split()) > 1:
        raise ValueError(f"{token.value} holds {len(key.split())} words; expected the key alone")
    return key


Key = Annotated[
    str | None,
    Parameter(name="--api-key-file", env_var="LEGOS_API_KEY", show_env_var=True, converter=_key),
]
"""The API key of a server; not an option itself, because all users see a command line."""


def _options(prefix: str, group: type[Settings], title: str, place: int, *names: str) -> Any:
    """The group's settings, or the named ones, as options that stand together in the help."""
    kind = _typed(f"{prefix}.", group, names)
    panel = Parameter(name=f"--{prefix}", group=Group(title, sort_key=place))
    return Annotated[kind | None, panel]


def _typed(prefix: str, group: type[Settings], names: Iterable[str]) -> Any:
    """A typed dictionary of the group's settings, or of the named ones; all are optional."""
    fields = {
        name: _option(f"{prefix}{name.replace('_', '-')}", group.model_fields[name])
        for name in names or group.model_fields
    }
    return TypedDict(f"{group.__name__}Options", fields, total=False)  # pyrefly: ignore[not-callable]


def _option(name: str, field: FieldInfo) -> Any:
    if field.annotation == dict[str, float]:
        return Annotated[tuple[str, ...], Parameter(help=_help(field), negative="")]
    kinds = (field.annotation, *get_args(field.annotation))
    whole = _whole_number_or_none if admits_none(field) else _whole_number
    converter = whole if int in kinds else None
    negative = (f"--no-{name}", f"--{name.replace('.', '.no-')}") if bool in kinds else ""
    parameter = Parameter(help=_help(field), converter=converter, negative=negative)
    return Annotated[field.annotation, parameter]  # pyrefly: ignore[not-a-type]


def _whole_number_or_none(kind: Any, tokens: Sequence[Token]) -> int | None:
    return None if tokens[0].value == "none" else _whole_number(kind, tokens)


def _help(field: FieldInfo) -> str:
    extra = cast("Mapping[str, str]", field.json_schema_extra or {})
    facts = [extra.get("unit", ""), limits(field)]
    if field.default not in ({}, (), None):  # which the text explains
        facts.append(f"default {field.default}")
    listed = "; ".join(fact for fact in facts if fact)
    text = " ".join((field.description or "").split())
    return f"{text} ({listed})" if listed else text


_EVALUATED = ("options", "illegal", "rules", "restrict_choices", "concurrency")

# Type checkers cannot follow classes that are made at run time.
if TYPE_CHECKING:
    Run = Training = Generation = Play = Loop = League = Track = dict[str, Any] | None
    EvaluationPlay = dict[str, Any] | None
else:
    Run = Annotated[
        _typed("", RunConfig, [n for n in knobs() if "." not in n]) | None, Parameter(name="*")
    ]
    Loop = _options("loop", LoopConfig, "Run", 0)
    Play = _options("play", PlayConfig, "Playing", 1)
    League = _options("league", LeagueConfig, "Opponents", 2)
    Generation = _options("generation", GenerationConfig, "Sampling", 2)
    Training = _options("training", TrainingConfig, "Optimiser step", 3)
    Track = _options("track", TrackConfig, "Metrics", 4)
    EvaluationPlay = _options("play", PlayConfig, "Playing", 0, *_EVALUATED)


def dotted(
    groups: Mapping[str, Mapping[str, Any] | None], shorthands: Mapping[str, tuple[str, Any]]
) -> dict[str, Any]:
    """The options of the command line as dotted settings.

    Args:
        groups: group name, or nothing -> options of the group that are on the command line.
        shorthands: option -> (dotted setting, value); value None: not on the command line.

    Raises:
        ConfigError: both a setting and its shorthand are on the command line.
    """
    settings: dict[str, Any] = {}
    for group, options in groups.items():
        for name, value in (options or {}).items():
            if (group, name) == ("play", "options"):
                settings |= {f"play.options.{key}": literal(text) for key, text in value.items()}
            elif (group, name) in (("play", "opponents"), ("play", "opponents_end")):
                settings[f"play.{name}"] = _numbers(f"--play.{name.replace('_', '-')}", value)
            else:
                settings[f"{group}.{name}" if group else name] = value
    for option, (name, value) in shorthands.items():
        if value is None:
            continue
        if name in settings:
            raise ConfigError(f"{option} and --{name} are the same setting; give one of them")
        settings[name] = value
    return settings


def shares(mix: Sequence[str]) -> dict[str, Any]:
    """``NAME=SHARE`` of the command line as dotted settings.

    Raises:
        ConfigError: a text has another form, or an arena is named twice.
    """
    return {f"mix.{name}.share": share for name, share in _numbers("--mix", mix).items()}


def _numbers(option: str, texts: Sequence[str]) -> dict[str, float]:
    """``NAME=SHARE`` of an option that may be repeated: name -> share.

    Raises:
        ConfigError: a text has another form, or a name is given twice.
    """
    found: dict[str, float] = {}
    for text in texts:
        name, _, share = text.rpartition("=")
        try:
            value = float(share if name else "")
        except ValueError:
            example = "nim=0.5" if option == "--mix" else "self=0.5"
            raise ConfigError(
                f"{option} is {text!r}; expected a name and its share, such as {option} {example}"
            ) from None
        if name in found:
            raise ConfigError(
                f"{option} names {name!r} twice; name it once, with the sum of its shares"
            )
        found[name] = value
    return found


def literal(text: str) -> Any:
    """Parse a TOML value (``3``, ``true``, ``[1, 2]``); anything else is text."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
