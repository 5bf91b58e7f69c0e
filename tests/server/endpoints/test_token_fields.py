"""Log-probabilities as OpenAI reports them: texts and offsets of tokens, and the distribution."""

import json
import math
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from legos.chat.tokenizer import ChatTokenizer
from legos.records.message import Tokens
from legos.server.endpoints.token_fields import TokenReport

MOVE = [{"role": "user", "content": "Nim: 5 left, last one wins.\nMoves: 1 2 3"}]


def sampled(ids: Sequence[int]) -> Tokens:
    return Tokens(
        token_ids=tuple(ids), logprobs=(-1.0,) * len(ids), raw_logprobs=(-2.0,) * len(ids)
    )


texts = st.text(st.characters(codec="utf-8") | st.sampled_from("aé日👩\u200d\u2028 "), max_size=12)


@given(text=texts, data=st.data())
def test_texts_bytes_and_offsets_of_random_texts(
    tokenizer: ChatTokenizer, text: str, data: st.DataObject
) -> None:
    """Whole, and in random pieces; a part of a character has no bytes."""
    ids = (*tokenizer.encode(text), tokenizer.end_ids[0])
    entries = json.loads(msgspec.json.encode(TokenReport(tokenizer.token_text).chat(sampled(ids))))[
        "content"
    ]
    assert [(e["token"], bytes(e["bytes"]).decode()) for e in entries if e["bytes"]] == [
        *((c, c) for c in text if len(tokenizer.encode(c)) == 1),
        ("<|end|>", "<|end|>"),
    ]
    assert all(e["bytes"] or e["token"] == "\ufffd" for e in entries)

    found = TokenReport(tokenizer.token_text).text(sampled(ids))
    assert found["tokens"] == [entry["token"] for entry in entries]
    lengths = [0, *map(len, found["tokens"])]
    assert found["text_offset"] == list(accumulate(lengths))[:-1]
    report, parts = TokenReport(tokenizer.token_text), []
    cuts = sorted(data.draw(st.lists(st.integers(0, len(ids)), max_size=3)))
    for start, end in zip([0, *cuts], [*cuts, len(ids)], strict=True):
        parts += report.text(sampled(ids[start:end]))["text_offset"]
    assert parts == found["text_offset"]


def test_alternatives_that_print_alike_are_all_there(
    tokenizer: ChatTokenizer,
) -> None:
    first, second = (tokenizer.encode(c)[0] for c in "ab")
    found = TokenReport(lambda _: "x").text(
        Tokens(
            token_ids=(first,),
            logprobs=(-0.5,),
            raw_logprobs=(-0.5,),
            alternatives=(((first, -0.5), (second, -1.0)),),
        )
    )
    assert found["top_logprobs"] == [{"x": -0.5, f"token_id:{second}": -1.0}]


@pytest.mark.parametrize("temperature", [0.0, 0.5, 1.0])
def test_the_models_own_distribution_is_reported(served: Any, *, temperature: float) -> None:
    body = {
        "messages": MOVE,
        "max_tokens": 3,
        "seed": 1,
        "logprobs": True,
        "top_logprobs": 20,
        "top_p": 0.5,
        "return_token_ids": True,
    }
    with served.http() as http:
        (choice,) = http.post(
            "/v1/chat/completions", json={**body, "temperature": temperature}
        ).json()["choices"]
        (plain,) = http.post(
            "/v1/chat/completions", json={**body, "temperature": 1.0, "top_p": 1.0}
        ).json()["choices"]
    entries = choice["logprobs"]["content"]
    assert [entry["logprob"] for entry in entries] == choice["raw_logprobs"]
    assert [entry["sampled_logprob"] for entry in entries] == choice["token_logprobs"]
    assert all(entry["sampled_logprob"] > entry["logprob"] for entry in entries)
    if temperature == 0.0:
        assert choice["token_logprobs"] == [0.0] * len(entries)
    first, same = entries[0]["top_logprobs"], plain["logprobs"]["content"][0]["top_logprobs"]
    assert len(first) == 20
    for one, other in zip(first, same, strict=True):
        assert one["token"] == other["token"]
        assert one["logprob"] == pytest.approx(other["logprob"], abs=1e-4)
    assert sum(math.exp(one["logprob"]) for one in first) < 1.0


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_the_distribution_sampled_from_stands_beside(served: Any, path: str) -> None:
    talk = path.startswith("/v1/chat")
    asked = {"messages": MOVE, "logprobs": True} if talk else {"prompt": [1, 20], "logprobs": 0}
    with served.http() as http:
        body = {**asked, "temperature": 0, "max_tokens": 2}
        told = http.post(path, json=body).json()["choices"][0]["logprobs"]
        refused = http.post(path, json={**body, "logprobs_mode": "sampled"})
    own = [entry["sampled_logprob"] for entry in told["content"]] if talk else None
    assert (own or told["sampled_logprobs"]) == [0.0, 0.0]
    assert (refused.status_code, "logprobs_mode" in refused.text) == (400, True)
