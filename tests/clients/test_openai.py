"""The client over HTTP against servers that follow a script: what is sent, understood, retried."""

import asyncio
from typing import Any

import pytest
from scripted_server import HttpAnswer, HttpAsked, ScriptedServer, serving

from legos.clients.openai import OpenAIClient
from legos.clients.requests import split_adapter
from legos.errors import AdapterError, RequestError
from legos.records.message import Completion, Filters, Message, Sampling

ASK = (Message("user", "hello"),)
OURS = {"data": [{"id": "policy", "owned_by": "legos"}]}
ANSWER: dict[str, Any] = {
    "model": "policy",
    "prompt_token_ids": [5, 6],
    "choices": [
        {
            "message": {"role": "assistant", "content": "hi"},
            "finish_reason": "stop",
            "token_ids": [7, 8],
            "token_logprobs": [-0.5, -1.25],
            "versions": [12, 12],
        }
    ],
}


async def ask(
    url: str,
    sampling: Sampling | None = None,
    *,
    adapter: str = "policy",
    prompt: Any = ASK,
    **options: Any,
) -> Completion:
    async with OpenAIClient(f"{url}/v1", **options) as client:
        return await client.complete(prompt, sampling or Sampling(), adapter=adapter)


def test_tokens_are_exactly_the_servers() -> None:
    script = ScriptedServer(lambda asked: HttpAnswer(ANSWER), models=OURS)
    sampling = Sampling(
        temperature=0.7,
        max_tokens=9,
        stop=("x",),
        stop_ids=(3,),
        ignore_end=True,
        seed=(1 << 64) - 1,
    )
    with serving(script) as url:
        said = asyncio.run(ask(url, sampling, adapter="policy", api_key="k"))
    assert said.prompt_ids == (5, 6)
    assert said.token_ids == (7, 8)
    assert said.logprobs == (-0.5, -1.25)
    assert said.versions == (12, 12)
    assert (said.text, said.finish_reason, said.temperature) == ("hi", "stop", 0.7)
    assert said.trainable
    (asked,) = script.asked
    assert asked.path == "/v1/chat/completions"
    assert asked.body == {
        "model": "policy",
        "messages": [{"role": "user", "content": "hello"}],
        "temperature": 0.7,
        "max_tokens": 9,
        "stop": ["x"],
        "stop_token_ids": [3],
        "ignore_eos": True,
        "return_token_ids": True,
        "seed": (1 << 64) - 1,
    }
    assert asked.headers["authorization"] == "Bearer k"


@pytest.mark.parametrize(("adapter", "model"), [("policy", "judge"), ("base", "base")])
def test_a_models_name_selects_an_adapter_of_our_server(adapter: str, model: str) -> None:
    answer = HttpAnswer({**ANSWER, "model": model})
    script = ScriptedServer(lambda asked: answer, models=OURS)
    with serving(script) as url:
        assert asyncio.run(ask(url, adapter=adapter, model="judge")).adapter == model
    assert script.asked[0].body["model"] == model


def test_a_limit_has_the_newer_name_where_a_server_asks_for_it() -> None:
    told = "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead."

    def answer(asked: HttpAsked) -> HttpAnswer:
        refused = "max_tokens" in asked.body
        return HttpAnswer({"error": {"message": told}}, 400) if refused else HttpAnswer(ANSWER)

    async def twice(url: str) -> None:
        async with OpenAIClient(f"{url}/v1", model="newer") as client:
            for _ in range(2):
                await client.complete(ASK, Sampling(max_tokens=9))

    script = ScriptedServer(answer, models={"data": [{"id": "newer", "owned_by": "openai"}]})
    with serving(script) as url:
        asyncio.run(twice(url))
    assert [asked.body.get("max_tokens") for asked in script.asked] == [9, None, None]
    assert [asked.body.get("max_completion_tokens") for asked in script.asked] == [None, 9, 9]


def test_an_endpoint_that_refuses_a_seed_gets_none() -> None:
    told = [{"type": "extra_forbidden", "loc": ["body", "seed"], "msg": "not permitted"}]

    def answer(asked: HttpAsked) -> HttpAnswer:
        return HttpAnswer({"detail": told}, 422) if "seed" in asked.body else HttpAnswer(ANSWER)

    script = ScriptedServer(answer, models={"data": [{"id": "m", "owned_by": "mistralai"}]})
    with serving(script) as url:
        assert asyncio.run(ask(url, Sampling(seed=3))).text == "hi"
        assert [asked.body.get("seed") for asked in script.asked] == [3, None]
        script.models = OURS
        with pytest.raises(RequestError, match="not permitted"):  # a seed is never left out there
            asyncio.run(ask(url, Sampling(seed=3)))


def test_a_refusal_that_names_something_else_leaves_the_seed() -> None:
    told = {"error": {"message": "bytedance/seed-1.6: the context is exceeded"}}
    script = ScriptedServer(lambda asked: HttpAnswer(told, 400), models={"data": [{"id": "m"}]})
    with serving(script) as url, pytest.raises(RequestError, match="the context is exceeded"):
        asyncio.run(ask(url, Sampling(seed=3)))
    assert [asked.body.get("seed") for asked in script.asked] == [3]


