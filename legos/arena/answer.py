"""What a seat's answer says: the move or the value in it, or why it is not legal."""

from collections.abc import Callable, Sequence
from typing import Any

from msgspec import Struct

from legos.chat.reply import parse_move
from legos.data.message import Completion

__all__ = ["Reply", "read_answer"]

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
    """What a seat said."""

    text: str  # all of it
    thinking: str  # what stood inside the thinking tags
    answer: str  # the rest
    move: str | None  # the legal move, where choices were given; what `parse` returned, as text
    parsed: Any  # what `parse` returned
    truncated: bool  # True: the token limit cut it short
    completion: Completion


def read_answer(
    answer: str, choices: Sequence[str] | None, parse: Callable[[str], Any] | None
) -> tuple[str | None, Any, str | None]:
    """Find the move or the value in an answer.

    Args:
        answer: the reply without its thinking.
        choices: the legal answers, or None.
        parse: turns the answer into a value, where there are no choices.

    Returns:
        (move, parsed value, why the answer is not legal: None when it is).
    """
    if choices is not None:
        move = parse_move(answer, choices)
        if move is None:
            return None, None, f"{answer.strip()[:80]!r} is not one of: {', '.join(choices)}."
        return move, move, None
    if parse is not None:
        try:
            value = parse(answer)
        except UNREADABLE as error:
            kind = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
            return None, None, f"{answer.strip()[:80]!r} was not understood: {kind}{error}."
        return str(value), value, None
    return None, None, None
