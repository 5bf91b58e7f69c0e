"""One setting and one group of settings: how a knob is declared, and how a bad value is refused."""

import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.fields import FieldInfo

from legos.errors import ConfigError, did_you_mean

__all__ = ["Problem", "Settings", "SettingsError", "admits_none", "expected", "knob", "limits"]

_KINDS: Mapping[Any, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    Path: "a path",
}
_SIGNS = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One thing wrong with a configuration."""

    key: str  # dotted name of the setting, or of the group whose settings contradict each other
    text: str  # what is wrong, to be read after the key
    joint: bool = False  # True: several settings contradict each other, and the text names them

    def inside(self, group: str) -> "Problem":
        """The same problem seen from the group that holds this one."""
        key = f"{group}.{self.key}" if self.key else group
        return Problem(key=key, text=self.text, joint=self.joint)

    def __str__(self) -> str:
        """One line for a person."""
        if self.joint:
            return f"{self.key}: {self.text}" if self.key else self.text
        return f"{self.key} {self.text}"


class SettingsError(ConfigError):
    """A group of settings that was refused; ``problems`` holds each reason by itself."""

    def __init__(self, problems: tuple[Problem, ...]) -> None:
        """Keep the problems; the message is one line for each."""
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems = problems


def knob(
    default: Any,
    description: str,
    *,
    unit: str = "",
    loose: bool = False,
    ge: float | None = None,
    gt: float | None = None,
    le: float | None = None,
    lt: float | None = None,
) -> Any:
    """Declare one setting.

    Args:
        default: its value where nobody sets it.
        description: one sentence or two.
        unit: of the value, where it has one.
        loose: True lets text stand for the value (paths).
        ge: smallest value.
        gt: bound that the value must exceed.
        le: largest value.
        lt: bound that the value must stay below.
    """
    return Field(
        default,
        description=description,
        json_schema_extra={"unit": unit} if unit else None,
        strict=False if loose else None,
        ge=ge,
        gt=gt,
        le=le,
        lt=lt,
    )


def admits_none(field: FieldInfo) -> bool:
    """Whether the setting can be none."""
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
    """What a setting takes, for messages: ``a number >= 0 and < 1, or "none"``."""
    kinds = [kind for kind in _alternatives(field.annotation) if kind is not types.NoneType]
    text = f"{' or '.join(_describe(kind) for kind in kinds)} {limits(field)}".rstrip()
    return f'{text}, or "none"' if admits_none(field) else text


def _alternatives(annotation: Any) -> tuple[Any, ...]:
    if get_origin(annotation) in (Union, types.UnionType):
        return get_args(annotation)
    return (annotation,)


def _describe(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return " or ".join(repr(choice) for choice in get_args(kind))
    return _KINDS.get(kind, "a table")


class Settings(BaseModel):
    """A frozen group of settings; unknown names and wrong values raise ``ConfigError``.

    Change one with ``replace``, which checks again.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    # Hidden from type checkers, which read each group's own signature from its fields.
    if not TYPE_CHECKING:

        def __init__(self, **values: Any) -> None:
            """Check every value and the whole.

            Raises:
                SettingsError: naming each setting, what came and what was expected.
            """
            try:
                super().__init__(**values)
            except ValidationError as error:
                raise SettingsError(tuple(_problems(type(self), error))) from None

    def replace(self, **changes: Any) -> Self:
        """A copy with some settings changed, checked like a new one.

        Raises:
            SettingsError: the copy would not be valid.
        """
        values = {name: getattr(self, name) for name in type(self).model_fields}
        return type(self)(**(values | changes))


def _problems(group: type[Settings], error: ValidationError) -> Iterator[Problem]:
    for detail in error.errors(include_url=False):
        where = [str(part) for part in detail["loc"]]
        key = ".".join(where)
        cause = detail.get("ctx", {}).get("error")
        if isinstance(cause, SettingsError):
            yield from (problem.inside(key) for problem in cause.problems)
        elif isinstance(cause, ConfigError):
            yield Problem(key=key, text=str(cause), joint=True)
        elif detail["type"] == "extra_forbidden":
            yield Problem(key=key, text="does not exist" + did_you_mean(key, group.model_fields))
        else:
            field, came = group.model_fields[where[0]], detail["input"]
            text = f"is {came!r}; expected {expected(field)}{_nearest(field, came)}"
            yield Problem(key=key, text=text)


def _nearest(field: FieldInfo, came: object) -> str:
    """``"; did you mean 'x'?"`` where a word that stands for nothing is near one that does."""
    kinds = _alternatives(field.annotation)
    words = [str(word) for kind in kinds if get_origin(kind) is Literal for word in get_args(kind)]
    hint = did_you_mean(came, words) if isinstance(came, str) and words else ""
    return hint if "did you mean" in hint else ""