def test_choices_come_back_with_the_legal_tokens() -> None:
    choice = {**ANSWER["choices"][0], "legal": [[7, 9], [8]]}
    script = ScriptedServer(lambda asked: HttpAnswer({**ANSWER, "choices": [choice]}), models=OURS)
    with serving(script) as url:
        said = asyncio.run(ask(url, Sampling(choices=("1", "2"), restrict=True, max_tokens=None)))
    assert said.legal == ((7, 9), (8,))
    assert said.restricted
    body = script.asked[0].body
    assert (body["choices"], body["restrict"]) == (["1", "2"], True)
    assert "max_tokens" not in body


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
@pytest.mark.parametrize(
    ("content", "reason", "text"),
    [
        ("3", "stop", "<think>so</think>3"),
        (None, "stop", "<think>so</think>"),
        (None, "length", "<think>so"),
    ],
)
def test_thinking_that_is_told_apart_is_put_back(
    content: Any, reason: str, text: str, field: str
) -> None:
    message = {"content": content, "reasoning_content": None, field: "so"}
    choice = {**ANSWER["choices"][0], "message": message, "finish_reason": reason}
    script = ScriptedServer(lambda asked: HttpAnswer({**ANSWER, "choices": [choice]}), models=OURS)
    with serving(script) as url:
        assert asyncio.run(ask(url)).text == text


def test_token_ids_are_asked_as_a_completion() -> None:
    choice = {**ANSWER["choices"][0], "text": "yes", "message": None}
    script = ScriptedServer(lambda asked: HttpAnswer({**ANSWER, "choices": [choice]}), models=OURS)
    with serving(script) as url:
        said = asyncio.run(ask(url, prompt=(5, 6)))
    assert said.text == "yes"
    assert script.asked[0].path == "/v1/completions"
    assert script.asked[0].body["prompt"] == [5, 6]


def test_filtered_completions_are_marked() -> None:
    script = ScriptedServer(lambda asked: HttpAnswer(ANSWER), models=OURS)
    filters = Filters(top_k=3, top_p=0.9, logit_bias=((4, -1.0),))
    sampling = Sampling(filters=filters, json_schema='{"type": "object"}')
    with serving(script) as url:
        said = asyncio.run(ask(url, sampling))
    assert said.filtered
    assert not said.trainable
    body = script.asked[0].body
    assert (body["top_k"], body["top_p"], body["logit_bias"]) == (3, 0.9, {"4": -1.0})
    assert body["response_format"]["json_schema"]["schema"] == {"type": "object"}


FURTHER: dict[str, Any] = {
    "top_k": 1,
    "min_p": 0.5,
    "repetition_penalty": 1.5,
}  # OpenAI's interface lacks them


def server_of(owner: str) -> ScriptedServer:
    models = {"data": [{"id": "policy", "owned_by": owner}]}
    return ScriptedServer(lambda asked: HttpAnswer(ANSWER), models=models)


def test_every_filter_reaches_vllm() -> None:
    script = server_of("vllm")
    with serving(script) as url:
        said = asyncio.run(ask(url, Sampling(filters=Filters(**FURTHER, top_p=0.9))))
    assert said.filtered
    assert script.asked[0].body.items() >= {**FURTHER, "top_p": 0.9}.items()


@pytest.mark.parametrize("name", FURTHER)
def test_a_filter_that_other_servers_do_not_know_is_refused(name: str) -> None:
    filters = Filters(**{name: FURTHER[name]})
    with serving(server_of("somebody")) as url:
        assert asyncio.run(ask(url, Sampling(filters=Filters(top_p=0.9)))).filtered
        with pytest.raises(RequestError, match=f"{name} is {FURTHER[name]}, .*leave it out"):
            asyncio.run(ask(url, Sampling(filters=filters)))


@pytest.mark.parametrize(
    ("adapter", "change", "named"),
    [
        ("policy@11", {}, "version 12 sampled"),
        ("rival", {}, "'policy' answered"),
    ],
)
def test_another_adapter_than_asked_for_is_refused(adapter: str, change: Any, named: str) -> None:
    def reply(asked: HttpAsked) -> HttpAnswer:
        return HttpAnswer({**ANSWER, "model": "policy", **change})

    with (
        serving(ScriptedServer(reply, models=OURS)) as url,
        pytest.raises(AdapterError, match=named),
    ):
        asyncio.run(ask(url, adapter=adapter))


def test_the_version_asked_for_is_returned() -> None:
    with serving(
        ScriptedServer(
            lambda asked: HttpAnswer({**ANSWER, "model": asked.body["model"]}), models=OURS
        )
    ) as url:
        assert asyncio.run(ask(url, adapter="policy@12")).versions == (12, 12)


