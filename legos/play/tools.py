"""Python functions as tools of a model: their description, and calls with checked arguments."""

import inspect
import json
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any

from msgspec.structs import replace
from pydantic import PydanticUserError, TypeAdapter, ValidationError
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import PydanticSerializationError, to_json

from legos.arena.answer import UNREADABLE, Reply
from legos.errors import ArenaError, LegosError, RunError, did_you_mean, text_of
from legos.play.play_state import SeatState
from legos.play.slot import Slot
from legos.records.message import Message, Sampling, ToolCall
from legos.records.numbers import shown
from legos.timeouts import on_own_thread

Tool = Callable[..., Any]
"""A function, or coroutine function, whose parameters have types; its docstring describes it."""

LONGEST_RESULT = 16_000  # characters of a result that the model sees


class _Schema(GenerateJsonSchema):
    """A JSON schema without titles, which only repeat the names of parameters."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        """No title is set."""
        return False


class Toolbox:
    """The tools of one question.

    Attributes:
        described: the tools in the format of OpenAI's API, as JSON.
    """

    def __init__(self, functions: Sequence[Tool], role: str, choices: object = None) -> None:
        """Describe functions to a model.

        Args:
            functions: the tools.
            role: the role that is asked, for messages.
            choices: the legal answers of the question; there must be none.

        Raises:
            ArenaError: they are no list, or one is no function, has a parameter without a type,
                or has another's name.
        """
        if choices is not None:
            raise ArenaError(f"ask({role!r}, ...) has choices and tools; give parse for the answer")
        if not isinstance(functions, Sequence) or isinstance(functions, str):
            given = shown(functions)
            raise ArenaError(f"the tools for {role!r} are {given}; expected a list of functions")
        self._tools = {function.__name__: function for function in map(_checked, functions)}
        if len(self._tools) < len(functions):
            names = ", ".join(function.__name__ for function in functions)
            raise ArenaError(f"the tools for {role!r} are {names}; expected different names")
        if not functions:
            raise ArenaError(f"the tools for {role!r} are an empty list; leave tools out")
        self.described = json.dumps([_described(function) for function in self._tools.values()])

    async def call(self, call: ToolCall) -> str:
        """Call a tool and return its result as text; mistakes in a call become a message.

        Raises:
            Exception: the tool raised an error that is no mistake in the arguments.
        """
        function = self._tools.get(call.name)
        if function is None:
            return f"error: no tool {call.name!r}{did_you_mean(call.name, self._tools)}"
        try:
            # A function may take long, so it runs on a thread; a coroutine function only begins.
            begin = partial(_adapter(function).validate_json, call.arguments)
            result: Any = await on_own_thread(begin)
            if inspect.isawaitable(result):
                result = await result
        except ValidationError as error:
            return f"error: {_complaint(error)}"
        except RunError as error:
            return f"error: {text_of(error)}"
        except UNREADABLE as error:
            if isinstance(error, LegosError):
                raise
            return f"error: {type(error).__name__}: {text_of(error)}"
        try:
            text = result if isinstance(result, str) else to_json(result, fallback=text_of).decode()
        except PydanticSerializationError as error:
            raise TypeError(
                f"tool {call.name!r} returned {shown(result)}, which cannot be written as JSON "
                f"({error}); return a text, or what JSON can hold"
            ) from None
        if len(text) > LONGEST_RESULT:
            return f"{text[:LONGEST_RESULT]}... ({len(text)} characters, cut)"
        return text

    async def ask(
        self,
        state: SeatState,
        question: Message | tuple[int, ...],
        sampling: Sampling,
        parse: Callable[[str], Any] | None,
        *,
        slot: Slot,
        rounds: int,
    ) -> tuple[Reply, str | None]:
        """Ask a seat until its reply calls no tool; the results of calls are the next question.

        Args:
            state: the seat.
            question: the question.
            sampling: sampling parameters, with these tools.
            parse: turns the answer into a value.
            slot: the play's slot, released while tools run.
            rounds: maximum number of replies that call tools.

        Returns:
            The reply that calls no tool, and why it is not legal, or None.

        Raises:
            ArenaError: the question is token ids, into which no tools can be written.
        """
        if not isinstance(question, Message):
            raise ArenaError(
                f"{state.seat.role!r} is asked with tools and token ids; tools are written into a "
                "prompt of text"
            )
        talk = state
        if not state.remembers:  # the calls and their results are a conversation of their own
            talk = replace(state, memory=list(state.memory), remembers=True)
        if talk.tools != self.described:  # the conversation's tokens do not describe these
            talk.tools, talk.last = self.described, None
        made: tuple[ToolCall, ...] = ()
        left = rounds
        reply, reason = await talk.ask_once(question, sampling, parse)
        while (calls := reply.completion.tool_calls) and left > 0:
            left -= 1
            made += calls
            async with slot.released(paused=False):
                results = [
                    Message("tool", await self.call(call), tool_call_id=call.id) for call in calls
                ]
            talk.memory += results[:-1]
            sampling = replace(sampling, seed=state.next_seed())
            reply, reason = await talk.ask_once(results[-1], sampling, parse)
        if not calls or parse is None:
            return replace(reply, tool_calls=made), reason
        talk.turns[-1] = replace(talk.turns[-1], legal=False)
        most = f"no more than {rounds} replies may call tools"
        return reply, f"The answer is a tool call, and {most}."


def _checked(function: Any) -> Tool:
    """A function that can be described.

    Raises:
        ArenaError: it cannot.
    """
    if not inspect.isroutine(function):
        raise ArenaError(f"a tool is {shown(function)}; expected a function with typed parameters")
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.annotation is parameter.empty:
            raise ArenaError(
                f"parameter {name!r} of tool {function.__name__!r} has no type; write {name}: str"
            )
    return function


def _described(function: Tool) -> dict[str, Any]:
    try:
        parameters = _adapter(function).json_schema(schema_generator=_Schema)
    except (PydanticUserError, NameError) as error:
        raise ArenaError(
            f"tool {function.__name__!r} cannot be described to a model: {error}"
        ) from error
    text = inspect.getdoc(function)
    about = {"description": text} if text else {}
    described = {"name": function.__name__, **about, "parameters": parameters}
    return {"type": "function", "function": described}


@lru_cache(maxsize=64)
def _adapter(function: Tool) -> TypeAdapter[Any]:
    """Checks the arguments of a call and makes it."""
    adapted: Any = function
    return TypeAdapter[Any](adapted)


def _complaint(error: ValidationError) -> str:
    """What is wrong with the arguments of a call."""
    complaints = (
        f"{'.'.join(map(str, one['loc']))}: {one['msg']}" if one["loc"] else one["msg"]
        for one in error.errors(include_url=False)
    )
    return "; ".join(complaints)
