"""Requests to vLLM and its answers, without a server."""

import asyncio
import json
import math
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from legos.errors import EndpointError, RequestError
from legos.records.choices import choice_tree
from legos.records.message import Filters
from legos.records.request import Generated, Request
from legos.remote.vllm.completions import (
    Query,
    Sampled,
    body_of,
    generated_of,
    query_of,
    sampled_of,
)
from legos.remote.vllm.scores import score_prompts
from legos.remote.vllm.server import VllmServer

END = 2
TREE = choice_tree([(5,), (6, 7), (6, 7, 8)], end_ids=(END,))


def answer(*choices: Mapping[str, Any]) -> bytes:
    return json.dumps({"choices": list(choices)}).encode()


def choice(index: int, *ids: int, reason: str = "stop", **fields: Any) -> dict[str, Any]:
    logprobs = {"token_logprobs": [-float(token) for token in ids]}
    return {
        "index": index,
        "finish_reason": reason,
        "token_ids": ids,
        "logprobs": logprobs,
        **fields,
    }


def drawn(*ids: int, reason: Any = "length") -> Sampled:
    logprobs = tuple(-float(token) for token in ids)
    return Sampled(token_ids=ids, logprobs=logprobs, others=(), finish_reason=reason)


def test_a_token_that_has_no_id_is_named() -> None:
    """As vLLM answers without --return-tokens-as-token-ids."""
    tops = {"token_logprobs": [-1.0], "top_logprobs": [{"token_id:5": -1.0, " a": -2.0}]}
    body = answer(choice(0, 5, logprobs=tops))
    with pytest.raises(EndpointError, match=r"names the tokens \['token_id:5', ' a'\]"):
        sampled_of(body, Query(adapter="policy", max_tokens=1, num_alternatives=1), 1)


def test_answers_come_back_in_the_order_of_the_prompts_and_an_aborted_one_has_no_tokens() -> None:
    body = answer(choice(1, 6, 7), choice(0, 5, reason="length"), choice(2, 9, reason="abort"))
    found = sampled_of(body, Query(adapter="policy", max_tokens=2), 3)
    assert [one.token_ids for one in found] == [(5,), (6, 7), ()]
    assert [one.finish_reason for one in found] == ["length", "stop", None]
    assert found[1].logprobs == (-6.0, -7.0)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (answer(choice(0, 5)), "answered 1 of 2 prompts"),
        (answer(choice(0, 5), choice(1, 5, reason="error")), "for the reason 'error'"),
        (answer(choice(0, 5), choice(1, 5, token_ids=None)), "0 token ids and 1 log-prob"),
        (answer(choice(0, 5), choice(1, 5, logprobs=None)), "1 token ids and 0 log-prob"),
        (b"{}", "cannot be read"),
    ],
    ids=["lost", "failed", "without ids", "without log-probabilities", "not an answer"],
)
def test_an_answer_that_lacks_something_is_a_failure(body: bytes, message: str) -> None:
    with pytest.raises(EndpointError, match=message):
        sampled_of(body, Query(adapter="policy", max_tokens=2), 2)


@pytest.mark.parametrize("tops", [None, [], [{"token_id:5": -5.0}], [None]])
def test_an_answer_that_lacks_watched_tokens_is_a_failure(tops: Any) -> None:
    """As a server answers that does not know logprob_token_ids."""
    body = answer(choice(0, 5, logprobs={"token_logprobs": [-5.0], "top_logprobs": tops}))
    with pytest.raises(EndpointError, match="lacks log-probabilities of tokens asked for"):
        sampled_of(body, Query(adapter="policy", max_tokens=1, watched=(5, 7)), 1)


@pytest.mark.parametrize(("ids", "message"), [((8,), "token 8"), ((5, 6), "2 tokens")])
def test_tokens_that_were_not_allowed_are_a_failure(ids: tuple[int, ...], message: str) -> None:
    """As a server answers that does not know allowed_token_ids, or a limit of tokens."""
    with pytest.raises(EndpointError, match=message):
        sampled_of(
            answer(choice(0, *ids)), Query(adapter="policy", max_tokens=1, allowed=(5, 6)), 1
        )


def test_every_sampling_parameter_is_stated_and_no_seed() -> None:
    filters = Filters(top_k=3, logit_bias=((4, 1.5),))
    query = query_of(
        Request(prompt_ids=(1,), max_tokens=7, end_ids=(END,), filters=filters, seed=9)
    )
    body = body_of(query, [(1,), (3,)], model="policy@1+run")
    assert body["prompt"] == [(1,), (3,)]
    assert (body["max_tokens"], body["stop_token_ids"], body["ignore_eos"]) == (7, (END,), True)
    assert (body["top_k"], body["top_p"], body["logit_bias"]) == (3, 1.0, {"4": 1.5})
    assert {"temperature", "min_p", "repetition_penalty", "logprobs"} <= body.keys()
    assert "seed" not in body


