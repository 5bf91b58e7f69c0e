"""What chat templates read: messages, tools and variables, without control tokens in their texts.

A prompt is tokenized as a whole, where any text that spells a control token would become it. So
every text that does not come from the template itself is changed here before the template sees it.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from legos.chat.parts import CLOSE, OPEN
from legos.chat.tools import arguments_of
from legos.records.message import Message


class Neutraliser:
    """Breaks the names of control tokens in texts by a space.

    A template may print its own text directly before or after a value: "<" and ">" around a key.
    So a part of a name at the edge of a text is broken too, except for a word alone.
    """

    def __init__(self, controls: Sequence[str]) -> None:
        self._controls = tuple(controls)
        self._beginnings = {control[:2] for control in controls}
        self._longest = max(map(len, controls), default=0)
        parts = [(name[:cut], name[cut:]) for name in controls for cut in range(1, len(name))]
        self._heads = {head for head, _ in parts if len(head) > 1}
        self._tails = {tail for _, tail in parts if len(tail) > 1}

    def text(self, text: str, *, keep: Sequence[str] = ()) -> str:
        """A text without control tokens other than those to keep."""
        if any(beginning in text for beginning in self._beginnings):
            for control in self._controls:
                if control not in keep:
                    text = text.replace(control, f"{control[0]} {control[1:]}")
        return self._without_edges(text)

    def _without_edges(self, text: str) -> str:
        """A text that does not become a control token together with what stands around it."""
        sizes = range(2, min(len(text) + 1, self._longest))
        if any(text[-size:] in self._heads for size in sizes):
            at = max(len(text) - size for size in sizes if text[-size:] in self._heads)
            text = f"{text[: at + 1]} {text[at + 1 :]}"
        inside = len(text) < self._longest and not text.replace("_", "").isalnum()
        if any(text[:size] in self._tails for size in sizes) or (
            inside and len(text) > 1 and any(text in control for control in self._controls)
        ):
            text = f"{text[0]} {text[1:]}"
        return text

    def value(self, value: Any) -> Any:
        """A JSON value with all its texts changed, the keys of objects included."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            fields = cast("Mapping[str, Any]", value)
            return {self.text(key): self.value(one) for key, one in fields.items()}
        if isinstance(value, (list, tuple)):
            return [self.value(one) for one in cast("Sequence[Any]", value)]
        return value

    def message(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """A message with all its texts changed; what an assistant says keeps its thinking tags."""
        changed = self.value(message)
        if message["role"] == "assistant":
            changed["content"] = self.text(message["content"] or "", keep=(OPEN, CLOSE))
        return changed


def message_fields(
    message: Message, arguments: Callable[[str], Any] = arguments_of
) -> dict[str, Any]:
    """A message in the format of OpenAI's API.

    Args:
        message: the message.
        arguments: makes the arguments of its tool calls; chat templates read objects.
    """
    fields: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        fields["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": arguments(call.arguments)},
            }
            for call in message.tool_calls
        ]
    if message.tool_call_id is not None:
        fields["tool_call_id"] = message.tool_call_id
    return fields
