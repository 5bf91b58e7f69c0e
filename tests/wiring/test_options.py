"""Options of arenas: names and types are those of the constructor."""

import logging
from pathlib import Path
from typing import Any

import pytest

from legos.config.resolve import resolve
from legos.config.schema import PlayConfig
from legos.errors import ArenaError
from legos.wiring.arena import make_arena
from legos.wiring.options import check_options, checked_options

TYPED = """
from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from legos import Arena

if TYPE_CHECKING:
    from nowhere import Hidden

class Thing:
    pass

class First(Arena):
    def __init__(
        self, client: Hidden = None, *, sizes: tuple[int, ...] = (), at: Path = Path("."),
        level: Literal["low", "high"] = "low", share: Annotated[float, Field(ge=0, le=1)] = 0.5,
        limit: int | None = None, table: dict[str, int] = {}, hidden: Hidden = 1,
        thing: Thing | None = None, free=None, **kwargs,
    ):
        super().__init__(client, **kwargs)
        self.got = {
            "sizes": sizes, "at": at, "level": level, "share": share, "limit": limit,
            "table": table, "hidden": hidden, "thing": thing, "free": free,
        }

class Second(First):
    def __init__(self, client=None, *, more: bool = False, **kwargs):
        super().__init__(client, **kwargs)
"""


@pytest.fixture
def place(tmp_path: Path) -> str:
    file = tmp_path / "typed.py"
    file.write_text(TYPED)
    return str(file)


@pytest.mark.parametrize(
    ("arena", "option", "value", "message"),
    [
        ("zorplex", "turns", 2.5, "option 'turns' is 2.5; expected a valid integer"),
        ("zorplex", "turns", True, "option 'turns' is True; expected a valid integer"),
        ("countdown", "operator", "yes", "option 'operator' is 'yes'; expected a valid boolean"),
        ("countdown", "operator", 1, "option 'operator' is 1; expected a valid boolean"),
        (
            "zorplex",
            "kinds",
            "simple",
            "option 'kinds' is 'simple'; expected a list, such as [\"a\", \"b\"]",
        ),
        ("zorplex", "kinds", [1], r"option 'kinds' is [1]; expected a valid string"),
        ("goofspiel", "cards", 3.5, "option 'cards' is 3.5; expected a valid integer"),
        ("nim", "largest", "many", "option 'largest' is 'many'; expected a valid integer"),
        ("math", "held_out", "half", "option 'held_out' is 'half'; expected a valid number"),
        (
            "math",
            "limit",
            "all",
            "option 'limit' is 'all'; expected a valid integer, or \"none\"",
        ),
        (
            "spice",
            "texts",
            2024,
            "option 'texts' is 2024; expected a valid string",
        ),
    ],
)
def test_another_type_is_refused_before_anything_is_made(
    arena: str, option: str, value: object, message: str
) -> None:
    with pytest.raises(ArenaError) as refused:
        make_arena(arena, None, play=PlayConfig(options={option: value}))
    assert str(refused.value) == f"arena {arena!r}: {message}"


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("level", "mid", "expected 'low' or 'high'"),
        ("share", 2, "expected less than or equal to 1"),
        ("share", True, "expected a valid number"),
        ("sizes", 3, "expected a list, such as"),
        ("sizes", [1.5], "expected a valid integer"),
        ("table", {"a": "b"}, "expected a valid integer"),
        ("at", 3, "expected a valid string"),
    ],
)
def test_every_kind_of_type_is_named(place: str, option: str, value: object, message: str) -> None:
    for arena in ("First", "Second"):  # Second passes options on
        with pytest.raises(ArenaError, match=f"option '{option}' is .*; {message}"):
            checked_options(f"{place}:{arena}", {option: value})


def test_options_arrive_in_the_types_of_the_constructor(place: str) -> None:
    given = {
        "sizes": [1, 2],
        "at": "some/place",
        "level": "high",
        "share": 1,
        "limit": "none",
        "table": {"a": 1},
        "free": "anything",
        "more": True,
    }
    made: Any = make_arena(f"{place}:Second", None, play=PlayConfig(options=given))
    assert made.got == {
        "sizes": (1, 2),
        "at": Path("some/place"),
        "level": "high",
        "share": 1.0,
        "limit": None,
        "table": {"a": 1},
        "hidden": 1,
        "thing": None,
        "free": "anything",
    }


def test_objects_of_a_program_arrive_as_they_are(place: str) -> None:
    sizes, free = (1, 2), object()
    assert checked_options(f"{place}:First", {"sizes": sizes, "free": free}) == {
        "sizes": sizes,
        "free": free,
    }


def test_an_annotation_that_cannot_be_read_is_named_and_its_option_passed(
    place: str, caplog: pytest.LogCaptureFixture
) -> None:
    options = {"hidden": "x", "thing": "y", "sizes": [1]}
    with caplog.at_level(logging.WARNING):
        found = checked_options(f"{place}:First", options)
    assert found == {"hidden": "x", "thing": "y", "sizes": (1,)}
    hidden, thing = [record.getMessage() for record in caplog.records]
    assert "option 'hidden' of arena" in hidden
    assert "its annotation Hidden is no type of a setting (NameError: name 'Hidden'" in hidden
    assert "its annotation Thing | None is no type of a setting" in thing


def test_what_every_arena_has_is_no_option() -> None:
    for option in ("client", "curriculum", "seed"):
        with pytest.raises(ArenaError, match=f"arena 'zorplex' takes no option '{option}'"):
            checked_options("zorplex", {option: 1})


def test_options_of_a_file_and_of_a_mix_are_checked(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('arena = "zorplex"\n[play.options]\nturns = 2.5\n')
    with pytest.raises(ArenaError, match=r"option 'turns' is 2\.5; expected a valid integer"):
        check_options(resolve(files=[file]).config)
    file.write_text('[mix.zorplex]\nshare = 1.0\noptions = {kinds = "simple"}\n')
    with pytest.raises(ArenaError, match=r"option 'kinds' is 'simple'; expected a list"):
        check_options(resolve(files=[file]).config)