def test_requests_that_differ_in_prompt_and_seed_only_travel_together() -> None:
    first = query_of(Request(prompt_ids=(1,), max_tokens=7, seed=1))
    assert first == query_of(Request(prompt_ids=(3, 4), max_tokens=7, seed=2))
    assert first != query_of(Request(prompt_ids=(1,), max_tokens=7, adapter="old"))


@pytest.mark.parametrize(
    ("sampled", "kept", "legal", "reason"),
    [
        ((5, 9, 9), (5,), ((5, 6),), "stop"),
        ((6, 7, END), (6, 7, END), ((5, 6), (7,), (END, 8)), "stop"),
        ((6, 9, 5), (6, 9, 5), ((5, 6), (7,), ()), "length"),
    ],
    ids=["complete", "ended", "illegal"],
)
def test_a_completion_is_cut_where_its_choice_is_complete(
    sampled: tuple[int, ...], kept: tuple[int, ...], legal: Any, reason: str
) -> None:
    request = Request(prompt_ids=(1,), max_tokens=3, choices=TREE, end_ids=(END,))
    found = generated_of(
        drawn(*sampled, reason="stop" if END in sampled else "length"), request, version=4
    )
    assert found.token_ids == kept
    assert found.logprobs == tuple(-float(token) for token in kept)
    assert found.versions == (4,) * len(kept)
    assert (found.legal, found.finish_reason) == (legal, reason)


def test_a_later_token_that_is_the_only_legal_one_is_not_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[tuple[tuple[int, ...], tuple[int, ...]]] = []

    async def ask(query: Query, prompt: tuple[int, ...]) -> tuple[Sampled, int]:
        asked.append((query.allowed, prompt))
        return drawn(query.allowed[-1]), 4

    publisher: Any = SimpleNamespace(api=SimpleNamespace(url="http://127.0.0.1:1"))
    server = VllmServer(publisher)
    monkeypatch.setattr(server, "_ask", ask)
    request = Request(prompt_ids=(1,), max_tokens=9, choices=TREE, end_ids=(END,), restrict=True)
    [found] = asyncio.run(server.answer([request]))
    assert isinstance(found, Generated)
    assert (found.token_ids, found.logprobs) == ((6, 7, 8), (-6.0, 0.0, -8.0))
    assert (found.versions, found.legal) == ((4,) * 3, ((5, 6), (7,), (END, 8)))
    assert asked == [((5, 6), (1,)), ((END, 8), (1, 6, 7))]


def test_raw_log_probabilities_are_refused_at_another_temperature() -> None:
    request = Request(prompt_ids=(1,), max_tokens=1, raw_logprobs=True)
    assert generated_of(drawn(5), request, version=1).raw_logprobs == (-5.0,)
    changes: list[dict[str, Any]] = [
        {"raw_logprobs": True, "temperature": 0.5},
        {"num_alternatives": 2, "temperature": 0.0},
        {"raw_logprobs": True, "choices": TREE, "restrict": True},
    ]
    for changed in changes:
        with pytest.raises(RequestError, match="need two numbers for each token"):
            query_of(Request(prompt_ids=(1,), max_tokens=1, **changed))
    query_of(Request(prompt_ids=(1,), max_tokens=1, temperature=0.5))


def test_the_score_of_an_answer_is_the_sum_along_its_tokens_and_its_end() -> None:
    asked: list[tuple[tuple[int, ...], tuple[int, ...]]] = []

    async def ask(query: Query, prompt: tuple[int, ...]) -> Mapping[int, float]:
        asked.append((prompt, query.watched))
        return {token: -float(token) / len(prompt) for token in query.watched}

    prompts = [((1,), [(5,), (6, 7), (6, 7, 8)]), ((1,), [(5,)])]
    work = score_prompts(prompts, end_ids=(2, 3), adapter="policy", ask=ask)
    scores = asyncio.run(work)
    end = math.log(math.exp(-2 / 3) + math.exp(-3 / 3))
    assert scores[0] == pytest.approx([-5.0, -6 - 7 / 2 + end, -6 - 7 / 2 - 8 / 3])
    assert scores[1] == [-5.0]
    assert sorted(asked) == [
        ((1,), (5,)),
        ((1,), (5, 6)),
        ((1, 6), (7,)),
        ((1, 6, 7), (2, 3, 8)),
    ]
