"""Check the options of an arena against its constructor: their names, and their annotated types."""

import inspect
import json
import logging
import types
from collections.abc import Iterator, Mapping
from typing import Any, get_type_hints

from pydantic import TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError
from pydantic.fields import FieldInfo

from legos.arena.arena import Arena
from legos.arena.registry import find_arena
from legos.config.schema import RunConfig
from legos.config.setting import admits_none, expected
from legos.errors import ArenaError, did_you_mean

logger = logging.getLogger(__name__)
OF_EVERY_ARENA = ("client", "credit_assigner", "matchmaker", "curriculum", "temperature", "seed")
"""Arguments of constructors that come from other settings than options."""

_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def check_options(config: RunConfig) -> None:
    """Check the options of every arena of a run.

    Raises:
        ArenaError: as for ``checked_options``.
    """
    for name, one in config.arenas.items():
        checked_options(name, one.play.options)


def checked_options(name: str, options: Mapping[str, object]) -> dict[str, Any]:
    """Check options by the constructor of the arena, and give them the types that it annotates.

    A list becomes a tuple where one is annotated, a text a path, and ``none`` None. Options without
    an annotation stay as they are.

    Args:
        name: name of the arena.
        options: its options, as TOML has them or as objects.

    Raises:
        ArenaError: an option is unknown, missing or of another type, or the arena is not found.
    """
    kind = find_arena(name)
    _check_names(name, kind, options)
    annotated = dict(_annotations(kind))
    return {
        option: _typed(name, option, value, annotated[option]) if option in annotated else value
        for option, value in options.items()
    }


def _check_names(name: str, kind: type, options: Mapping[str, object]) -> None:
    parameters = inspect.signature(kind).parameters
    known = [
        key
        for key, p in parameters.items()
        if key not in OF_EVERY_ARENA and p.kind not in _VARIADIC
    ]
    for key in known:
        if parameters[key].default is inspect.Parameter.empty and key not in options:
            raise ArenaError(
                f"arena {name!r} needs an option {key!r}; give --play.options.{key} VALUE"
            )
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    for option in options:
        if option in OF_EVERY_ARENA or not (takes_any or option in known):
            hint = did_you_mean(option, known) if known else "; it takes none"
            raise ArenaError(f"arena {name!r} takes no option {option!r}{hint}")


def _annotations(kind: type) -> Iterator[tuple[str, tuple[Any, Any]]]:
    """Annotated options of the constructor and of those to which it passes further options on.

    Yields:
        The option; its annotation, and the constructor that has it.
    """
    seen: set[str] = set()
    for each in kind.__mro__:
        init = vars(each).get("__init__")
        if each in (Arena, object):
            return
        if init is None:
            continue
        parameters = inspect.signature(init).parameters.values()
        for p in parameters:
            if p.name not in seen and p.kind not in _VARIADIC and p.annotation is not p.empty:
                yield p.name, (p.annotation, init)
        seen |= {p.name for p in parameters}
        if not any(p.kind is p.VAR_KEYWORD for p in parameters):
            return


def _typed(name: str, option: str, value: object, annotated: tuple[Any, Any]) -> Any:
    """An option as its annotation says.

    Raises:
        ArenaError: it has another type.
    """
    annotation, init = annotated
    try:
        kind = _read(annotation, init)
        adapter: TypeAdapter[Any] = TypeAdapter(kind)
    except (PydanticUserError, NameError, AttributeError, TypeError, SyntaxError) as error:
        logger.warning(
            "the type of option %r of arena %r is not checked: its annotation %s is no type of a "
            "setting (%s)",
            option,
            name,
            annotation if isinstance(annotation, str) else inspect.formatannotation(annotation),
            f"{type(error).__name__}: {error}".partition("\n")[0],
        )
        return value
    optional = admits_none(FieldInfo.from_annotation(kind))
    if value == "none" and optional:
        return None
    try:
        return _accepted(adapter, value)
    except ValidationError as error:
        reason = " or ".join(expected(each, optional) for each in error.errors(include_url=False))
        raise ArenaError(f"arena {name!r}: option {option!r} is {value!r}; {reason}") from None


def _accepted(adapter: TypeAdapter[Any], value: object) -> Any:
    """The value as the type has it.

    TOML has no tuples, sets or paths, which pydantic's strict JSON takes from lists and texts.

    Raises:
        ValidationError: it is of another type.
    """
    try:
        text = json.dumps(value)
    except (TypeError, ValueError):  # an object of a program
        return adapter.validate_python(value, strict=True)
    return adapter.validate_json(text, strict=True)


def _read(annotation: Any, init: Any) -> Any:
    """The type that an annotation names, which may be written as text."""
    holder = types.SimpleNamespace(__annotations__={"option": annotation})
    return get_type_hints(holder, globalns=init.__globals__, include_extras=True)["option"]
