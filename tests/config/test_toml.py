"""Writing TOML: whatever is written reads back the same."""

import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from legos.config.toml import read_sources, uncommented, write_toml
from legos.errors import ConfigError

dates = st.dates() | st.times() | st.datetimes()
texts = st.text(st.characters(exclude_categories=["Cs"]))
scalars = (
    st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | texts | dates
)
values = st.recursive(
    scalars, lambda inner: st.lists(inner) | st.dictionaries(texts, inner), max_leaves=8
)


@given(values)
def test_a_value_reads_back(value: Any) -> None:
    written = write_toml({"play.options.x": value}, {"play.options.x": "here"})
    assert tomllib.loads(written)["play"]["options"]["x"] == value


@given(texts.filter(bool))
def test_a_key_reads_back(key: str) -> None:
    assert tomllib.loads(write_toml({f"play.options.{key}": 1}, {})) == {
        "play": {"options": {key: 1}}
    }


def test_none_is_text_and_sources_are_comments() -> None:
    written = write_toml({"a": None, "t.b": 1, "t.c": 2.0}, {"a": "x", "t.b": "y\r\nz"})
    assert written == 'a = "none"  # x\n\n[t]\nb = 1  # y  z\nc = 2.0\n'


def test_a_text_with_other_line_separators_keeps_its_source() -> None:
    written = write_toml({"play.system": "one\u2028two"}, {"play.system": "here"})
    assert read_sources(written) == {"play.system": "here"}


def test_what_was_not_chosen_is_a_comment_that_can_be_read_again() -> None:
    values = {"a": 1, "t.b": 2, "t.c": "#: 3", "t.d": "one\u2028line\x0c\x85"}
    written = write_toml(values, dict.fromkeys(values, "here"), not_chosen={"a", "t.b"})
    rest = {"c": "#: 3", "d": values["t.d"]}
    assert tomllib.loads(written) == {"t": rest}
    assert tomllib.loads(uncommented(written)) == {"a": 1, "t": {**rest, "b": 2}}
    assert read_sources(written) == dict.fromkeys(values, "here")


def test_what_toml_cannot_hold_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"play\.options\.x is .*object"):
        write_toml({"play.options.x": object()}, {})
