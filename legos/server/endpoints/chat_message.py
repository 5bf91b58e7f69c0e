"""Parse one answer to a chat into its text, its thinking and its tool calls."""

import json
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from legos.chat.incremental import TextStream
from legos.chat.parts import Part, ReplyParser
from legos.chat.stops import cut_at_stop
from legos.chat.tokenizer import ChatTokenizer
from legos.chat.tools import ToolFormat, called, parse_calls
from legos.data.message import Completion, ToolCall
from legos.data.request import Progress

__all__ = ["Delta", "Manner", "ReplyReader"]


class Manner(Struct, frozen=True, kw_only=True):
    """How replies are parsed."""

    thinking: bool  # True if the reply begins as thinking
    tools: tuple[Mapping[str, Any], ...]  # tools that may be called
    form: ToolFormat | None  # format of tool calls; None: tool calls are not parsed
    forced: bool  # True if the whole reply is one tool call
    stop: tuple[str, ...]


class Delta(Struct):
    """New parts of a reply."""

    content: str = ""
    reasoning: str = ""
    calls: list[dict[str, Any]] = []

    def fields(self, *, streamed: bool) -> dict[str, Any]:
        """The fields of a message, or of one streamed part of a message."""
        fields: dict[str, Any] = {}
        if self.content or not streamed:
            fields["content"] = None if self.calls and not self.content else self.content
        if self.reasoning:
            fields["reasoning_content"] = self.reasoning
        if self.calls:
            calls = self.calls
            fields["tool_calls"] = (
                calls if streamed else [{k: v for k, v in c.items() if k != "index"} for c in calls]
            )
        return fields


class ReplyReader:
    """Parses one reply, in pieces or as a whole, with the same result.

    Attributes:
        num_calls: number of tool calls so far.
    """

    def __init__(self, tokenizer: ChatTokenizer, manner: Manner) -> None:
        self._tokenizer = tokenizer
        self._manner = manner
        form = manner.form
        # Tool marks that are control tokens appear only in text decoded with control tokens.
        self._controls = form is not None and tokenizer.is_control(form.start)
        self._text = TextStream(self._decode, manner.stop)
        marks = None if form is None or manner.forced else (form.start, form.end)
        self._parser = ReplyParser(thinking=manner.thinking, tool_marks=marks)
        self.num_calls = 0

    def push(self, progress: Progress) -> Delta:
        """Parse new tokens."""
        said = self._text.push(progress.token_ids)
        return Delta() if self._manner.forced else self._delta(self._parser.push(said))

    def finish(self, completion: Completion) -> Delta:
        """End the reply; returns the parts that were not returned yet."""
        text = completion.text
        if self._controls:
            text = cut_at_stop(self._decode(completion.token_ids), self._manner.stop)
        if self._manner.forced:
            call = _forced_call(text)
            if call is not None:
                return Delta(calls=[self._call(call)])
            return Delta(content=text)
        rest = self._text.finish(text)
        return self._delta([*self._parser.push(rest), *self._parser.finish()])

    def finish_reason(self, completion: Completion) -> str:
        """Why the reply ended."""
        if self.num_calls and completion.finish_reason == "stop":
            return "tool_calls"
        return completion.finish_reason

    def _decode(self, token_ids: Sequence[int]) -> str:
        if not self._controls:
            return self._tokenizer.decode(token_ids)
        ends = self._tokenizer.end_ids
        return self._tokenizer.decode([t for t in token_ids if t not in ends], controls=True)

    def _delta(self, parts: Sequence[Part]) -> Delta:
        delta = Delta()
        for kind, text in parts:
            if kind == "text":
                delta.content += text
            elif kind == "thinking":
                delta.reasoning += text
            else:
                self._read_calls(text, delta)
        return delta

    def _read_calls(self, text: str, delta: Delta) -> None:
        """Add the tool calls in a text, or the text itself if it contains none."""
        form = self._manner.form
        if form is None:
            return
        calls = parse_calls(form, text, self._manner.tools)
        if calls is None:
            delta.content += f"{form.start}{text}{form.end}"
            return
        delta.calls += [self._call(call) for call in calls]

    def _call(self, call: ToolCall) -> dict[str, Any]:
        fields = {
            "index": self.num_calls,
            "id": f"call_{uuid.uuid4().hex[:24]}",
            "type": "function",
            "function": {"name": call.name, "arguments": call.arguments},
        }
        self.num_calls += 1
        return fields


def _forced_call(text: str) -> ToolCall | None:
    """The tool call of a forced reply; None if the reply was cut off."""
    try:
        return called(json.loads(text))
    except ValueError:
        return None