def test_an_answer_of_ours_without_versions_is_an_error() -> None:
    choice = {key: value for key, value in ANSWER["choices"][0].items() if key != "versions"}
    with (
        serving(
            ScriptedServer(lambda asked: HttpAnswer({**ANSWER, "choices": [choice]}), models=OURS)
        ) as url,
        pytest.raises(RequestError, match="lacks token_ids, token_logprobs or versions"),
    ):
        asyncio.run(ask(url))


def test_a_plain_endpoint_gives_text_and_nothing_to_train_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    plain = {"model": "gpt-x-2026", "choices": [{"message": {"content": "hi"}}]}
    script = ScriptedServer(
        lambda asked: HttpAnswer(plain), models={"data": [{"id": "gpt-x", "owned_by": "x"}]}
    )
    with serving(script) as url:
        said = asyncio.run(ask(url, Sampling(seed=(1 << 64) - 1, choices=("1", "2"))))
        assert script.asked[0].body == {
            "model": "gpt-x",
            "messages": [{"role": "user", "content": "hello"}],
            "temperature": 1.0,
            "max_tokens": 256,
            "seed": (1 << 63) - 1,
        }
        with pytest.raises(RequestError, match="does not know"):
            asyncio.run(ask(url, adapter="policy@3"))
        asyncio.run(ask(url, Sampling(choices=("1",), restrict=True)))
        assert script.asked[-1].body == {**script.asked[0].body, "seed": 0}
        assert caplog.text.count("does not restrict answers to the legal ones") == 1
        for name, extra in (
            ("raw_logprobs", Sampling(raw_logprobs=True)),
            ("num_alternatives", Sampling(num_alternatives=2)),
        ):
            with pytest.raises(RequestError, match=f"{name} needs our server"):
                asyncio.run(ask(url, extra))
        with pytest.raises(RequestError, match="token ids as the prompt needs our server"):
            asyncio.run(ask(url, prompt=(1, 2)))
    assert said.text == "hi"
    assert not said.trainable
    assert (said.token_ids, said.logprobs, said.versions) == ((), (), ())


def test_an_adapter_of_vllm_is_asked_for_by_its_name_and_gives_text() -> None:
    choice = {"message": {"content": "ab"}, "token_ids": [7, 8], "finish_reason": "length"}
    script = ScriptedServer(
        lambda asked: HttpAnswer({"model": asked.body["model"], "choices": [choice]})
    )
    names = ["tiny", "nim", "nim@7"]
    script.models = {"data": [{"id": name, "owned_by": "vllm"} for name in names]}
    with serving(script) as url:
        plain = asyncio.run(ask(url, adapter="nim"))
        asyncio.run(ask(url, adapter="nim@7"))
        asyncio.run(ask(url, adapter="base"))
        with pytest.raises(AdapterError, match="serves no adapter policy, only tiny, nim, nim@7"):
            asyncio.run(ask(url))
    assert [asked.body["model"] for asked in script.asked] == ["nim", "nim@7", "tiny"]
    assert (plain.text, plain.finish_reason, plain.trainable) == ("ab", "length", False)


@pytest.mark.parametrize(("model", "names"), [(None, ["tiny"]), ("tiny", ["nim", "tiny"])])
def test_vllm_answers_a_seat_that_names_no_adapter(model: str | None, names: list[str]) -> None:
    """As that of a judge."""
    script = ScriptedServer(lambda asked: HttpAnswer({"choices": [{"message": {"content": "hi"}}]}))
    script.models = {"data": [{"id": name, "owned_by": "vllm"} for name in names]}
    with serving(script) as url:
        assert asyncio.run(ask(url, model=model)).text == "hi"
        with pytest.raises(AdapterError, match="serves no adapter policy@7, only"):
            asyncio.run(ask(url, model=model, adapter="policy@7"))
    assert [asked.body["model"] for asked in script.asked] == ["tiny"]


def test_one_client_serves_several_event_loops() -> None:
    with serving(ScriptedServer(lambda asked: HttpAnswer(ANSWER), models=OURS)) as url:
        client = OpenAIClient(f"{url}/v1")

        async def once() -> str:
            async with client:
                return (await client.complete(ASK, Sampling())).text

        assert [asyncio.run(once()) for _ in range(3)] == ["hi"] * 3


@pytest.mark.parametrize("end", ["", "/", "/v1", "/v1/"])
def test_an_address_alone_means_its_v1(end: str) -> None:
    async def ask(url: str) -> Completion:
        async with OpenAIClient(f"{url}{end}") as client:
            return await client.complete(ASK, Sampling())

    script = ScriptedServer(lambda asked: HttpAnswer(ANSWER), models=OURS)
    with serving(script) as url:
        asyncio.run(ask(url))
    assert [asked.path for asked in script.asked] == ["/v1/chat/completions"]


@pytest.mark.parametrize("version", ["\u00b2", "\u0661", "9" * 5000, "", "-1"])
def test_a_version_that_is_no_number_is_refused(version: str) -> None:
    with pytest.raises(RequestError, match="expected a number, as in policy@12"):
        split_adapter(f"policy@{version}")
    assert split_adapter("policy@12") == ("policy", 12)
