"""Parse one answer to a chat into its text, its thinking and its tool calls."""

import json
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from legos.chat.calls import reply_decoder
from legos.chat.incremental import TextStream
from legos.chat.parts import Part, ReplyParser, join_parts
from legos.chat.stops import cut_at_stop
from legos.chat.tokenizer import ChatTokenizer
from legos.chat.tools import ToolFormat, called
from legos.records.message import Completion, ToolCall
from legos.records.request import Progress


class ReplyFormat(Struct, frozen=True, kw_only=True):
    """How replies are parsed."""

    thinking: bool  # True if the reply begins as thinking
    tools: tuple[Mapping[str, Any], ...]  # tools that may be called
    form: ToolFormat | None  # format of tool calls; None: tool calls are not parsed
    forced: bool  # True if the whole reply is one tool call
    stop: tuple[str, ...]
    parallel: bool = True  # False: of several tool calls only the first is reported


class ReplyReader:
    """Parses one reply into the fields of a message, in pieces or as a whole, with the same result.

    Attributes:
        num_calls: number of tool calls so far.
    """

    def __init__(self, tokenizer: ChatTokenizer, reply: ReplyFormat) -> None:
        self._format = reply
        self._decode = reply_decoder(tokenizer, reply.form)
        self._text = TextStream(self._decode, reply.stop)
        form = None if reply.forced else reply.form
        self._parser = ReplyParser(thinking=reply.thinking, form=form, tools=reply.tools)
        self.num_calls = 0

    def push(self, progress: Progress) -> dict[str, Any]:
        """Parse new tokens; returns the new parts of the message."""
        text = self._text.push(progress.token_ids)
        return {} if self._format.forced else self._fields(self._parser.push(text))

    def finish(self, completion: Completion) -> dict[str, Any]:
        """End the reply; returns the parts that were not returned yet."""
        text = cut_at_stop(self._decode(completion.token_ids), self._format.stop)
        if self._format.forced:
            call = _forced_call(text)
            return {"content": text} if call is None else {"tool_calls": [self._call(call)]}
        rest = self._text.finish(text)
        cut = completion.finish_reason != "stop"
        return self._fields([*self._parser.push(rest), *self._parser.finish(cut=cut)])

    def finish_reason(self, completion: Completion) -> str:
        """Why the reply ended."""
        if self.num_calls and completion.finish_reason == "stop":
            return "tool_calls"
        return completion.finish_reason

    def _fields(self, parts: Sequence[Part]) -> dict[str, Any]:
        """The fields of a message that have a value."""
        content, thinking, found = join_parts(parts)
        most = None if self._format.parallel else 1 - self.num_calls
        calls = [self._call(call) for call in found[:most]]
        fields = {"content": content, "reasoning_content": thinking, "tool_calls": calls}
        return {name: value for name, value in fields.items() if value}

    def _call(self, call: ToolCall) -> dict[str, Any]:
        fields = {
            "index": self.num_calls,
            "id": uuid.uuid4().hex[:9],  # as Mistral's template wants
            "type": "function",
            "function": {"name": call.name, "arguments": call.arguments},
        }
        self.num_calls += 1
        return fields


def _forced_call(text: str) -> ToolCall | None:
    """The tool call of a forced reply; None if the reply was cut off."""
    try:
        return called(json.loads(text))
    except (ValueError, RecursionError):
        return None
