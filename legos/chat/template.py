"""A model's chat template: messages and tools to the text of a prompt."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from itertools import pairwise
from typing import Any

from legos.chat.channels import TAGS
from legos.chat.fields import Neutraliser
from legos.chat.parts import OPEN
from legos.chat.reply import split_thinking
from legos.chat.tools import plain_messages
from legos.errors import ModelError
from legos.records.message import Thinking

Chat = Sequence[Mapping[str, Any]]
_RULES = "qzxj"  # a text that no template writes by itself
_PROBE: Chat = ({"role": "system", "content": _RULES}, {"role": "user", "content": "?"})
_FUNCTION = {"name": _RULES, "description": "?", "parameters": {"type": "object", "properties": {}}}
_TOOLS = [{"type": "function", "function": _FUNCTION}]
_SWITCHES = ("enable_thinking", "thinking")  # variables with which families turn thinking on or off


class ChatTemplate:
    """Writes chats as a model was tuned to read them.

    Attributes:
        source: the text of the template; empty: there is none.
        exists: whether the tokenizer has a template; without one, each message is a line.
        knows_thinking: whether it knows marks of thinking.
        knows_effort: whether it reads the variable ``reasoning_effort``.
    """

    def __init__(
        self, tokenizer: Any, neutral: Neutraliser, *, thinking: Thinking = "default"
    ) -> None:
        """Read a tokenizer's template.

        Args:
            tokenizer: the library's tokenizer.
            neutral: breaks control tokens in texts.
            thinking: what every chat asks for that names no other.

        Raises:
            ModelError: the template has no variable for it.
        """
        self._tokenizer = tokenizer
        self._variables: Mapping[str, Any] = {}
        self._neutral = neutral
        self.source = template = str(tokenizer.chat_template or "")
        self.exists = bool(template)
        self.knows_thinking = any(mark in template for mark in (OPEN, *TAGS))
        self.knows_effort = "reasoning_effort" in template
        self._takes_thinking = "message.thinking" in template
        if thinking != "default":
            self._variables = self._asking_for(thinking)

    @cached_property
    def _switch(self) -> str | None:
        """The variable that turns thinking on or off."""
        each = (name for name in _SWITCHES if self._asked(name, True) != self._asked(name, False))
        try:
            return next(each, None) if self.exists else None
        except ModelError:
            return None

    @property
    def thinks(self) -> bool:
        """Whether chats ask for thinking by default, and can ask for none."""
        name = self._switch
        return name is not None and self._written(_PROBE[1:], {}) == self._asked(name, True)

    def _asking_for(self, thinking: Thinking) -> Mapping[str, Any]:
        """The variable with which chats ask for a kind of thinking, and its value.

        Raises:
            ModelError: the template has none.
        """
        if thinking in ("off", "on"):
            if self._switch is not None:
                return {self._switch: thinking == "on"}
            advice = "give low, medium or high" if self.knows_effort else "leave it out"
            lacks = " or ".join(_SWITCHES)
        elif self.knows_effort:
            return {"reasoning_effort": thinking}
        else:
            advice, lacks = "give off or on, or leave it out", "reasoning_effort"
        raise ModelError(
            f"thinking is {thinking!r}, but the model's chat template reads no variable {lacks}; "
            f"{advice}"
        )

    def _asked(self, name: str, value: bool) -> str:
        return self._written(_PROBE[1:], {name: value})

    @cached_property
    def knows_tools(self) -> bool:
        """Whether the template writes tools; one that does not has them in the system message."""
        try:
            return _RULES in self._written(_PROBE[1:], {"tools": _TOOLS})
        except ModelError:
            return False

    @cached_property
    def merges_system(self) -> bool:
        """Whether texts of system messages begin questions: the template refuses or omits them."""
        if not self.exists:
            return False
        try:
            return _RULES not in self._written(_PROBE, {})
        except ModelError:
            try:
                return _RULES in self._written(_without_system(_PROBE), {})
            except ModelError:
                return False  # it refuses every chat, and says why

    @cached_property
    def merges_users(self) -> bool:
        """Whether neighbouring messages of users are one: the template accepts only one."""
        one = _PROBE[1:]
        try:
            self._written((*one, *one), {})
        except ModelError:
            with suppress(ModelError):
                return bool(self._written(one, {}))
        return False

    def text(
        self,
        messages: Chat,
        tools: Chat = (),
        options: Mapping[str, Any] | None = None,
        *,
        asks: bool = True,
    ) -> str:
        """The text of a chat; with ``asks``, up to where the assistant's next message begins.

        Raises:
            ModelError: the template refuses these messages, or there are none.
        """
        if not messages:
            raise ModelError("a chat needs at least one message to be rendered")
        try:
            chat: Chat = [self._neutral.message(one) for one in messages]
            given, variables = self._neutral.value(tools), self._neutral.value(options or {})
        except RecursionError as error:
            raise ModelError("the messages or tools of a chat are nested too deeply") from error
        if not self.knows_tools:
            chat, given = plain_messages(chat, given), []
        if not self.exists:
            lines = [f"{message['role']}: {message['content']}\n" for message in chat]
            return "".join(lines) + ("assistant:" if asks else "")
        if self._takes_thinking:
            chat = [_thinking_apart(message) for message in chat]
        if any(message["role"] == "system" for message in chat) and self.merges_system:
            chat = _without_system(chat)
        if any(a["role"] == b["role"] == "user" for a, b in pairwise(chat)) and self.merges_users:
            chat = _in_turns(chat)
        return self._written(chat, {**variables, "tools": given or None}, asks=asks)

    def _written(self, chat: Chat, variables: Mapping[str, Any], *, asks: bool = True) -> str:
        try:
            return self._tokenizer.apply_chat_template(
                chat,
                add_generation_prompt=asks,
                tokenize=False,
                **{**self._variables, **variables},
            )
        except Exception as error:  # templates raise their own errors through the renderer
            roles: str = ", ".join(message["role"] for message in chat)
            raise ModelError(
                f"the model's chat template refuses messages of roles {roles}: {error}"
            ) from error


def _thinking_apart(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """The same message with its thinking as gpt-oss's template takes it: beside calls, no text."""
    tagged, answer = split_thinking(message["content"] or "")
    thought = message.get("reasoning_content") or tagged
    if message["role"] != "assistant" or not thought:
        return message
    if message.get("tool_calls"):
        thought, answer = f"{thought}\n\n{answer}".strip(), ""
    return {**message, "content": answer, "thinking": thought}


def _without_system(chat: Chat) -> Chat:
    """The same chat in which the text of a system message begins the question after it."""
    found: list[Mapping[str, Any]] = []
    held: list[str] = []
    for message in chat:
        if message["role"] == "system":
            held.append(message["content"])
            continue
        if message["role"] == "user":
            message = {**message, "content": "\n\n".join((*held, message["content"]))}
        elif held:
            found.append({"role": "user", "content": "\n\n".join(held)})
        held = []
        found.append(message)
    return [*found, {"role": "user", "content": "\n\n".join(held)}] if held else found


def _in_turns(chat: Chat) -> Chat:
    """The same chat in which neighbouring messages of users are one."""
    found: list[Mapping[str, Any]] = []
    for message in chat:
        if found and message["role"] == found[-1]["role"] == "user":
            text = f"{found[-1]['content']}\n\n{message['content']}"
            found[-1] = {**found[-1], "content": text}
        else:
            found.append(message)
    return found
