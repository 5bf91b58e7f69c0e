"""A setting and a group of settings: how they are declared, and how bad values are refused."""

import re
import types
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from legos.errors import ConfigError, did_you_mean

_IN_TOML = {  # error of pydantic -> what a person writes in TOML, or on the command line
    **dict.fromkeys(("tuple_type", "list_type"), 'expected a list, such as ["a", "b"]'),
    "path_type": "expected a path",
}
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


class Settings(BaseModel):
    """A frozen group of settings; unknown names and bad values raise ``SettingsError``.

    ``replace`` returns a changed copy and checks it.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )

    @field_validator("*")
    @classmethod
    def _at_home(cls, value: Any) -> Any:
        """The folder that ``~`` means: a shell expands it only at the start of a word."""
        return value.expanduser() if isinstance(value, Path) else value

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
        key = ".".join(map(str, detail["loc"]))
        cause = detail.get("ctx", {}).get("error")
        if isinstance(cause, SettingsError):
            yield from (problem.inside(key) for problem in cause.problems)
        elif isinstance(cause, ConfigError):
            yield BadSetting(key=key, text=str(cause), joint=True)
        elif detail["type"] == "extra_forbidden":
            unknown = "does not exist" + did_you_mean(key, group.model_fields)
            yield BadSetting(key=key, text=unknown)
        elif detail["type"] == "missing":
            yield BadSetting(key=key, text="is missing; give it a value")
        else:
            optional = admits_none(group.model_fields[str(detail["loc"][0])])
            yield BadSetting(key=key, text=f"is {detail['input']!r}; {expected(detail, optional)}")


def expected(detail: ErrorDetails, optional: bool) -> str:
    """What pydantic expected of a value, for messages, and the allowed word that is similar to it.

    Args:
        detail: the error.
        optional: whether "none" is allowed too.
    """
    text = _IN_TOML.get(detail["type"]) or detail["msg"].replace("Input should be", "expected", 1)
    words = re.findall(r"'([^']*)'", text) if detail["type"] == "literal_error" else []
    hint = did_you_mean(detail["input"], words) if isinstance(detail["input"], str) else ""
    none = ', or "none"' if optional else ""
    return text + none + (hint if "did you mean" in hint else "")
