"""Parse a seat's answer into a move or a value, or the reason why it is not legal."""

from collections.abc import Callable, Sequence
from typing import Any

from msgspec import Struct

from legos.chat.reply import parse_move, split_thinking
from legos.errors import text_of
from legos.records.message import Completion, ToolCall

UNREADABLE = (
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    ArithmeticError,
    RecursionError,
)
"""What `parse` raises over an answer that makes no sense; `json.loads`, `re` and indexing do."""


class Reply(Struct, frozen=True, kw_only=True):
    """The reply of a seat: a view of its completion."""

    completion: Completion
    move: str | None  # the legal move if choices were given, or what `parse` returned, as text
    parsed: Any  # what `parse` returned
    tool_calls: tuple[ToolCall, ...] = ()  # calls of tools before this answer

    @property
    def text(self) -> str:
        """The whole text."""
        return self.completion.text

    @property
    def thinking(self) -> str:
        """The text inside the thinking tags."""
        return split_thinking(self.completion.text)[0]

    @property
    def answer(self) -> str:
        """The text without the thinking."""
        return split_thinking(self.completion.text)[1]

    @property
    def truncated(self) -> bool:
        """Whether the token limit cut the reply off."""
        return self.completion.finish_reason == "length"


def read_answer(
    answer: str, choices: Sequence[str], parse: Callable[[str], Any] | None
) -> tuple[str | None, Any, str | None]:
    """Find the move or the value in an answer.

    Args:
        answer: the reply without its thinking.
        choices: the legal answers; empty: none are given.
        parse: turns the answer into a value, if there are no choices.

    Returns:
        (move, parsed value, reason why the answer is not legal, or None).
    """
    if choices:
        move = parse_move(answer, choices)
        if move is None:
            return None, None, f"{answer.strip()[:80]!r} is not one of: {', '.join(choices)}."
        return move, move, None
    if parse is not None:
        try:
            value = parse(answer)
        except UNREADABLE as error:
            kind = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
            reason = f"{answer.strip()[:80]!r} was not understood: {kind}{text_of(error)}."
            return None, None, reason
        return text_of(value), value, None
    return None, None, None
