"""The client over HTTP against servers that follow a script: what is sent, understood, retried."""

import asyncio
from typing import Any

import pytest
from scripted_server import HttpAnswer, HttpAsked, ScriptedServer, serving

from legos.clients.openai import OpenAIClient
from legos.clients.requests import split_adapter
from legos.errors import AdapterError, EndpointError, RequestError
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


async def score(url: str) -> list[list[float]]:
    async with OpenAIClient(f"{url}/v1") as client:
        return await client.score([(ASK, ["1"])])


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


@pytest.mark.parametrize(
    ("adapter", "change", "named"),
    [
        ("policy@11", {}, "version 12 sampled"),
        ("rival", {}, "'policy' answered"),
        ("policy@x", {}, "expected a number"),
    ],
)
def test_another_adapter_than_asked_for_is_refused(adapter: str, change: Any, named: str) -> None:
    def reply(asked: HttpAsked) -> HttpAnswer:
        return HttpAnswer({**ANSWER, "model": "policy", **change})

    with serving(ScriptedServer(reply, models=OURS)) as url:
        if "x" in adapter:  # an answer that names what was asked says nothing of the version
            with pytest.raises(RequestError, match=named):
                asyncio.run(ask(url, adapter=adapter, dialect="vllm"))
        else:
            with pytest.raises(AdapterError, match=named):
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


def test_a_plain_endpoint_gives_text_and_nothing_to_train_on() -> None:
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
        with pytest.raises(RequestError, match="restrict=True needs our server"):
            asyncio.run(ask(url, Sampling(choices=("1",), restrict=True)))
        for extra in (Sampling(raw_logprobs=True), Sampling(num_alternatives=2)):
            with pytest.raises(RequestError, match="raw_logprobs and num_alternatives need our"):
                asyncio.run(ask(url, extra))
        with pytest.raises(RequestError, match="token ids"):
            asyncio.run(ask(url, prompt=(1, 2)))
        with pytest.raises(RequestError, match="exact evaluations"):
            asyncio.run(score(url))
    assert said.text == "hi"
    assert not said.trainable
    assert (said.token_ids, said.logprobs, said.versions) == ((), (), ())


def vllm(asked: HttpAsked) -> HttpAnswer:
    """What vLLM answers to a chat with return_token_ids."""
    content = [{"token": "a", "logprob": -0.5}, {"token": "b", "logprob": -2.0}]
    choice = {
        "message": {"content": "ab"},
        "token_ids": [7, 8],
        "logprobs": {"content": content},
        "finish_reason": "length",
    }
    return HttpAnswer({"model": asked.body["model"], "prompt_token_ids": [5], "choices": [choice]})


def test_vllm_names_tell_the_version() -> None:
    script = ScriptedServer(vllm)
    served = [{"id": f"policy@{version}", "owned_by": "vllm"} for version in (9, 10, 8)]
    script.models = {"data": [{"id": "tiny", "owned_by": "vllm"}, *served]}
    with serving(script) as url:
        newest = asyncio.run(ask(url))
        older = asyncio.run(ask(url, adapter="policy@8"))
        base = asyncio.run(ask(url, adapter="base"))
        warm = asyncio.run(ask(url, Sampling(temperature=0.5)))
        known = asyncio.run(ask(url, Sampling(temperature=0.5), processed_logprobs=True))
        with pytest.raises(AdapterError, match=r"no adapter rival or .*only tiny, policy@9, "):
            asyncio.run(ask(url, adapter="rival"))
    assert [asked.body["model"] for asked in script.asked[:3]] == [
        "policy@10",
        "policy@8",
        "tiny",
    ]
    assert script.asked[0].body["logprobs"] is True
    assert script.asked[0].body["top_k"] == 0
    assert newest.versions == (10, 10)
    assert newest.logprobs == (-0.5, -2.0)
    assert newest.prompt_ids == (5,)
    assert newest.finish_reason == "length"
    assert (older.versions, base.versions) == ((8, 8), (0, 0))
    assert not warm.trainable  # its log-probabilities are those of temperature 1
    assert known.logprobs == (-0.5, -2.0)


def test_an_adapter_of_vllm_is_asked_for_by_the_name_that_it_has_there() -> None:
    of_run = "policy@12+ab12+0f3c"
    script = ScriptedServer(vllm)
    names = ["tiny", "nim", of_run, "nim@7"]
    script.models = {"data": [{"id": name, "owned_by": "vllm"} for name in names]}
    with serving(script) as url:
        plain = asyncio.run(ask(url, adapter="nim"))
        pinned = asyncio.run(ask(url, adapter="nim@7"))
        whole = asyncio.run(ask(url, adapter=of_run))
        with pytest.raises(AdapterError, match=r"serves no adapter policy or .*policy@12\+ab12"):
            asyncio.run(ask(url))  # which run's?
    assert [asked.body["model"] for asked in script.asked] == ["nim", "nim@7", of_run]
    assert plain.text == "ab"
    assert not plain.trainable  # nobody knows its version
    assert (pinned.versions, whole.versions) == ((7, 7), (12, 12))


@pytest.mark.parametrize(
    "logprobs",
    [
        {"content": [{"token": "a"}, {"token": "b"}]},
        {"content": [{"logprob": None}, {"logprob": -1.0}]},
        {"token_logprobs": [None, -1.0]},
        {"content": "none"},
        [-0.5, -2.0],
    ],
)
def test_log_probabilities_that_cannot_be_read_are_asked_for_again(
    logprobs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("legos.clients.transport.FIRST_PAUSE_S", 0.0)
    broken = {"message": {"content": "ab"}, "token_ids": [7, 8], "logprobs": logprobs}
    script = ScriptedServer(
        lambda asked: vllm(asked) if len(script.asked) == 2 else HttpAnswer({"choices": [broken]})
    )
    script.models = {"data": [{"id": "policy@1", "owned_by": "vllm"}]}
    with serving(script) as url:
        assert asyncio.run(ask(url)).logprobs == (-0.5, -2.0)
        with pytest.raises(EndpointError, match="the server's log-probabilities cannot be read"):
            asyncio.run(ask(url, retries=0))


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
