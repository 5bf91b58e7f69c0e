"""Chats by the official client, over a real server and the built-in model."""

import math
from collections.abc import Iterator
from typing import Any, Literal

import openai
import pytest
from fakes import FakeEngine
from openai import OpenAI
from pydantic import BaseModel

from legos.device import ModelHandle
from legos.records.message import Completion, Continuation, Message
from legos.server.endpoints.generation import MOST_ALTERNATIVES, check_alternatives, most_tokens

QUESTION = "Nim: 5 left, last one wins.\nMoves: 1 2 3"
CHAT = [{"role": "user", "content": QUESTION}]
PART = {"type": "text", "text": QUESTION}


@pytest.fixture(scope="module")
def client(served: Any) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as made:
        yield made


def ask(client: OpenAI, **fields: Any) -> Any:
    given: dict[str, Any] = {"model": "policy", "messages": CHAT, "max_tokens": 1, **fields}
    return client.chat.completions.create(**given)


def test_an_answer_holds_its_tokens_and_their_probabilities(
    client: OpenAI, model: ModelHandle
) -> None:
    answer = ask(client, seed=3, extra_body={"return_token_ids": True}, logprobs=True)
    (choice,) = answer.choices
    prompt = model.tokenizer.render((Message("user", QUESTION),))
    assert answer.model_extra["prompt_token_ids"] == list(prompt)
    assert answer.usage.prompt_tokens == len(prompt)
    assert answer.usage.total_tokens == len(prompt) + 1
    token_ids = choice.model_extra["token_ids"]
    assert model.tokenizer.decode(token_ids) == choice.message.content
    logits = model(prompt)[-1].astype("float64")
    expected = logits[token_ids[0]] - math.log(sum(math.exp(x) for x in logits))
    assert choice.model_extra["token_logprobs"] == [pytest.approx(expected, abs=1e-4)]
    assert choice.model_extra["versions"] == [0]
    (entry,) = choice.logprobs.content
    assert (entry.token, entry.bytes) == (choice.message.content, list(entry.token.encode()))
    assert entry.logprob == choice.model_extra["token_logprobs"][0]


def test_a_conversation_goes_on_in_its_tokens(client: OpenAI, model: ModelHandle) -> None:
    asked, new = Message("user", QUESTION), Message("user", "Nim: 2 left")
    chat = (asked, Message("assistant", "3"), new)
    last = Completion(text="3", prompt_ids=model.tokenizer.render((asked,)), token_ids=())
    expected = model.tokenizer.render(Continuation(last=last, messages=chat, num_new=1))
    body = {"prompt_token_ids": last.prompt_ids, "num_new_messages": 1, "return_token_ids": True}
    messages = [{"role": one.role, "content": one.content} for one in chat]
    answer = ask(client, messages=messages, extra_body=body)
    assert answer.model_extra["prompt_token_ids"] == list(expected)
    assert expected[: len(last.prompt_ids)] == last.prompt_ids
    del body["num_new_messages"]
    for wrong in ({}, {"num_new_messages": 4}):
        with pytest.raises(openai.BadRequestError, match="num_new_messages"):
            ask(client, messages=messages, extra_body=body | wrong)


def test_a_seed_repeats_the_answer_and_answer_i_uses_the_seed_plus_i(client: OpenAI) -> None:
    many = [choice.message.content for choice in ask(client, seed=40, n=12).choices]
    alone = [ask(client, seed=40 + index).choices[0].message.content for index in range(12)]
    assert many == alone
    assert len(set(many)) > 1


def test_without_a_seed_answers_differ(client: OpenAI) -> None:
    told = {ask(client).choices[0].message.content for _ in range(20)}
    assert len(told) > 1


def test_a_stream_tells_the_same_as_a_whole_answer(client: OpenAI) -> None:
    fields = {"seed": 5, "max_tokens": 12, "temperature": 2.0, "logprobs": True, "n": 2}
    whole = ask(client, **fields)
    parts = list(ask(client, **fields, stream=True, stream_options={"include_usage": True}))
    for index, choice in enumerate(whole.choices):
        own = [part.choices[0] for part in parts if part.choices and part.choices[0].index == index]
        assert own[0].delta.role == "assistant"
        assert "".join(part.delta.content or "" for part in own) == choice.message.content
        assert [part.finish_reason for part in own if part.finish_reason] == [choice.finish_reason]
        told = [entry for part in own if part.logprobs for entry in part.logprobs.content]
        assert [entry.token for entry in told] == [entry.token for entry in choice.logprobs.content]
    assert parts[-1].choices == []
    assert parts[-1].usage == whole.usage
    assert len({part.id for part in parts}) == 1


def test_a_stop_text_is_left_out(client: OpenAI) -> None:
    said = ask(client, max_tokens=8, temperature=0).choices[0].message.content
    (cut,) = ask(client, max_tokens=8, temperature=0, stop=[said[0]]).choices
    assert (cut.message.content, cut.finish_reason) == ("", "stop")


