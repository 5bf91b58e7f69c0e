"""Log-probabilities as OpenAI reports them: bytes and offsets of tokens, and the distribution."""

import json
import math
from collections.abc import Sequence
from typing import Any, cast

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from legos.chat.incremental import TextStream
from legos.chat.stops import cut_at_stop
from legos.chat.token_bytes import TokenBytes
from legos.chat.tokenizer import ChatTokenizer
from legos.fakes import FakeEngine
from legos.records.message import Tokens
from legos.server.endpoints.token_fields import TokenReport

FAMILY = "👨‍👩‍👧‍👦"  # 25 bytes
MOVE = [{"role": "user", "content": "Nim: 5 left, last one wins.\nMoves: 1 2 3"}]


def sampled(ids: Sequence[int]) -> Tokens:
    return Tokens(
        token_ids=tuple(ids), logprobs=(-1.0,) * len(ids), raw_logprobs=(-2.0,) * len(ids)
    )


texts = st.text(st.characters(codec="utf-8") | st.sampled_from("aé日👩\u200d\u2028 "), max_size=12)


@given(text=texts, stop=st.lists(texts.filter(bool), max_size=2), data=st.data())
def test_bytes_and_offsets_of_random_texts(
    tokenizer: ChatTokenizer, text: str, stop: list[str], data: st.DataObject
) -> None:
    """Whole, in random pieces, and where a token limit cuts a character."""
    ids = tokenizer.encode(text)
    ids = (*ids[: data.draw(st.integers(0, len(ids)))], tokenizer.end_ids[0])
    known = TokenBytes(tokenizer)
    entries = json.loads(msgspec.json.encode(TokenReport(known).chat(sampled(ids))))["content"]
    joined = [bytes(entry["bytes"] or ()) for entry in entries]
    whole = tokenizer.decode(ids)
    assert b"".join(joined).decode(errors="replace") == whole
    assert cut_at_stop(b"".join(joined).decode(errors="replace"), stop) == cut_at_stop(whole, stop)

    found = TokenReport(known).text(sampled(ids))
    starts = [len(b"".join(joined[:index])) for index in range(len(joined))]
    ends = [len(whole[: index + 1].encode()) for index in range(len(whole))]
    if "\ufffd" not in whole:  # a broken character has another number of bytes in the text
        assert found["text_offset"] == [sum(end <= at for end in ends) for at in starts]
    for at, token, piece in zip(found["text_offset"], found["tokens"], joined, strict=True):
        assert not piece or token.startswith("bytes:") or whole[at:].startswith(token)
    assert found["tokens"] == [entry["token"] for entry in entries]

    cuts = sorted(data.draw(st.lists(st.integers(0, len(ids)), max_size=3)))
    report, stream, said, parts = TokenReport(known), TextStream(tokenizer.decode), "", []
    for start, end in zip([0, *cuts], [*cuts, len(ids)], strict=True):
        said += stream.push(ids[start:end])
        parts += report.text(sampled(ids[start:end]))["text_offset"]
    assert parts == found["text_offset"]
    assert said + stream.finish(whole) == whole


@pytest.mark.parametrize(
    ("pieces", "offsets"),
    [
        ((b"\xf0\x9f", b" a", b"b"), [0, 1, 3]),
        ((b"\xf0", b"\xf0\x9f", b"\x91\xa8", b"a"), [0, 1, 1, 2]),
        ((b"\xef\xbf", b"\xbd", b"a"), [0, 0, 1]),
    ],
)
def test_offsets_after_a_broken_character(pieces: tuple[bytes, ...], offsets: list[int]) -> None:
    """A token begins after the sign that replaces bytes which are no character."""

    class Known:
        def of(self, token: int, first: bool) -> bytes:
            return pieces[token]

    found = TokenReport(cast("TokenBytes", Known())).text(sampled(range(len(pieces))))
    assert found["text_offset"] == offsets


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("stop", [None, "👧"])
def test_the_bytes_of_a_family_are_its_text(
    fake: Any, tokenizer: ChatTokenizer, *, stop: str | None, stream: bool
) -> None:
    ids = tokenizer.encode(f"é {FAMILY}!")
    body = {"stop": stop, "stream": stream, "max_tokens": len(ids)}
    with fake(FakeEngine(lambda _: ids)) as server, server.http() as http:

        def choices(path: str, **more: Any) -> list[Any]:
            answer = http.post(path, json={**body, **more})
            if not stream:
                return answer.json()["choices"]
            lines = [line[6:] for line in answer.text.split("\n") if line.startswith("data: {")]
            return [json.loads(line)["choices"][0] for line in lines]

        talk = choices("/v1/chat/completions", messages=MOVE, logprobs=True, top_logprobs=2)
        plain = choices("/v1/completions", prompt=[5], logprobs=2)
    entries = [e for one in talk if one.get("logprobs") for e in one["logprobs"]["content"]]
    text = "".join(one.get("delta", one.get("message", {})).get("content") or "" for one in talk)
    joined = b"".join(bytes(entry["bytes"]) for entry in entries).decode()
    assert f"é {FAMILY}!".startswith(joined)
    assert text == "".join(one["text"] for one in plain) == joined.removesuffix(stop or "")
    assert len(text) == (10 if stop is None else 6)
    assert not any("\ufffd" in entry["token"] for entry in entries)
    assert entries[0]["token"] == r"bytes:\xc3"
    reports = [one["logprobs"] for one in plain if one.get("logprobs")]
    offsets = [at for report in reports for at in report["text_offset"]]
    assert offsets[:5] == [0, 0, 1, 2, 2]
    assert offsets == sorted(offsets)
    assert offsets[-1] == len(joined) - 1


def test_alternatives_that_print_alike_are_all_there(
    tokenizer: ChatTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = (tokenizer.encode(c)[0] for c in "ab")
    alike = TokenBytes(tokenizer)
    monkeypatch.setattr(alike, "of", lambda *_: b"x")  # as <0x78> and x of a tokenizer with bytes
    found = TokenReport(alike).text(
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
