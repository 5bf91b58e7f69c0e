"""Tools: how they are described to a model, and how its calls are parsed and enforced."""

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from msgspec import Struct

from legos.records.message import ToolCall

logger = logging.getLogger(__name__)
JsonObject = Mapping[str, Any]


class ToolFormat(Struct, frozen=True, kw_only=True):
    """How one model writes tool calls."""

    start: str  # the text before a call
    end: str  # the text after it; empty: the end of the reply
    parse: Callable[[str, Sequence[JsonObject]], Any]  # text between them and tools -> call(s)


def _json_call(text: str, _: Sequence[JsonObject]) -> Any:
    return json.loads(text)


def _first_call(text: str, tools: Sequence[JsonObject]) -> Any:
    """Llama 3 calls one function at once; its template refuses former calls of several."""
    call, _ = json.JSONDecoder().raw_decode(JSON_TOOLS.start + text)
    if call["name"] not in [tool["function"]["name"] for tool in tools]:
        raise ValueError("other JSON than a call of a tool")
    return call


def _named_call(text: str, _: Sequence[JsonObject]) -> Any:
    name, _line_end, arguments = text.partition("\n")
    return {"name": name, "arguments": json.JSONDecoder().raw_decode(arguments.lstrip())[0]}


def _listed_calls(text: str, _: Sequence[JsonObject]) -> Any:
    return json.JSONDecoder().raw_decode(text.lstrip())[0]


PLAIN_TOOLS = ToolFormat(start="<tool_call>", end="</tool_call>", parse=_json_call)
"""For models whose chat template has no tools: JSON between two tags, as the prompt says."""
JSON_TOOLS = ToolFormat(start='{"', end="", parse=_first_call)
"""Llama 3: JSON without tags, whose arguments are called parameters."""
HARMONY_TOOLS = ToolFormat(start="<tool_call>", end="", parse=_named_call)
"""gpt-oss: a channel to a function, which the tokenizer decodes to the tag, name and line break."""

_LISTS = {"<|START_ACTION|>": "<|END_ACTION|>", "<|tool_call|>": ""}
"""Command, Granite 3: the text before a JSON list of calls -> the text after it."""


def also_known(template: str) -> ToolFormat | None:
    """The format of a chat template with tools that mlx-lm has no parser for, or None."""
    if "<|channel|>" in template:
        return HARMONY_TOOLS
    for start, end in _LISTS.items():
        if start in template:
            return ToolFormat(start=start, end=end, parse=_listed_calls)
    return JSON_TOOLS if '"parameters": dictionary' in template else None


def shown_format(template: str, place: object) -> ToolFormat | None:
    """``also_known``, with a warning where the format is none that is known.

    Args:
        template: the chat template, which has tools.
        place: where it is, for the warning.
    """
    found = also_known(template)
    if found is None and PLAIN_TOOLS.start not in template:
        logger.warning(
            "the format in which the model in %s calls tools is not known: its calls stay text; "
            'tool_choice "required" forces a call in a form that is known',
            place,
        )
    return found


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
        listed = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
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
        functions = [call["function"] for call in message.get("tool_calls") or ()]
        written = [json.dumps(function, ensure_ascii=False) for function in functions]
        calls = "".join(f"{PLAIN_TOOLS.start}{each}{PLAIN_TOOLS.end}" for each in written)
        plain.append({"role": message["role"], "content": (message["content"] or "") + calls})
    return plain


def with_ids(calls: Sequence[ToolCall], seed: int) -> tuple[ToolCall, ...]:
    """Calls with ids of nine digits, as Mistral's template wants; the same seed gives the same."""
    return tuple(
        ToolCall(call.name, call.arguments, f"{(seed + number) % 10**9:09d}")
        for number, call in enumerate(calls)
    )


def parse_calls(
    form: ToolFormat, text: str, tools: Sequence[JsonObject]
) -> tuple[ToolCall, ...] | None:
    """The tool calls in a text between the marks of a call, or None if it has none.

    Args:
        form: format of tool calls.
        text: what the model wrote.
        tools: tools that may be called, in the format of OpenAI's API.
    """
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
    name = fields.get("name", fields.get("tool_name"))
    arguments = fields.get("arguments", fields.get("parameters", {}))
    if not isinstance(name, str):
        return None
    return ToolCall(name, arguments_text(arguments))


def arguments_text(given: Any) -> str:
    """The arguments of a call as JSON text; nothing and null are no arguments."""
    text = given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)
    return "{}" if text.strip() in ("", "null") else text


def arguments_of(text: str) -> dict[str, Any]:
    """The arguments of a call as the object that chat templates expect.

    What is no object, which a model may write too, becomes one with the key "arguments".
    """
    try:
        value: Any = json.loads(arguments_text(text))
    except (ValueError, RecursionError):  # no JSON, or JSON that is nested too deeply
        value = text
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {"arguments": value}
