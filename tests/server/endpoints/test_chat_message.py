"""Tools, thinking and JSON: what a scripted model says, and what the official client is told."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import openai
import pytest
from fakes import FakeEngine
from openai import OpenAI
from tiny_folders import write_tiny_model

from legos.chat.load import load_tokenizer
from legos.chat.tokenizer import ChatTokenizer
from legos.mlx.model.tools import tool_format
from legos.records.message import Generated
from legos.wiring.model import load_model

WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Tells the weather.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 8}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
CALL = '<tool_call>{"name": "weather", "arguments": {"city": "Bonn"}}</tool_call>'
CHAT = [{"role": "user", "content": "Weather in Bonn?"}]
# In the form of Qwen: mlx-lm finds the form of tool calls in it.
TEMPLATE = (
    "{%- if tools %}{{- '<|system|>' + (tools | tojson) + '<|end|>' }}{%- endif %}"
    "{%- for message in messages %}{{- '<|user|>' if message.role == 'user' else '<|assistant|>' }}"
    "{{- message.content }}"
    "{%- for tool_call in message.tool_calls or [] %}"
    "{{- '<tool_call>' + tool_call.function.name + tool_call.function.arguments.city }}"
    "{%- endfor %}{{- '<|end|>' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|assistant|>' }}"
    "{%- if thinking %}{{- '<think>\\n' }}{%- endif %}{%- endif %}"
    "{%- if reasoning_effort %}{{- reasoning_effort }}{%- endif %}"
)


@pytest.fixture(scope="module")
def taught(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder whose template knows tools and thinking."""
    folder = write_tiny_model(tmp_path_factory.mktemp("taught"))
    file = folder / "tokenizer_config.json"
    config = json.loads(file.read_text())
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    file.write_text(json.dumps({**config, "chat_template": TEMPLATE}))
    return folder


def saying(tokenizer: ChatTokenizer, *texts: str) -> FakeEngine:
    """Says the texts, one for each request."""
    left = list(texts)
    return FakeEngine(
        lambda _: (*tokenizer.encode(left.pop(0) if len(left) > 1 else left[0]), *tokenizer.end_ids)
    )


def ask(url: str, **fields: Any) -> Any:
    with OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        given: dict[str, Any] = {"model": "base", "messages": CHAT, "tools": [WEATHER], **fields}
        answer = client.chat.completions.create(**given)
        return list(answer) if fields.get("stream") else answer


def test_a_call_is_told_apart_from_the_text(fake: Any, tokenizer: ChatTokenizer) -> None:
    with fake(saying(tokenizer, f"Let me see. {CALL}")) as server:
        (choice,) = ask(server.url).choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == "Let me see."
    (call,) = choice.message.tool_calls
    assert (len(call.id), call.id.isalnum()) == (9, True)  # Mistral's template refuses others
    assert call.function.name == "weather"
    assert json.loads(call.function.arguments) == {"city": "Bonn"}


def test_a_streamed_call_is_the_same(fake: Any, tokenizer: ChatTokenizer) -> None:
    with fake(saying(tokenizer, f"Let me see. {CALL} {CALL}")) as server:
        parts = ask(server.url, stream=True)
    deltas = [part.choices[0].delta for part in parts]
    assert "".join(delta.content or "" for delta in deltas) == "Let me see."
    calls = [call for delta in deltas for call in delta.tool_calls or []]
    assert [call.index for call in calls] == [0, 1]
    assert [json.loads(call.function.arguments) for call in calls] == [{"city": "Bonn"}] * 2
    assert parts[-1].choices[0].finish_reason == "tool_calls"


@pytest.mark.parametrize("stream", [False, True])
def test_only_the_first_call_is_told_where_calls_are_not_parallel(
    fake: Any, tokenizer: ChatTokenizer, *, stream: bool
) -> None:
    with fake(saying(tokenizer, f"{CALL} {CALL.replace('Bonn', 'Rome')} {CALL}")) as server:
        answer = ask(server.url, parallel_tool_calls=False, stream=stream)
    choices = [part.choices[0] for part in (answer if stream else [answer])]
    said = [choice.delta if stream else choice.message for choice in choices]
    (call,) = [call for message in said for call in message.tool_calls or []]
    assert json.loads(call.function.arguments) == {"city": "Bonn"}
    assert choices[-1].finish_reason == "tool_calls"


def test_what_only_looks_like_a_call_stays_text(fake: Any, tokenizer: ChatTokenizer) -> None:
    said = "<tool_call>weather?</tool_call>"
    with fake(saying(tokenizer, said)) as server:
        (choice,) = ask(server.url).choices
        (unasked,) = ask(server.url, tool_choice="none").choices
    assert (choice.message.content, choice.finish_reason) == (said, "stop")
    assert choice.message.tool_calls is None
    assert unasked.message.content == said


