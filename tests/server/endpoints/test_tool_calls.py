"""Tool calls over HTTP: what the server reports may be sent back, and cut calls stay as sampled."""

import json
from pathlib import Path
from typing import Any

import pytest
from fakes import FakeEngine
from openai import OpenAI
from tiny_folders import write_tiny_model

from legos.chat.load import load_tokenizer
from legos.chat.tokenizer import ChatTokenizer

TOOLS = [{"type": "function", "function": {"name": "now", "description": "Tells the time."}}]
CHAT: list[Any] = [{"role": "user", "content": "What time is it?"}]
BEGIN = (
    "{%- for message in messages %}{{- '<|user|>' if message.role == 'user' else '<|assistant|>' }}"
    "{{- message.content }}{%- for call in message.tool_calls or [] %}{{- call.function.name }}"
)
END = "{%- endfor %}{{- '<|end|>' }}{%- endfor %}{{- tools or '' }}{{- '<|assistant|>' }}"
TEMPLATES = {
    "plain": "",
    "iterates": "{%- for k, v in call.function.arguments.items() %}{{- k + '=' ~ v }}{%- endfor %}",
    "tojson": "{{- call.function.arguments | tojson }}",
    "joins": "{{- '(' + call.function.arguments | map('string') | join(',') + ')' }}",
}


@pytest.fixture(scope="module", params=TEMPLATES)
def own(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ChatTokenizer:
    """A tokenizer whose template prints the arguments of calls in one of the usual ways."""
    folder: Path = write_tiny_model(tmp_path_factory.mktemp(request.param))
    if printed := TEMPLATES[request.param]:
        file = folder / "tokenizer_config.json"
        (folder / "chat_template.jinja").unlink(missing_ok=True)
        template = BEGIN + printed + END
        file.write_text(json.dumps({**json.loads(file.read_text()), "chat_template": template}))
    return load_tokenizer(folder)


def saying(tokenizer: ChatTokenizer, text: str) -> FakeEngine:
    return FakeEngine(lambda _: (*tokenizer.encode(text), *tokenizer.end_ids))


def client_of(url: str) -> OpenAI:
    return OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)


def ask(client: OpenAI, **fields: Any) -> Any:
    given: dict[str, Any] = {"model": "base", "messages": CHAT, "tools": TOOLS, **fields}
    answer: Any = client.chat.completions.create(**given)
    return list(answer) if fields.get("stream") else answer.choices[0]


def calling(arguments: str) -> list[Any]:
    """A chat in which a tool was called with a text as arguments."""
    call = {"id": "1", "type": "function", "function": {"name": "now", "arguments": arguments}}
    result = {"role": "tool", "tool_call_id": "1", "content": "noon"}
    return [*CHAT, {"role": "assistant", "content": None, "tool_calls": [call]}, result]


@pytest.mark.nightly
@pytest.mark.parametrize("arguments", ["", " ", "null", "{}", "[1]", "3", '"x"', "x", '{"a": '])
def test_any_text_may_be_the_arguments_of_a_former_call(
    fake: Any, own: ChatTokenizer, arguments: str
) -> None:
    engine = saying(own, "noon")
    with fake(engine, own=own) as server, client_of(server.url) as client:
        assert ask(client, messages=calling(arguments)).message.content == "noon"
        ask(client, messages=calling("{}"))
    first, none = (own.decode(request.prompt_ids) for request in engine.requests)
    assert (first == none) is (arguments in ("", " ", "null", "{}"))


@pytest.mark.nightly
@pytest.mark.parametrize(
    "arguments", ["", ', "arguments": null', ', "arguments": ""', ', "arguments": [1]']
)
def test_a_call_that_the_server_reports_may_be_sent_back(
    fake: Any, own: ChatTokenizer, arguments: str
) -> None:
    said = f'<tool_call>{{"name": "now"{arguments}}}</tool_call>'
    with fake(saying(own, said), own=own) as server, client_of(server.url) as client:
        message = ask(client).message
        (call,) = message.tool_calls
        assert json.loads(call.function.arguments) == ([1] if "[1]" in arguments else {})
        result = {"role": "tool", "tool_call_id": call.id, "content": "noon"}
        back = message.model_dump(exclude_none=True)
        again = ask(client, messages=[*CHAT, back, result])
    assert again.message.tool_calls[0].function == call.function


SAID = 'One. <tool_call> {"name": "now"} </tool_call> <tool_call>two</tool_call> \n'


def test_a_cut_call_is_the_sampled_text(fake: Any, tokenizer: ChatTokenizer) -> None:
    first = SAID.index("</tool_call>") + len("</tool_call>")
    with fake(saying(tokenizer, SAID)) as server, client_of(server.url) as client:
        for length in range(1, len(SAID) + 1):
            choice = ask(client, max_tokens=length)
            deltas = [part.choices[0].delta for part in ask(client, max_tokens=length, stream=True)]
            content = "".join(delta.content or "" for delta in deltas)
            if length < first:
                assert (content, choice.message.tool_calls) == (SAID[:length], None)
            else:  # the blanks around a call belong to it
                assert content == "One." + SAID[first:length].lstrip()
                assert len(choice.message.tool_calls) == 1
            assert (choice.message.content or "") == content
            assert choice.finish_reason == "length"


def test_a_call_without_an_end_mark_counts_if_the_model_ended_there(
    fake: Any, tokenizer: ChatTokenizer
) -> None:
    said = SAID[: SAID.index("</tool_call>")]
    with fake(saying(tokenizer, said)) as server, client_of(server.url) as client:
        ended = ask(client)
        cut = ask(client, max_tokens=len(said))
    assert (ended.finish_reason, len(ended.message.tool_calls)) == ("tool_calls", 1)
    assert (cut.finish_reason, cut.message.tool_calls) == ("length", None)
    assert cut.message.content == said


def test_a_forced_call_that_is_nested_too_deeply_is_text(
    fake: Any, tokenizer: ChatTokenizer
) -> None:
    said = '{"name": "now", "arguments": ' + "[" * 990
    with fake(saying(tokenizer, said)) as server, client_of(server.url) as client:
        choice = ask(client, tool_choice="required", max_tokens=len(said))
    assert (choice.message.content, choice.message.tool_calls) == (said, None)
