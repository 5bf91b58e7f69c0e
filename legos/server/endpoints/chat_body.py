"""The request body of a chat: messages, tools and sampling fields."""

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, ConfigDict, Field, StringConstraints, model_validator

from legos.chat.fields import message_fields
from legos.errors import did_you_mean
from legos.records.message import MAX_ALTERNATIVES, Completion, Continuation, Message, ToolCall
from legos.server.bodies import ONE_ERROR, Body, Ids, without_nulls
from legos.server.endpoints.sampling import SamplingFields, check_schema
from legos.server.problems import Problem

Name = Annotated[str, StringConstraints(pattern=r"^[a-zA-Z0-9_.-]{1,64}$")]
Variables = Annotated[dict[str, str | bool | int | float], BeforeValidator(without_nulls)]
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
MOST_ARGUMENTS = 1 << 18  # characters of the arguments of one tool call
_OWN_VARIABLES = {"messages", "tools", "documents", "add_generation_prompt", "tokenize"}


class TextPart(Body):
    """A part of a message; only text is understood."""

    type: Literal["text"]
    text: str
    prompt_cache_breakpoint: dict[str, Any] | None = Field(None, description="Ignored.")


class CalledFunction(Body):
    """What was called."""

    name: str
    arguments: str = Field("", max_length=MOST_ARGUMENTS, description="A JSON object, as text.")
    parsed_arguments: Any = Field(None, description="Ignored: OpenAI's client adds it.")


class MadeCall(Body):
    """A call that the assistant made."""

    id: str | None = None
    type: Literal["function"] = "function"
    index: int | None = None
    function: CalledFunction


class ChatMessage(Body):
    """One message; fields that this model does not have may be there, but must be empty."""

    model_config = ConfigDict(extra="allow")

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | Annotated[list[TextPart], ONE_ERROR] | None = None
    name: str | None = None
    tool_call_id: str | None = None
    tool_calls: Annotated[list[MadeCall], ONE_ERROR] | None = None
    reasoning_content: str | None = None
    parsed: Any = Field(None, description="Ignored: OpenAI's client adds it.")

    @property
    def text(self) -> str:
        """The text of the message."""
        if isinstance(self.content, list):
            return "".join(part.text for part in self.content)
        return self.content or ""

    @property
    def plain(self) -> bool:
        """Whether the message has only a role and a text."""
        return self.role != "tool" and not self.tool_calls and not self.reasoning_content

    def record(self) -> Message:
        """The message as the kit's record, without its name and its thinking."""
        role = "system" if self.role == "developer" else self.role
        calls = tuple(
            ToolCall(call.function.name, call.function.arguments, call.id or "")
            for call in self.tool_calls or ()
        )
        return Message(role, self.text, calls, self.tool_call_id)

    def fields(self) -> dict[str, Any]:
        """The message as a chat template reads it."""
        more = {"name": self.name, "reasoning_content": self.reasoning_content}
        given = {key: value for key, value in more.items() if value is not None}
        return message_fields(self.record()) | given


class ToolFunction(Body):
    """What may be called."""

    name: Name
    description: str | None = None
    parameters: dict[str, Any] | None = Field(None, description="A JSON schema of an object.")
    strict: bool | None = None


class Tool(Body):
    """A tool; only functions are understood."""

    type: Literal["function"]
    function: ToolFunction


class ChatPrompt(Body):
    """What comes before the answer."""

    messages: Annotated[list[ChatMessage], ONE_ERROR] = Field(default=[], max_length=10_000)
    tools: Annotated[list[Tool], ONE_ERROR] | None = Field(None, max_length=256)
    chat_template_kwargs: Variables | None = Field(
        None,
        max_length=64,
        description="Further variables of the chat template, such as enable_thinking.",
    )

    def checked(self) -> list[dict[str, Any]]:
        """The messages as a chat template reads them.

        Raises:
            Problem: a message has an unknown field, or a template variable may not be set.
        """
        check_known(self.messages)
        for key in self.chat_template_kwargs or {}:
            if key in _OWN_VARIABLES or "template" in key or key.startswith(("return_", "_")):
                raise Problem(
                    400, f"chat_template_kwargs.{key} cannot be set", param="chat_template_kwargs"
                )
        return [message.fields() for message in self.messages]

    def listed_tools(self) -> list[dict[str, Any]]:
        """The tools as a chat template reads them."""
        return [tool.model_dump(exclude_none=True) for tool in self.tools or ()]

    def plain(self) -> tuple[Message, ...] | None:
        """The messages as the kit's records, or None if these cannot represent them."""
        if self.tools or self.chat_template_kwargs:
            return None
        if not all(m.plain and not m.model_extra and m.name is None for m in self.messages):
            return None
        return tuple(message.record() for message in self.messages)