def test_a_model_without_tools_is_told_of_them(fake: Any, tokenizer: ChatTokenizer) -> None:
    engine = saying(tokenizer, "ok")
    answered = [
        *CHAT,
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {
                    "id": "1",
                    "type": "function",
                    "function": {"name": "weather", "arguments": '{"city": "Bonn"}'},
                }
            ],
        },
        {"role": "tool", "tool_call_id": "1", "content": "rain"},
    ]
    with fake(engine) as server:
        ask(server.url, messages=answered)
    prompt = tokenizer.decode(engine.requests[0].prompt_ids)
    assert "Tells the weather." in prompt
    assert '<tool_call>{"name": "weather", "arguments": {"city": "Bonn"}}</tool_call>' in prompt
    assert "<tool_response>rain</tool_response>" in prompt


def test_a_template_with_tools_renders_them_and_its_form_is_found(taught: Path, fake: Any) -> None:
    own = load_tokenizer(taught)
    handle = load_model(taught)
    form = handle.tool_format
    handle.close()
    assert (form.start, form.end) == ("<tool_call>", "</tool_call>")
    engine = saying(own, CALL)
    history: list[Any] = [
        *CHAT,
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": "1", "type": "function", "function": json.loads(CALL[11:-12])}],
        },
    ]
    history[1]["tool_calls"][0]["function"]["arguments"] = '{"city": "Bonn"}'
    with fake(engine, own=own, tools=form) as server:
        (choice,) = ask(server.url, messages=history).choices
    assert choice.message.tool_calls[0].function.name == "weather"
    prompt = own.decode(engine.requests[0].prompt_ids, controls=True)
    assert '"description": "Tells the weather."' in prompt
    assert "<tool_call>weatherBonn<|end|><|assistant|>" in prompt


# In the form of Llama 3, whose calls have no tags.
BARE = (
    "{%- if tools %}{{- 'Respond in the format "
    '{"name": function name, "parameters": dictionary of argument name and its value}.'
    "' }}{{- tools | tojson }}{%- endif %}"
    "{%- for message in messages %}{{- '<|user|>' + message.content + '<|end|>' }}{%- endfor %}"
    "{{- '<|assistant|>' }}"
)


def test_a_call_without_tags_is_found(tmp_path: Path, fake: Any) -> None:
    file = write_tiny_model(tmp_path) / "tokenizer_config.json"
    (tmp_path / "chat_template.jinja").unlink(missing_ok=True)
    file.write_text(json.dumps({**json.loads(file.read_text()), "chat_template": BARE}))
    own, form = load_tokenizer(tmp_path), tool_format(tmp_path)
    call = '{"type": "function", "name": "weather", "parameters": {"city": "Bonn"}}'
    other = call.replace("weather", "whether")
    with fake(saying(own, call, call, other), own=own, tools=form) as server:
        (choice,) = ask(server.url).choices
        parts = ask(server.url, stream=True)
        (text,) = ask(server.url).choices
    streamed = [made for part in parts for made in part.choices[0].delta.tool_calls or []]
    for (found,) in (choice.message.tool_calls, streamed):
        assert found.function.name == "weather"
        assert json.loads(found.function.arguments) == {"city": "Bonn"}
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", None)
    assert (text.finish_reason, text.message.content) == ("stop", other)


def test_thinking_is_told_apart(taught: Path, fake: Any) -> None:
    own = load_tokenizer(taught)
    engine = saying(own, "hm, well</think>\n\nRain.")
    extra = {"chat_template_kwargs": {"thinking": True}}
    with fake(engine, own=own) as server:
        whole = ask(server.url, tools=None, extra_body=extra).choices[0].message
        parts = ask(server.url, tools=None, extra_body=extra, stream=True)
    assert (whole.content, whole.model_extra["reasoning_content"]) == ("Rain.", "hm, well")
    deltas = [part.choices[0].delta for part in parts]
    assert "".join(delta.content or "" for delta in deltas) == "Rain."
    thought = "".join(delta.model_extra.get("reasoning_content", "") for delta in deltas)
    assert thought == "hm, well"


@pytest.mark.parametrize("stream", [False, True])
def test_a_completion_of_an_opening_tag_is_the_text_of_its_tokens(
    taught: Path, fake: Any, *, stream: bool
) -> None:
    own = load_tokenizer(taught)
    with (
        fake(saying(own, "hm, well"), own=own) as server,
        OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client,
    ):
        answer: Any = client.completions.create(model="base", prompt="<think>", stream=stream)
        parts = list(answer) if stream else [answer]
    assert "".join(part.choices[0].text for part in parts) == "hm, well"


