"""Public clients of OpenAI's API against a real server, with the built-in model.

Their packages would narrow the versions of others, so they get an environment of their own::

    uv run --isolated --with litellm --with langchain-openai --with 'pydantic-ai-slim[openai]' \
        --with openai-agents pytest -m optional tests/server/test_public_clients.py

The model has learned games and no language: what is tested is that every request is understood,
that answers have the form that was asked for, and that a conversation with tool calls can go on.
"""

import asyncio
import gc
import json
from collections.abc import Iterator
from typing import Any, Literal

import pytest
from openai import OpenAI
from pydantic import BaseModel

pytestmark = [pytest.mark.optional, pytest.mark.filterwarnings("ignore")]

ASKED = "Nim: 5 left, last one wins.\nMoves: 1 2 3"
CHAT: list[Any] = [{"role": "user", "content": ASKED}]
KEY = "none"


class Move(BaseModel):
    """What to take."""

    take: Literal[1, 2, 3]
    sure: bool


def move(take: Literal[1, 2, 3], sure: bool) -> str:
    """Make a move.

    Args:
        take: how many to take.
        sure: whether the move is sure.
    """
    assert take in (1, 2, 3)
    assert isinstance(sure, bool)
    return f"{5 - take} left"


TOOL: Any = {
    "type": "function",
    "function": {
        "name": "move",
        "description": "Make a move.",
        "parameters": {**Move.model_json_schema(), "additionalProperties": False},
    },
}


