"""Stop texts: test whether the last tokens complete one, and cut a text before it."""

from collections.abc import Callable, Sequence
from functools import cache

_SPARE_TOKENS = 4  # a window may begin inside a character, and a first space may be swallowed


def stop_test(
    decode: Callable[[Sequence[int]], str], stop: Sequence[str]
) -> Callable[[Sequence[int]], bool]:
    """A test of whether the newest token has completed a stop text.

    It decodes the end of the completion only. An ordinary token decodes to at least one byte, so
    a text of B bytes needs at most B of them; the window grows by tokens that decode to nothing.

    Args:
        decode: token ids to text.
        stop: the texts, none empty.

    Returns:
        A function of all tokens so far, which takes a time that does not depend on their number.
    """
    width = max(len(text.encode()) for text in stop) + _SPARE_TOKENS

    @cache
    def is_empty(token: int) -> bool:
        return not decode((token,))

    def stopped(tokens: Sequence[int]) -> bool:
        start, needed = len(tokens), width
        while start > 0 and needed > 0:
            start -= 1
            needed -= not is_empty(tokens[start])
        end = decode(tuple(tokens[start:]))
        return any(text in end for text in stop)

    return stopped


def cut_at_stop(text: str, stop: Sequence[str]) -> str:
    """The text before the first stop text, or all of it."""
    starts = [start for start in (text.find(word) for word in stop) if start >= 0]
    return text[: min(starts)] if starts else text
