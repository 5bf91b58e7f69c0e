"""A setting and a group of settings: how they are declared, and how bad values are refused."""

import inspect
import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.fields import FieldInfo

from legos.config.removed import why_removed
from legos.errors import ConfigError, did_you_mean

__all__ = ["BadSetting", "Settings", "SettingsError", "admits_none", "expected", "knob", "limits"]

_KINDS: Mapping[Any, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    Path: "a path",
}
_LISTS = (list, tuple, set, frozenset, Sequence)
_TABLES = (dict, Mapping)
_SIGNS = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<"}


@dataclass(frozen=True, slots=True, kw_only=True)
class BadSetting:
    """One error in a configuration."""

    key: str  # dotted name of the setting, or of the group whose settings contradict each other
    text: str  # the message that follows the key
    joint: bool = False  # True: several settings contradict each other, and the text names them

    def inside(self, group: str) -> "BadSetting":
        """The same problem with a key that begins with the name of the enclosing group."""
        return replace(self, key=f"{group}.{self.key}" if self.key else group)

    def __str__(self) -> str:
        """The message of this problem, in one line."""
        if self.joint:
            return f"{self.key}: {self.text}" if self.key else self.text
        return f"{self.key} {self.text}"


class SettingsError(ConfigError):
    """A group of settings was refused; ``problems`` holds every reason."""

    def __init__(self, problems: tuple[BadSetting, ...]) -> None:
        """Keep the problems; the message has one line for each."""
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems = problems


def knob(default: Any, *, unit: str = "", loose: bool = False, **bounds: float) -> Any:
    """Declare one setting; the string literal below it is its help text.

    Args:
        default: value if nobody sets it.
        unit: unit of the value, if it has one.
        loose: accept text and convert it (paths).
        bounds: ``ge`` and ``le``, the smallest and largest value, or ``gt`` and ``lt``, which the
            value must not reach.
    """
    options: dict[str, Any] = {"strict": False if loose else None, **bounds}
    if unit:
        options["json_schema_extra"] = {"unit": unit}
    return Field(default, **options)


def admits_none(field: FieldInfo) -> bool:
    """Whether the setting accepts none."""
    return types.NoneType in get_args(field.annotation)


def limits(field: FieldInfo) -> str:
    """The range of a setting: ``>= 0 and < 1``; empty where it has none."""
    return " and ".join(
        f"{sign} {getattr(limit, name):g}"
        for limit in field.metadata
        for name, sign in _SIGNS.items()
        if hasattr(limit, name)
    )


def expected(field: FieldInfo) -> str:
    """The values that a setting accepts, for messages: ``a number >= 0 and < 1, or "none"``."""
    kinds = [kind for kind in _alternatives(field.annotation) if kind is not types.NoneType]
    text = f"{' or '.join(_describe(kind) for kind in kinds)} {limits(field)}".rstrip()
    return f'{text}, or "none"' if admits_none(field) else text


def _alternatives(annotation: Any) -> tuple[Any, ...]:
    if get_origin(annotation) in (Union, types.UnionType):
        return get_args(annotation)
    return (annotation,)


def _describe(kind: Any) -> str:
    origin, arguments = get_origin(kind) or kind, get_args(kind)
    text = _KINDS.get(kind) or inspect.formatannotation(kind)
    if origin is Literal:
        return " or ".join(repr(choice) for choice in arguments)
    if origin in _LISTS:
        return f"a list, each item {_describe(arguments[0])}" if arguments else "a list"
    if origin in _TABLES or (isinstance(kind, type) and issubclass(kind, BaseModel)):
        return "a table"
    return text


class Settings(BaseModel):
    """A frozen group of settings; unknown names and bad values raise ``SettingsError``.

    ``replace`` returns a changed copy and checks it.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )

    # Hidden from type checkers, which derive the signature of each group from its fields.
    if not TYPE_CHECKING:

        def __init__(self, **values: Any) -> None:
            """Check every value, and the values together.

            Raises:
                SettingsError: with each setting, its value and what was expected.
            """
            try:
                super().__init__(**values)
            except ValidationError as error:
                raise SettingsError(tuple(_problems(type(self), error))) from None

    def replace(self, **changes: Any) -> Self:
        """A checked copy with some settings changed.

        Raises:
            SettingsError: the copy is not valid.
        """
        values = {name: getattr(self, name) for name in self.model_fields_set}
        return type(self)(**(values | changes))


def _problems(group: type[Settings], error: ValidationError) -> Iterator[BadSetting]:
    for detail in error.errors(include_url=False):
        where = [str(part) for part in detail["loc"]]
        key = ".".join(where)
        cause = detail.get("ctx", {}).get("error")
        if isinstance(cause, SettingsError):
            yield from (problem.inside(key) for problem in cause.problems)
        elif isinstance(cause, ConfigError):
            yield BadSetting(key=key, text=str(cause), joint=True)
        elif detail["type"] == "extra_forbidden":
            unknown = why_removed(key) or "does not exist" + did_you_mean(key, group.model_fields)
            yield BadSetting(key=key, text=unknown)
        elif detail["type"] == "missing":
            what = expected(group.model_fields[where[0]])
            yield BadSetting(key=key, text=f"is missing; give it: {what}")
        else:
            field, came = group.model_fields[where[0]], detail["input"]
            text = f"is {came!r}; expected {expected(field)}{_nearest(field, came)}"
            yield BadSetting(key=key, text=text)


def _nearest(field: FieldInfo, came: object) -> str:
    """``"; did you mean 'x'?"`` where the value is similar to one of the allowed words."""
    kinds = _alternatives(field.annotation)
    words = [str(word) for kind in kinds if get_origin(kind) is Literal for word in get_args(kind)]
    hint = did_you_mean(came, words) if isinstance(came, str) and words else ""
    return hint if "did you mean" in hint else ""
