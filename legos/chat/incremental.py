"""The text of a completion as its tokens come: whole characters only, nothing of a stop text."""

from collections.abc import Callable, Sequence

from legos.chat.stops import cut_at_stop

_BROKEN = "\ufffd"  # what a decoder says of bytes that are no character, or not yet
_MAX_BYTES = 4  # of one character


class TextStream:
    """Turns the tokens of one completion into text, piece by piece.

    The pieces together are the text of the whole completion: ``finish`` adds what was held back.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str], stop: Sequence[str] = ()) -> None:
        self._decode = decode
        self._stop = tuple(stop)
        self._context: tuple[int, ...] = ()  # tokens already decoded, which new ones may need
        self._known = ""  # their text
        self._new: tuple[int, ...] = ()  # tokens that are not decoded yet
        self._held = ""  # text that may be the beginning of a stop text
        self._handed_out = 0  # number of characters
        self._stopped = False

    def push(self, token_ids: Sequence[int]) -> str:
        """Take new tokens; returns the text that is certain by now."""
        self._new += tuple(token_ids)
        decoded = text = ""
        whole = ()
        for unfinished in range(min(_MAX_BYTES, len(self._new))):
            whole = self._new[: len(self._new) - unfinished]
            decoded = self._decode(self._context + whole)
            text = decoded[len(self._known) :]
            if not text.endswith(_BROKEN):
                break
        else:  # only the last bytes may still become a character
            if len(self._new) < _MAX_BYTES:
                return ""
        alone = self._decode(whole) if text else ""  # "": what follows may depend on more tokens
        context = whole if alone else self._context + whole
        self._context, self._known = context, alone or decoded
        self._new = self._new[len(whole) :]
        if self._stopped:
            return ""
        held = self._held + text
        cut = cut_at_stop(held, self._stop)
        self._stopped = len(cut) < len(held)
        piece = cut if self._stopped else held[: len(held) - held_back(held, self._stop)]
        self._held = held[len(piece) :]
        self._handed_out += len(piece)
        return piece

    def finish(self, text: str) -> str:
        """The rest of the whole text, which was not handed out yet."""
        rest = text[self._handed_out :]
        self._handed_out = len(text)
        return rest


def held_back(text: str, marks: Sequence[str]) -> int:
    """Characters at the end of a text that may be the beginning of a mark."""
    longest = 0
    for mark in marks:
        for size in range(min(len(mark) - 1, len(text)), longest, -1):
            if text.endswith(mark[:size]):
                longest = size
                break
    return longest