class ChatBody(ChatPrompt, SamplingFields):
    """``POST /v1/chat/completions``."""

    prompt_token_ids: Ids | None = Field(
        None,
        description="The prompt as token ids, in place of messages; with num_new_messages, the "
        "conversation's tokens so far.",
    )
    num_new_messages: int | None = Field(
        None, ge=1, description="How many of the messages follow prompt_token_ids."
    )
    max_completion_tokens: int | None = Field(None, ge=1, description="Overrides max_tokens.")
    logprobs: bool | None = False
    top_logprobs: int | None = Field(0, ge=0, le=MAX_ALTERNATIVES)
    reasoning_effort: Effort | None = Field(
        None, description="Refused where the chat template has no such variable."
    )
    tool_choice: Literal["none", "auto", "required"] | Tool | None = None
    parallel_tool_calls: bool | None = Field(
        None, description="False: of several tool calls in an answer only the first is reported."
    )
    modalities: list[Literal["text"]] | None = None

    @model_validator(mode="after")
    def _bounded(self) -> Self:
        """Refuse a forced call of tools with large schemas while the body is parsed."""
        if self.tool_choice not in (None, "none", "auto"):
            tools, _ = self.callable_tools()
            check_schema(json.dumps([tool["function"].get("parameters") for tool in tools]))
        return self

    def continuation(self, ids: Sequence[int]) -> Continuation:
        """The messages as a conversation that continues these tokens.

        Raises:
            Problem: it is not said which messages are new, or there are fewer, or there are
                variables for the chat template.
        """
        if self.chat_template_kwargs:
            text = "a chat that continues prompt_token_ids takes no variables of the chat template"
            raise Problem(400, text, param="chat_template_kwargs")
        if self.num_new_messages is None:
            raise Problem(
                400,
                "give messages or prompt_token_ids, or num_new_messages too, how many of the "
                "messages follow the token ids",
                param="messages",
            )
        if self.num_new_messages > (given := len(self.messages)):
            text = f"num_new_messages is {self.num_new_messages}, but there are {given} messages"
            raise Problem(400, text, param="num_new_messages")
        return Continuation(
            last=Completion(text="", prompt_ids=tuple(ids)),
            messages=tuple(message.record() for message in self.messages),
            num_new=self.num_new_messages,
        )

    def callable_tools(self) -> tuple[Sequence[Mapping[str, Any]], bool]:
        """The tools that may be called, and whether one of them must be.

        Raises:
            Problem: ``tool_choice`` names a tool that does not exist.
        """
        tools = self.listed_tools()
        choice = self.tool_choice
        if choice in (None, "auto"):
            return tools, False
        if choice == "none":
            return [], False
        if isinstance(choice, Tool):
            tools = [tool for tool in tools if tool["function"]["name"] == choice.function.name]
        if not tools:
            raise Problem(400, "tool_choice asks for a tool that is not there", param="tool_choice")
        return tools, True


def check_known(messages: Sequence[ChatMessage]) -> None:
    """Refuse a message with an unknown field.

    Raises:
        Problem: the message names it.
    """
    for index, message in enumerate(messages):
        for key, value in (message.model_extra or {}).items():
            if value not in (None, [], ""):
                hint = did_you_mean(key, ChatMessage.model_fields)
                raise Problem(
                    400, f"messages.{index}.{key[:100]} is not known{hint}", param="messages"
                )
