"""Split a reply into thinking, text and tool calls while it is sampled."""

from collections.abc import Sequence
from typing import Literal

from legos.chat.incremental import held_back

__all__ = ["Part", "ReplyParser"]

Kind = Literal["text", "thinking", "tool"]
Part = tuple[Kind, str]
"""The kind and the text; a tool call is one part, without its marks."""

OPEN, CLOSE = "<think>", "</think>"


class ReplyParser:
    """Parses a reply piece by piece.

    A reply without marks is returned unchanged. In a reply with marks, the blanks around them are
    left out.
    """

    def __init__(
        self, *, thinking: bool = False, tool_marks: tuple[str, str] | None = None
    ) -> None:
        """Begin a reply.

        Args:
            thinking: whether the reply begins inside thinking.
            tool_marks: the texts before and after a tool call; an empty second one: a tool call
                ends with the reply.
        """
        self._kind: Kind = "thinking" if thinking else "text"
        self._tool_marks = tool_marks
        self._text = ""  # not split yet
        self._blanks = ""  # returned only if other text follows them
        self._fresh = thinking  # True directly after a mark

    def push(self, text: str) -> list[Part]:
        """Parse more of the reply; returns the parts that are complete."""
        self._text += text
        parts: list[Part] = []
        while True:
            marks = self._marks()
            found = [(self._text.find(mark), mark) for mark in marks if mark in self._text]
            if not found:
                break
            start, mark = min(found)
            self._say(self._text[:start], parts, ends=True)
            self._text = self._text[start + len(mark) :]
            self._enter(mark)
        if self._kind != "tool":
            certain = len(self._text) - held_back(self._text, marks)
            self._say(self._text[:certain], parts, ends=False)
            self._text = self._text[certain:]
        return parts

    def finish(self) -> list[Part]:
        """End the reply; returns the parts that were not returned yet."""
        parts: list[Part] = []
        if self._kind == "tool":
            parts.append(("tool", self._text))
        elif self._kind == "text":
            self._say(self._text, parts, ends=False)
            if self._blanks and not self._fresh:
                parts.append((self._kind, self._blanks))
        else:
            self._say(self._text, parts, ends=True)
        self._text = self._blanks = ""
        return parts

    def _marks(self) -> Sequence[str]:
        """The marks that end the current part."""
        if self._kind == "thinking":
            return (CLOSE,)
        if self._kind == "tool":
            end = self._tool_marks[1] if self._tool_marks else ""
            return (end,) if end else ()
        return (OPEN, self._tool_marks[0]) if self._tool_marks else (OPEN,)

    def _enter(self, mark: str) -> None:
        if self._tool_marks is not None and mark == self._tool_marks[0] and self._kind == "text":
            self._kind = "tool"
        else:
            self._kind = "thinking" if mark == OPEN else "text"
        self._blanks = ""
        self._fresh = True

    def _say(self, text: str, parts: list[Part], *, ends: bool) -> None:
        """Add text to the parts; blanks at its end wait for the text after them."""
        if self._kind == "tool":
            parts.append(("tool", text))
            return
        text = self._blanks + text
        said = text.rstrip()
        self._blanks = "" if ends else text[len(said) :]
        if self._fresh:
            said = said.lstrip()
            self._blanks = self._blanks if said else ""
        if said:
            self._fresh = False
            parts.append((self._kind, said))
