"""What one answer to a chat says: its text, its thinking, the tools that it calls."""

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
    """How replies are read."""

    thinking: bool  # the prompt ends inside of the thinking
    tools: tuple[Mapping[str, Any], ...]  # what may be called
    form: ToolFormat | None  # how calls are written; None: none is looked for
    forced: bool  # the whole reply is a call
    stop: tuple[str, ...]


class Delta(Struct):
    """What is new in a reply."""

    content: str = ""
    reasoning: str = ""
    calls: list[dict[str, Any]] = []

    def fields(self, *, streamed: bool) -> dict[str, Any]:
        """As fields of a message, or of a streamed part of one."""
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
    """Reads one reply, in pieces or as a whole, to the same end.

    Attributes:
        num_calls: tools called so far.
    """

    def __init__(self, tokenizer: ChatTokenizer, manner: Manner) -> None:
        self._tokenizer = tokenizer
        self._manner = manner
        form = manner.form
        # Marks that are control tokens are seen only in a text that shows those.
        self._controls = form is not None and tokenizer.is_control(form.start)
        self._text = TextStream(self._decode, manner.stop)
        marks = None if form is None or manner.forced else (form.start, form.end)
        self._parser = ReplyParser(thinking=manner.thinking, tool_marks=marks)
        self.num_calls = 0

    def push(self, progress: Progress) -> Delta:
        """Take new tokens."""
        said = self._text.push(progress.token_ids)
        return Delta() if self._manner.forced else self._delta(self._parser.push(said))

    def finish(self, completion: Completion) -> Delta:
        """The reply is whole; returns what was not told yet."""
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
        """Tool calls, or a text that only looked like some."""
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
    """The call that a whole reply is, unless it was cut off."""
    try:
        return called(json.loads(text))
    except ValueError:
        return None