@pytest.fixture
def url(served: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # else it is downloaded
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    yield f"{served.url}/v1"
    gc.collect()  # connections that the packages leave open warn here


def test_openai(url: str) -> None:
    with OpenAI(base_url=url, api_key=KEY, max_retries=0) as client:
        ask: dict[str, Any] = {"model": "policy", "messages": CHAT, "max_tokens": 8, "seed": 1}
        whole = client.chat.completions.create(**ask)
        parts = client.chat.completions.create(
            **ask, stream=True, stream_options={"include_usage": True}
        )
        found = list(parts)
        assert found[-1].usage == whole.usage
        said = "".join(p.choices[0].delta.content or "" for p in found if p.choices)
        assert said == whole.choices[0].message.content

        parsed = client.chat.completions.parse(**(ask | {"max_tokens": 400}), response_format=Move)
        assert parsed.choices[0].message.parsed

        forced = client.chat.completions.create(
            **(ask | {"max_tokens": 400}), tools=[TOOL], tool_choice="required"
        )
        message = forced.choices[0].message
        call = (message.tool_calls or [])[0]
        assert call.type == "function"
        result = move(**json.loads(call.function.arguments))
        history = [
            *CHAT,
            message.model_dump(),  # with nulls
            {"role": "tool", "content": result, "tool_call_id": call.id},
        ]
        again = client.chat.completions.create(
            **(ask | {"messages": history}), tools=[TOOL], tool_choice="auto"
        )
        assert again.choices[0].finish_reason in ("stop", "length")
        with client.chat.completions.stream(
            **(ask | {"max_tokens": 400}), tools=[TOOL], tool_choice="required"
        ) as stream:
            streamed = stream.get_final_completion().choices[0].message.tool_calls or ()
        assert [one.function.arguments for one in streamed] == [call.function.arguments]


def test_litellm(url: str) -> None:
    litellm = pytest.importorskip("litellm")
    ask: dict[str, Any] = {
        "model": "openai/policy",
        "messages": CHAT,
        "api_base": url,
        "api_key": KEY,
        "seed": 1,
        "num_retries": 0,
    }
    whole = litellm.completion(**ask, max_tokens=8)
    parts = list(litellm.completion(**ask, max_tokens=8, stream=True))
    said = "".join(part.choices[0].delta.content or "" for part in parts)
    assert said == whole.choices[0].message.content
    text = litellm.completion(**ask, max_tokens=400, response_format=Move)
    assert Move.model_validate_json(text.choices[0].message.content)
    tools = {"tools": [TOOL], "tool_choice": "required", "max_tokens": 400}
    forced = litellm.completion(**ask, **tools)
    message = forced.choices[0].message
    (call,) = message.tool_calls
    result = move(**json.loads(call.function.arguments))
    history = [
        *CHAT,
        message.model_dump(),
        {"role": "tool", "content": result, "tool_call_id": call.id, "name": "move"},
    ]
    again = litellm.completion(**(ask | {"messages": history}), tools=[TOOL], max_tokens=8)
    assert again.choices[0].finish_reason in ("stop", "length")
    streamed = litellm.stream_chunk_builder(list(litellm.completion(**ask, **tools, stream=True)))
    (same,) = streamed.choices[0].message.tool_calls
    assert same.function.arguments == call.function.arguments


def test_langchain(url: str) -> None:
    langchain = pytest.importorskip("langchain_openai")
    messages = pytest.importorskip("langchain_core.messages")
    chat = langchain.ChatOpenAI(
        model="policy", base_url=url, api_key=KEY, max_tokens=400, seed=1, max_retries=0
    )
    whole = chat.invoke(ASKED)
    assert "".join(part.content for part in chat.stream(ASKED)) == whole.content
    assert whole.usage_metadata["output_tokens"] > 0
    for method in ("json_schema", "function_calling"):
        shaped = chat.with_structured_output(Move, method=method, strict=True)
        assert isinstance(shaped.invoke(ASKED), Move)
    bound = chat.bind_tools([move], tool_choice="any", strict=True)
    told = bound.invoke(ASKED)
    (call,) = told.tool_calls
    history = [
        messages.HumanMessage(ASKED),
        told,
        messages.ToolMessage(move(**call["args"]), tool_call_id=call["id"]),
    ]
    assert chat.bind_tools([move]).invoke(history).response_metadata["finish_reason"]


def test_pydantic_ai(url: str) -> None:
    ai = pytest.importorskip("pydantic_ai")
    models = pytest.importorskip("pydantic_ai.models.openai")
    providers = pytest.importorskip("pydantic_ai.providers.openai")
    provider = providers.OpenAIProvider(base_url=url, api_key=KEY)
    model = models.OpenAIChatModel("policy", provider=provider)
    settings = {"max_tokens": 400, "seed": 1}
    plain = ai.Agent(model, model_settings=settings)
    assert isinstance(plain.run_sync(ASKED).output, str)
    for output in (ai.NativeOutput(Move), ai.ToolOutput(Move)):
        found = ai.Agent(model, output_type=output, model_settings=settings).run_sync(ASKED)
        assert isinstance(found.output, Move)
        more = plain.run_sync("And now?", message_history=found.all_messages())
        assert isinstance(more.output, str)

    async def streamed() -> str:
        async with plain.run_stream(ASKED) as run:
            return await run.get_output()

    assert asyncio.run(streamed()) == plain.run_sync(ASKED).output


def test_openai_agents(url: str) -> None:
    agents = pytest.importorskip("agents")
    from openai import AsyncOpenAI

    agents.set_tracing_disabled(disabled=True)
    client = AsyncOpenAI(base_url=url, api_key=KEY, max_retries=0)
    model = agents.OpenAIChatCompletionsModel(model="policy", openai_client=client)
    settings = agents.ModelSettings(max_tokens=400, extra_body={"seed": 1})
    plain: dict[str, Any] = {"name": "player", "model": model, "model_settings": settings}

    async def play() -> None:
        whole = await agents.Runner.run(agents.Agent(**plain), ASKED)
        assert isinstance(whole.final_output, str)
        run = agents.Runner.run_streamed(agents.Agent(**plain), ASKED)
        async for _ in run.stream_events():
            pass
        assert run.final_output == whole.final_output
        shaped = await agents.Runner.run(agents.Agent(**plain, output_type=Move), ASKED)
        assert isinstance(shaped.final_output, Move)
        required = agents.ModelSettings(
            max_tokens=400, tool_choice="required", extra_body={"seed": 1}
        )
        tools = [agents.function_tool(move)]
        caller = agents.Agent(**{**plain, "model_settings": required}, tools=tools)
        called = await agents.Runner.run(caller, ASKED)  # calls, is told, and answers
        kinds = [item.type for item in called.new_items]
        assert kinds[:2] == ["tool_call_item", "tool_call_output_item"]
        assert kinds[-1] == "message_output_item"
        await client.close()

    asyncio.run(play())