def test_the_effort_of_reasoning_is_told_to_templates_that_know_it(
    taught: Path, fake: Any, tokenizer: ChatTokenizer
) -> None:
    own = load_tokenizer(taught)
    engine = saying(own, "4")
    with fake(engine, own=own) as server:
        ask(server.url, reasoning_effort="low")
    assert own.decode(engine.requests[0].prompt_ids).endswith("low")
    with (
        fake(saying(tokenizer, "4")) as server,
        pytest.raises(openai.BadRequestError, match="has no reasoning_effort"),
    ):
        ask(server.url, reasoning_effort="low")


@pytest.mark.parametrize("restrict", [False, True])
@pytest.mark.parametrize("stream", [False, True])
def test_a_choice_is_no_thinking(taught: Path, fake: Any, *, stream: bool, restrict: bool) -> None:
    own = load_tokenizer(taught)
    ids = (*own.encode("2"), own.end_ids[0])
    said = Generated(
        token_ids=ids,
        logprobs=(0.0,) * len(ids),
        versions=(0,) * len(ids),
        legal=tuple((token,) for token in ids),
    )
    extra = {
        "chat_template_kwargs": {"thinking": True},
        "choices": ["1", "2"],
        "restrict": restrict,
    }
    with fake(FakeEngine(lambda _: said), own=own) as server:
        answer = ask(server.url, tools=None, extra_body=extra, stream=stream)
    choices = [part.choices[0] for part in (answer if stream else [answer])]
    messages = [choice.delta if stream else choice.message for choice in choices]
    assert "".join(message.content or "" for message in messages) == "2"
    assert not any("reasoning_content" in message.model_extra for message in messages)


@pytest.mark.parametrize(
    "choice", ["required", {"type": "function", "function": {"name": "weather"}}]
)
def test_a_model_can_be_made_to_call(served: Any, choice: object) -> None:
    answer = ask(served.url, model="policy", tool_choice=choice, seed=1, max_tokens=200)
    (call,) = answer.choices[0].message.tool_calls
    assert call.function.name == "weather"
    assert set(json.loads(call.function.arguments)) == {"city"}
    assert answer.choices[0].finish_reason == "tool_calls"
    assert answer.choices[0].message.content is None


@pytest.mark.parametrize(
    "form",
    [
        {"type": "json_object"},
        {
            "type": "json_schema",
            "json_schema": {
                "name": "move",
                "strict": True,
                "schema": {
                    "type": "object",
                    "properties": {"move": {"enum": [1, 2, 3]}},
                    "required": ["move"],
                    "additionalProperties": False,
                },
            },
        },
    ],
)
def test_json_can_be_demanded(served: Any, form: Mapping[str, Any]) -> None:
    answer = ask(
        served.url, model="policy", tools=None, response_format=form, seed=3, max_tokens=400
    )
    (choice,) = answer.choices
    if choice.finish_reason == "stop":
        said = json.loads(choice.message.content)
        assert isinstance(said, dict)
        if form["type"] == "json_schema":
            assert said["move"] in (1, 2, 3)
    else:
        assert form["type"] == "json_object"
        assert choice.message.content.lstrip().startswith("{")


@pytest.mark.parametrize(("choice", "calls"), [("auto", 1), ("required", 1), ("none", 0)])
def test_a_model_may_call_a_tool_in_place_of_json(
    fake: Any, tokenizer: ChatTokenizer, choice: str, calls: int
) -> None:
    engine = saying(tokenizer, CALL[11:-12] if choice == "required" else CALL)
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}
    with fake(engine) as server:
        answer = ask(server.url, response_format=form, tool_choice=choice).choices[0]
    grammar = engine.requests[0].grammar
    assert grammar is not None
    allowed = grammar.begin().allowed()
    assert len(answer.message.tool_calls or ()) == calls
    assert bool(allowed[tokenizer.encode("<")[0]]) is (choice == "auto")
    assert allowed[tokenizer.encode("{")[0]]


def test_a_schema_that_is_none_is_refused(served: Any) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "colour"}}}
    with pytest.raises(openai.BadRequestError, match="schema"):
        ask(served.url, model="policy", tools=None, response_format=form)


def test_a_tool_that_is_not_there_cannot_be_chosen(served: Any) -> None:
    choice = {"type": "function", "function": {"name": "wether"}}
    with pytest.raises(openai.BadRequestError, match="tool_choice"):
        ask(served.url, model="policy", tool_choice=choice)
