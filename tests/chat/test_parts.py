"""Thinking, text and tool calls are split alike in pieces and as a whole, and no text is lost."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from legos.chat.parts import ReplyParser, join_parts
from legos.chat.tools import ToolFormat
from legos.records.message import ToolCall

SPOKEN = st.lists(
    st.sampled_from(["<think>", "</think>", "<call>", "</call>", " ", "\n", "a", "b c", "<", "</t"])
)


def parse(text: str, _: Sequence[Mapping[str, Any]]) -> Any:
    """A call of one word; everything else is no call."""
    (name,) = text.split(" ")
    return {"name": name, "arguments": {}}


FORM = ToolFormat(start="<call>", end="</call>", parse=parse)


def read(*pieces: str, thinking: bool = False, cut: bool = False) -> tuple[str, str, list[str]]:
    """The text, the thinking, and the names of the calls."""
    parser = ReplyParser(thinking=thinking, form=FORM)
    parts = [part for piece in pieces for part in parser.push(piece)]
    text, thought, calls = join_parts([*parts, *parser.finish(cut=cut)])
    assert all(call == ToolCall(call.name, "{}") for call in calls)
    return text, thought, [call.name for call in calls]


@given(SPOKEN, st.integers(1, 9), st.booleans(), st.booleans())
def test_a_reply_is_read_the_same_in_pieces(
    spoken: list[str], size: int, thinking: bool, cut: bool
) -> None:
    text = "".join(spoken)
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    assert read(*pieces, thinking=thinking, cut=cut) == read(text, thinking=thinking, cut=cut)


@given(SPOKEN, st.booleans())
def test_without_thinking_and_calls_the_text_is_the_reply(spoken: list[str], cut: bool) -> None:
    text = "".join(spoken).replace("<think>", "")
    content, _, calls = read(text, cut=cut)
    assert calls or content == text


@pytest.mark.parametrize(
    ("text", "thinking", "expected"),
    [
        (" as it is \n", False, (" as it is \n", "", [])),
        ("<think>hm </think>\n\nyes ", False, ("yes ", "hm", [])),
        ("hm</think> yes", True, ("yes", "hm", [])),
        ("never closed ", True, ("", "never closed", [])),
        ("a <call>x</call> b", False, ("ab", "", ["x"])),
        ("a <call>x", False, ("a", "", ["x"])),
        ("a <call>x y</call> b", False, ("a <call>x y</call> b", "", [])),
        ("a <call>x y", False, ("a <call>x y", "", [])),
        ("a <call>x</call> <call>y z</call> ", False, ("a<call>y z</call> ", "", ["x"])),
        ("hm</think> <call>y z</call> b", True, ("<call>y z</call> b", "hm", [])),
    ],
)
def test_parts_of_a_reply(
    text: str, *, thinking: bool, expected: tuple[str, str, list[str]]
) -> None:
    assert read(text, thinking=thinking) == expected


@pytest.mark.parametrize(("text", "calls"), [("a <call>x", []), ("a <call>x</call>", ["x"])])
def test_a_call_that_was_cut_is_text(text: str, calls: list[str]) -> None:
    assert read(text, cut=True) == ("a" if calls else text, "", calls)


def test_a_form_without_an_end_ends_with_the_reply() -> None:
    def texts(*, cut: bool) -> tuple[str, int]:
        parser = ReplyParser(form=ToolFormat(start="<call>", end="", parse=parse))
        text, _, calls = join_parts([*parser.push("a <call>x"), *parser.finish(cut=cut)])
        return text, len(calls)

    assert texts(cut=False) == ("a", 1)
    assert texts(cut=True) == ("a <call>x", 0)
