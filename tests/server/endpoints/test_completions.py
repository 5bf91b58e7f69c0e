"""Completions of texts and token ids by the official client."""

import asyncio
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI, OpenAI

from legos.chat.tokenizer import ChatTokenizer


@pytest.fixture(scope="module")
def client(served: Any) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as made:
        yield made


def ask(client: OpenAI, prompt: Any, **fields: Any) -> Any:
    given: dict[str, Any] = {"model": "policy", "prompt": prompt, "max_tokens": 3, "seed": 2}
    return client.completions.create(**(given | fields))


def test_a_text_and_its_tokens_are_the_same_prompt(
    client: OpenAI, tokenizer: ChatTokenizer
) -> None:
    ids = list(tokenizer.encode("Nim: 5", specials=True))
    by_text = ask(client, "Nim: 5", extra_body={"return_token_ids": True})
    by_ids = ask(client, ids, extra_body={"return_token_ids": True})
    assert by_text.choices == by_ids.choices
    assert by_text.choices[0].model_extra["prompt_token_ids"] == ids
    assert by_text.usage.prompt_tokens == len(ids)


def test_several_prompts_are_answered_in_order_as_each_alone(client: OpenAI) -> None:
    prompts = [[1, 20, 30], [1, 21], [1, 22, 23, 24]]
    together = ask(client, prompts, n=2)
    assert [choice.index for choice in together.choices] == list(range(6))
    alone = [ask(client, prompt, n=2) for prompt in prompts]
    assert [c.text for c in together.choices] == [c.text for one in alone for c in one.choices]
    assert together.usage.prompt_tokens == 9
    assert ask(client, ["ab", "cd"]).choices[1].text == ask(client, "cd").choices[0].text


def test_the_models_own_end_can_be_ignored(client: OpenAI, tokenizer: ChatTokenizer) -> None:
    end = tokenizer.end_ids[0]
    sure = {"logit_bias": {str(end): 100.0}}
    ended = ask(client, "Nim", extra_body=sure).choices[0]
    assert ended.finish_reason == "stop"
    extra = {**sure, "ignore_eos": True, "return_token_ids": True}
    choice = ask(client, "Nim", extra_body=extra).choices[0]
    assert choice.model_extra["token_ids"] == [end] * 3
    assert choice.finish_reason == "length"


def test_log_probabilities_in_the_form_of_completions(client: OpenAI) -> None:
    choice = ask(client, "Nim", logprobs=0, extra_body={"return_token_ids": True}).choices[0]
    told = choice.logprobs
    assert told.token_logprobs == choice.model_extra["token_logprobs"]
    assert len(told.tokens) == len(told.text_offset) == len(choice.model_extra["token_ids"])
    assert told.text_offset[0] == 0
    assert told.text_offset[1] == len(told.tokens[0])


def test_alternatives_hold_the_most_probable_token_first(client: OpenAI) -> None:
    choice = ask(client, "Nim", logprobs=3, temperature=0).choices[0]
    for token, logprob, others in zip(
        choice.logprobs.tokens,
        choice.logprobs.token_logprobs,
        choice.logprobs.top_logprobs,
        strict=True,
    ):
        assert len(others) <= 3
        assert max(others.values()) == pytest.approx(others[token], abs=1e-5)
        assert logprob == pytest.approx(others[token], abs=1e-5)


def test_a_stream_tells_the_same(client: OpenAI) -> None:
    fields = {"max_tokens": 10, "temperature": 3.0, "n": 2, "logprobs": 0}
    whole = ask(client, ["a", "b"], **fields)
    parts = list(ask(client, ["a", "b"], **fields, stream=True))
    for index, choice in enumerate(whole.choices):
        own = [part.choices[0] for part in parts if part.choices[0].index == index]
        assert "".join(part.text for part in own) == choice.text
        assert own[-1].finish_reason == choice.finish_reason
        offsets = [x for part in own if part.logprobs for x in part.logprobs.text_offset]
        assert offsets == choice.logprobs.text_offset


@pytest.mark.parametrize(
    ("prompt", "fields", "named"),
    [
        ("", {"extra_body": {"add_special_tokens": False}}, "prompt"),
        ([], {}, "prompt"),
        ([[1], []], {}, "prompt"),
        ([10**7], {}, "vocabulary"),
        ("a", {"echo": True}, "echo"),
        ("a", {"suffix": "b"}, "suffix"),
        ("a", {"logprobs": 65}, "logprobs"),
        ("a", {"top_p": 0}, "top_p"),
    ],
)
def test_a_bad_request_names_the_field(
    client: OpenAI, prompt: object, fields: dict, named: str
) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        ask(client, prompt, **fields)
    assert named in str(caught.value)


def test_many_at_once_by_the_asynchronous_client(served: Any, client: OpenAI) -> None:
    async def all_at_once() -> list[str]:
        async with AsyncOpenAI(base_url=f"{served.url}/v1", api_key="none") as own:
            asked = (
                own.completions.create(model="policy", prompt=[1, 10 + n], max_tokens=4, seed=n)
                for n in range(32)
            )
            return [answer.choices[0].text for answer in await asyncio.gather(*asked)]

    alone = [
        client.completions.create(model="policy", prompt=[1, 10 + n], max_tokens=4, seed=n)
        for n in range(32)
    ]
    assert asyncio.run(all_at_once()) == [answer.choices[0].text for answer in alone]
