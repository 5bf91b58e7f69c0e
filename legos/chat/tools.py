"""Tools: how they are described to a model, and how its calls are parsed and enforced."""

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from msgspec import Struct

from legos.chat.parts import Part
from legos.data.message import ToolCall

__all__ = [
    "PLAIN_TOOLS",
    "ToolFormat",
    "called",
    "plain_messages",
    "read_parts",
    "with_ids",
]

logger = logging.getLogger(__name__)
JsonObject = Mapping[str, Any]


class ToolFormat(Struct, frozen=True, kw_only=True):
    """How one model writes tool calls."""

    start: str  # the text before a call
    end: str  # the text after it; empty: the end of the reply
    parse: Callable[[str, Sequence[JsonObject]], Any]  # text between them and tools -> call(s)


def _json_call(text: str, _: Sequence[JsonObject]) -> Any:
    return json.loads(text)


PLAIN_TOOLS = ToolFormat(start="<tool_call>", end="</tool_call>", parse=_json_call)
"""For models whose chat template has no tools: JSON between two tags, as the prompt says."""

_ADVICE = (
    "You may call these functions, given as JSON schemas:\n{tools}\n"
    'To call one, write {start}{{"name": ..., "arguments": {{...}}}}{end}.'
)


def plain_messages(messages: Sequence[JsonObject], tools: Sequence[JsonObject]) -> list[JsonObject]:
    """The same chat for a template without tools: the system message describes them.

    Args:
        messages: with roles "tool" and fields "tool_calls".
        tools: in the format of OpenAI's API.

    Returns:
        Messages that have only a role and a text.
    """
    plain: list[JsonObject] = []
    if tools:
        listed = "\n".join(json.dumps(tool["function"]) for tool in tools)
        advice = _ADVICE.format(tools=listed, start=PLAIN_TOOLS.start, end=PLAIN_TOOLS.end)
        first = messages[0] if messages and messages[0]["role"] == "system" else None
        content = f"{first['content']}\n\n{advice}" if first else advice
        plain.append({"role": "system", "content": content})
        messages = messages[1:] if first else messages
    for message in messages:
        if message["role"] == "tool":
            text = f"<tool_response>{message['content']}</tool_response>"
            plain.append({"role": "user", "content": text})
            continue
        calls = "".join(
            f"{PLAIN_TOOLS.start}{json.dumps(call['function'])}{PLAIN_TOOLS.end}"
            for call in message.get("tool_calls") or ()
        )
        plain.append({"role": message["role"], "content": (message["content"] or "") + calls})
    return plain


def with_ids(calls: Sequence[ToolCall], seed: int) -> tuple[ToolCall, ...]:
    """Calls with ids of nine digits, as Mistral's template wants; the same seed gives the same."""
    return tuple(
        ToolCall(call.name, call.arguments, f"{(seed + number) % 10**9:09d}")
        for number, call in enumerate(calls)
    )


def read_parts(
    parts: Sequence[Part], form: ToolFormat | None, tools: Sequence[JsonObject]
) -> tuple[str, str, tuple[ToolCall, ...]]:
    """Content, thinking and tool calls of a parsed reply; text that is no tool call is content.

    Args:
        parts: parts of the reply.
        form: format of tool calls; None: the reply has none.
        tools: tools that may be called, in the format of OpenAI's API.
    """
    content, thinking = "", ""
    calls: tuple[ToolCall, ...] = ()
    for kind, text in parts:
        if kind == "thinking":
            thinking += text
        elif kind == "text" or form is None:
            content += text
        elif (found := _parse_calls(form, text, tools)) is None:
            content += f"{form.start}{text}{form.end}"
        else:
            calls += found
    return content, thinking, calls


def _parse_calls(
    form: ToolFormat, text: str, tools: Sequence[JsonObject]
) -> tuple[ToolCall, ...] | None:
    """The tool calls in a text between the marks, or None if it has none."""
    try:
        parsed = form.parse(text, tools)
    except Exception as error:  # a model may write anything, and a parser may raise anything
        logger.debug("a tool call cannot be read: %s", type(error).__name__)
        return None
    items = cast("list[Any]", parsed) if isinstance(parsed, list) else [parsed]
    calls = tuple(called(item) for item in items)
    return cast("tuple[ToolCall, ...]", calls) if calls and None not in calls else None


def called(item: Any) -> ToolCall | None:
    """The tool call that a JSON value describes, or None."""
    if not isinstance(item, Mapping):
        return None
    fields = cast("Mapping[str, Any]", item)
    name, arguments = fields.get("name"), fields.get("arguments", fields.get("parameters", {}))
    if not isinstance(name, str):
        return None
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return ToolCall(name, text)
