"""Split a reply into thinking, text and tool calls while it is sampled."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from legos.chat.incremental import held_back
from legos.chat.tools import ToolFormat, parse_calls
from legos.records.message import ToolCall

Part = tuple[Literal["text", "thinking"], str] | tuple[Literal["tool"], tuple[ToolCall, ...]]
"""A piece of the text or of the thinking, or tool calls."""

OPEN, CLOSE = "<think>", "</think>"


class ReplyParser:
    """Parses a reply piece by piece.

    A reply without marks is returned unchanged. In a reply with marks, the blanks around them are
    left out. Text between the marks of a tool call that is no call is text like any other, its
    marks included.
    """

    def __init__(
        self,
        *,
        thinking: bool = False,
        form: ToolFormat | None = None,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        """Begin a reply.

        Args:
            thinking: whether the reply begins inside thinking.
            form: format of tool calls; None: the reply has none.
            tools: tools that may be called, in the format of OpenAI's API.
        """
        self._kind: Literal["text", "thinking", "tool"] = "thinking" if thinking else "text"
        self._form = form
        self._tools = tools
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
            before, self._text = self._text[:start], self._text[start + len(mark) :]
            self._pass(before, mark, parts)
        if self._kind != "tool":
            certain = len(self._text) - held_back(self._text, marks)
            self._say(self._text[:certain], parts)
            self._text = self._text[certain:]
        return parts

    def finish(self, *, cut: bool = False) -> list[Part]:
        """End the reply; returns the parts that were not returned yet.

        Args:
            cut: whether the model had not ended the reply; then a call without its end is text.
        """
        parts: list[Part] = []
        if self._kind == "tool":
            self._call(self._text, "", parts, cut=cut)
        else:
            self._say(self._text, parts)
        if self._kind == "text" and self._blanks and not self._fresh:
            parts.append(("text", self._blanks))
        self._text = self._blanks = ""
        return parts

    def _marks(self) -> Sequence[str]:
        """The marks that end the current part."""
        if self._kind == "thinking":
            return (CLOSE,)
        if self._form is None:
            return (OPEN,)
        if self._kind == "tool":
            return (self._form.end,) if self._form.end else ()
        return (OPEN, self._form.start)

    def _pass(self, before: str, mark: str, parts: list[Part]) -> None:
        """Continue after a mark, and after the text before it."""
        if self._kind == "tool":
            self._call(before, mark, parts)
            return
        self._say(before, parts)
        if self._kind == "text" and mark != OPEN:
            self._kind = "tool"  # the blanks before the mark are kept until it is known to be one
        else:
            self._begin("thinking" if mark == OPEN else "text")

    def _call(self, text: str, end: str, parts: list[Part], *, cut: bool = False) -> None:
        """Add the calls in the text after the mark of a call, or the text if it has none."""
        assert self._form is not None
        calls = None if cut else parse_calls(self._form, text, self._tools)
        self._kind = "text"
        if calls is None:
            self._say(f"{self._form.start}{text}{end}", parts)
        else:
            parts.append(("tool", calls))
            self._begin("text")

    def _begin(self, kind: Literal["text", "thinking"]) -> None:
        """Begin a part after a mark."""
        self._kind, self._blanks, self._fresh = kind, "", True

    def _say(self, text: str, parts: list[Part]) -> None:
        """Add text to the parts; blanks at its end wait for the text after them."""
        assert self._kind != "tool"
        text = self._blanks + text
        piece = text.rstrip()
        self._blanks = text[len(piece) :]
        if self._fresh:
            piece = piece.lstrip()
            self._blanks = self._blanks if piece else ""
        if piece:
            self._fresh = False
            parts.append((self._kind, piece))


def join_parts(parts: Sequence[Part]) -> tuple[str, str, tuple[ToolCall, ...]]:
    """The text, the thinking and the tool calls in the parts of a reply."""
    text, thinking = "", ""
    calls: tuple[ToolCall, ...] = ()
    for part in parts:
        if part[0] == "tool":
            calls += part[1]
        elif part[0] == "text":
            text += part[1]
        else:
            thinking += part[1]
    return text, thinking, calls