def test_only_legal_answers(client: OpenAI) -> None:
    extra = {"choices": ["2", "31"], "restrict": True, "return_token_ids": True}
    answer = ask(client, max_tokens=None, n=8, seed=0, extra_body=extra)
    assert {choice.message.content for choice in answer.choices} <= {"2", "31"}
    for choice in answer.choices:
        legal = choice.model_extra["legal"]
        assert len(legal) == len(choice.model_extra["token_ids"])
        assert len(legal[0]) == 2


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"extra_body": {"temperatur": 1}}, "temperatur"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user", "content": "x", "mood": "bad"}]}, "mood"),
        ({"max_tokens": 10**6}, "context"),
        ({"temperature": 1e-9}, "temperature"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"response_format": {"type": "json_schema"}}, "json_schema"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"top_logprobs": 3}, "needs logprobs"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages"),
    ],
)
def test_a_bad_request_names_the_field(client: OpenAI, fields: dict, named: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        ask(client, **fields)
    assert named in str(caught.value)


def test_alternatives_bound_an_answer_without_a_limit() -> None:
    """Of most models the rest of the context, times 20, is more than a request may ask for."""
    assert most_tokens(20, 2) == MOST_ALTERNATIVES // 40
    assert most_tokens(0, 2) == math.inf
    check_alternatives(int(20 * most_tokens(20, 1)))


def test_too_many_tokens_have_the_code_of_a_context_that_is_too_small(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as text:
        client.completions.create(model="policy", prompt="hi", max_tokens=10**6)
    with pytest.raises(openai.BadRequestError) as chat:
        ask(client, max_tokens=10**6)
    for caught in (text, chat):
        assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "max_tokens")


def test_a_model_that_is_not_there_is_not_found(client: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="there are: builtin, policy"):
        ask(client, model="v7")


def test_harmless_fields_are_taken(client: OpenAI) -> None:
    answer = ask(
        client,
        user="me",
        store=False,
        metadata={"a": "b"},
        service_tier="auto",
        parallel_tool_calls=True,
        max_completion_tokens=2,
        seed=1,
        prompt_cache_key="a",
        prompt_cache_retention="24h",
        prompt_cache_options={"mode": "implicit"},
        messages=[{"role": "user", "content": [{**PART, "prompt_cache_breakpoint": {}}]}],
    )
    assert answer.usage.completion_tokens <= 2
    assert list(ask(client, stream=True, stream_options={"include_obfuscation": False}))


def test_an_answer_can_be_sent_back(client: OpenAI) -> None:
    said = ask(client, seed=1).choices[0].message
    again = ask(client, messages=[*CHAT, said, {"role": "user", "content": "again"}])
    assert again.choices


class Take(BaseModel):
    """A move."""

    take: Literal[1, 2, 3]


@pytest.mark.filterwarnings("ignore:Pydantic serializer")  # in the client
@pytest.mark.parametrize("call", [False, True])
def test_an_answer_that_the_client_has_parsed_can_be_sent_back(
    client: OpenAI, *, call: bool
) -> None:
    fields: dict[str, Any] = {"model": "policy", "max_tokens": 200, "seed": 1}
    if call:
        fields |= {"tools": [openai.pydantic_function_tool(Take)], "tool_choice": "required"}
    else:
        fields["response_format"] = Take
    chat: list[Any] = [*CHAT]
    said: Any = client.chat.completions.parse(messages=chat, **fields).choices[0].message
    assert said.tool_calls if call else said.parsed
    back = {"role": "tool", "tool_call_id": said.tool_calls[0].id, "content": "ok"} if call else {}
    chat += [said, back or {"role": "user", "content": "again"}]
    assert client.chat.completions.parse(messages=chat, **fields).choices


def test_template_variables_do_not_go_with_a_chat_that_continues(fake: Any) -> None:
    body = {
        "prompt_token_ids": [5, 6, 7],
        "messages": [{"role": "user", "content": "and now?"}],
        "num_new_messages": 1,
        "max_tokens": 3,
    }
    variables = {"chat_template_kwargs": {"enable_thinking": False}}
    with fake(FakeEngine()) as server, server.http() as http:
        assert http.post("/v1/chat/completions", json=body).status_code == 200
        refused = http.post("/v1/chat/completions", json=body | variables)
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "chat_template_kwargs"


@pytest.mark.parametrize("without", ["prompt_token_ids", "messages"])
def test_new_messages_are_counted_only_after_token_ids(fake: Any, without: str) -> None:
    body = {"prompt_token_ids": [5], "messages": [*CHAT], "num_new_messages": 1, "max_tokens": 3}
    del body[without]
    with fake(FakeEngine()) as server, server.http() as http:
        refused = http.post("/v1/chat/completions", json=body)
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "num_new_messages"
