"""Thinking and answer are told apart, and a move is read only where one is named."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from legos.chat.reply import parse_move, split_thinking

tagless = st.text().filter(lambda text: "<" not in text)


@pytest.mark.parametrize(
    ("text", "thinking", "answer"),
    [
        ("  [4]\n", "", "[4]"),
        ("<think>take four</think>[4]", "take four", "[4]"),
        ("take four\n</think>\n\n[4]", "take four", "[4]"),
        ("<think>take four", "take four", ""),
        ("Well. <think>take four", "Well. take four", ""),
        ("<think>\n\n</think>\n\n[4]", "", "[4]"),
        ("<think>a</think>one <think>b</think>two", "a\nb", "one two"),
        ("<think>a</think>one <think>b", "aone b", ""),
        ("a <think>b</think>c", "b", "a c"),
        ("", "", ""),
    ],
)
def test_thinking_is_set_apart(text: str, thinking: str, answer: str) -> None:
    assert split_thinking(text) == (thinking, answer)


@given(tagless, tagless)
def test_both_halves_come_back(thinking: str, answer: str) -> None:
    expected = (thinking.strip(), answer.strip())
    assert split_thinking(f"<think>{thinking}</think>{answer}") == expected
    assert split_thinking(f"{thinking}</think>{answer}") == expected


@given(st.text())
def test_no_tag_is_left_and_no_answer_is_invented(text: str) -> None:
    thinking, answer = split_thinking(text)
    assert "<think>" not in answer
    assert "</think>" not in answer
    assert len(thinking) + len(answer) <= len(text)


@given(tagless)
def test_thinking_that_never_ends_leaves_no_answer(text: str) -> None:
    assert split_thinking(f"<think>{text}") == (text.strip(), "")


@pytest.mark.parametrize(
    ("answer", "move"),
    [
        ("4", "4"),
        (" 4\n", "4"),
        ("I take [4].", "4"),
        ("[4] it is: [4]", "4"),
        ("[4] or [10]", None),
        ("[11]", None),
        ("I take 4", None),
        ("[ 4 ]", None),
        ("", None),
        ("[10]", "10"),
        ("[0]", None),
    ],
)
def test_a_move_is_read_where_one_is_named(answer: str, move: str | None) -> None:
    assert parse_move(answer, ["1", "4", "10"]) == move


def test_a_move_may_have_brackets_of_its_own() -> None:
    assert parse_move("[a]", ["a", "[a]"]) == "[a]"
    assert parse_move("I say [b]", ["a", "[a]"]) is None


moves = st.lists(st.text(min_size=1).filter(lambda t: t == t.strip()), min_size=1, unique=True)


@given(st.text(), moves)
def test_only_legal_moves_are_returned(answer: str, legal: list[str]) -> None:
    assert parse_move(answer, legal) in {None, *legal}


@given(moves, st.data())
def test_every_legal_move_can_be_said(legal: list[str], data: st.DataObject) -> None:
    move = data.draw(st.sampled_from(legal))
    assert parse_move(f" {move}\n", legal) == move
    assume(not any("[" in other or "]" in other for other in legal))
    assert parse_move(f"I play [{move}].", legal) == move
