"""The in-process client's streams, stop texts, and what makes a completion unfit for training."""

import asyncio
import json
import shutil
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from fakes import FakeEngine
from hypothesis import given
from hypothesis import strategies as st

from legos.builtin import builtin_path
from legos.chat.incremental import TextStream
from legos.chat.load import load_tokenizer
from legos.chat.reply import split_thinking
from legos.chat.stops import cut_at_stop, stop_test
from legos.chat.tokenizer import ChatTokenizer
from legos.clients.engine import EngineClient
from legos.clients.progress_queue import MOST_PARTS
from legos.errors import RequestError
from legos.records.message import Completion, Filters, Message, Sampling
from legos.records.request import Generated, Progress

WORDS = load_tokenizer(builtin_path())


@pytest.fixture(scope="module")
def tokenizer(tiny_models: Mapping[str, Path]) -> ChatTokenizer:
    return load_tokenizer(tiny_models["llama"])


async def collect(
    client: EngineClient, prompt: Sequence[int], sampling: Sampling
) -> list[Progress | Completion]:
    async with aclosing(client.stream(prompt, sampling)) as stream:
        return [news async for news in stream]


def test_a_stream_tells_all_tokens_and_then_the_whole(tokenizer: ChatTokenizer) -> None:
    client = EngineClient(FakeEngine(), tokenizer)
    sampling = Sampling(num_alternatives=2, raw_logprobs=True)
    *parts, whole = asyncio.run(collect(client, [5, 6, 7], sampling))
    assert isinstance(whole, Completion)
    for field in ("token_ids", "logprobs", "versions", "raw_logprobs", "alternatives"):
        told = tuple(x for part in parts for x in getattr(part, field))
        assert told == getattr(whole, field)
        assert len(told) == 3
    assert not client._waiting
    assert not client._news


def test_a_reader_far_behind_gets_the_rest_at_the_end(tokenizer: ChatTokenizer) -> None:
    async def ask() -> list[Progress | Completion]:
        engine = FakeEngine(lambda _: [5, 6, 7, 8] * 500)
        client = EngineClient(engine, tokenizer)
        sampling = Sampling(max_tokens=2000, num_alternatives=1)
        async with aclosing(client.stream([5], sampling)) as stream:
            first = await anext(stream)  # all tokens have been delivered by now
            (news,) = client._news.values()
            assert isinstance(first, Progress)
            assert len(first.token_ids) + news._parts.qsize() <= MOST_PARTS + 1
            return [first, *[part async for part in stream]]

    *parts, whole = asyncio.run(ask())
    assert max(len(part.token_ids) for part in parts) <= MOST_PARTS
    for field in ("token_ids", "logprobs", "versions", "alternatives"):
        told = [x for part in parts for x in getattr(part, field)]
        assert tuple(told) == getattr(whole, field)
        assert len(told) == 2000


def test_tokens_delivered_while_long_answers_are_passed_on_keep_their_order(
    tokenizer: ChatTokenizer,
) -> None:
    """The answers of one step may be so long that the loop passes on its last results later."""

    async def ask() -> list[Progress | Completion]:
        engine = FakeEngine(hold=True)
        client = EngineClient(engine, tokenizer)
        long = asyncio.create_task(client.complete([1], Sampling(max_tokens=20_000)))
        streamed = asyncio.create_task(collect(client, [2], Sampling(max_tokens=3)))
        for _ in range(3):  # both are submitted
            await asyncio.sleep(0)
        (first, *_), (second, *_) = engine.held

        def sampled(kind: type[Any], ids: Sequence[int]) -> Any:
            size = len(ids)
            return kind(token_ids=tuple(ids), logprobs=(-1.0,) * size, versions=(0,) * size)

        ended = sampled(Generated, [9] * 20_000)
        client._deliver([(first, ended), (second, sampled(Progress, [5]))])
        client._deliver([(second, sampled(Progress, [6]))])
        client._deliver([(second, sampled(Generated, [5, 6, 7]))])
        await long
        return await streamed

    *parts, _ = asyncio.run(ask())
    assert [token for part in parts for token in part.token_ids] == [5, 6, 7]


def test_a_slow_consumer_gets_several_tokens_at_once(tokenizer: ChatTokenizer) -> None:
    async def ask() -> list[int]:
        engine = FakeEngine(hold=True)
        client = EngineClient(engine, tokenizer)
        sizes: list[int] = []
        async with aclosing(client.stream([5, 6, 7, 8], Sampling())) as stream:
            loop = asyncio.get_running_loop()
            loop.call_later(0.01, engine.stream, 1)
            async for news in stream:
                sizes.append(len(news.token_ids))
                if len(sizes) == 1:
                    engine.stream(2)  # two more before anybody looks
                    loop.call_later(0.01, engine.release)
        return sizes

    first, second, *_ = asyncio.run(ask())
    assert (first, second) == (1, 2)


@pytest.mark.parametrize("taken", [0, 1])
def test_a_consumer_that_leaves_cancels(tokenizer: ChatTokenizer, taken: int) -> None:
    engine = FakeEngine(hold=True)
    client = EngineClient(engine, tokenizer)

    async def ask() -> None:
        stream = client.stream([5, 6], Sampling())
        first = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(0.01)
        if taken:
            engine.stream(1)
            assert isinstance(await first, Progress)
        else:
            first.cancel()
            await asyncio.wait([first])
        await stream.aclose()

    asyncio.run(ask())
    assert len(engine.cancelled) == 1
    assert not client._waiting
    assert not client._news


def test_an_error_ends_a_stream(tokenizer: ChatTokenizer) -> None:
    def answer(_: object) -> Sequence[int]:
        raise RequestError("too long")

    with pytest.raises(RequestError, match="too long"):
        asyncio.run(collect(EngineClient(FakeEngine(answer), tokenizer), [1], Sampling()))


def test_every_field_reaches_the_engine(tokenizer: ChatTokenizer) -> None:
    engine = FakeEngine()
    client = EngineClient(engine, tokenizer)
    filters = Filters(top_k=3)
    sampling = Sampling(stop_ids=(9, 7), filters=filters, num_alternatives=4, raw_logprobs=True)
    completion = asyncio.run(client.complete([1], sampling))
    (request,) = engine.requests
    assert request.end_ids == tuple(sorted({7, 9, *tokenizer.end_ids}))
    assert (request.filters, request.num_alternatives) == (filters, 4)
    assert (request.raw_logprobs, request.stream) == (True, False)
    assert completion.filtered
    assert not completion.trainable


def test_a_schema_becomes_a_grammar_that_is_made_once() -> None:
    engine = FakeEngine()
    client = EngineClient(engine, WORDS)
    sampling = Sampling(json_schema='{"type": "object"}')
    for _ in range(2):
        assert asyncio.run(client.complete([1], sampling)).filtered
    first, second = (request.grammar for request in engine.requests)
    assert first is second
    assert first is not None
    assert first.begin().allowed()[WORDS.encode("{")[0]]
    with pytest.raises(RequestError, match="JSON schema"):
        asyncio.run(client.complete([1], Sampling(json_schema="{")))


def test_a_large_schema_is_compiled_beside_the_loop_and_once_for_all() -> None:
    """Whoever asks meanwhile is served; one that stops waiting takes nothing from the others."""
    keys = ",".join(f'"k{n}": {{"enum": ["x{n}", "y{n}"]}}' for n in range(1000))
    large = Sampling(json_schema=f'{{"type": "object", "properties": {{{keys}}}}}')
    engine = FakeEngine()
    client = EngineClient(engine, WORDS, use_threads=True)

    async def ask() -> int:
        served = 0
        waiting = [asyncio.ensure_future(client.complete([1], large)) for _ in range(5)]
        await asyncio.sleep(0)
        waiting.pop().cancel()
        while not all(task.done() for task in waiting):
            await client.complete([1], Sampling())
            served += 1
        assert all([(await task).filtered for task in waiting])
        return served

    assert asyncio.run(ask()) > 3
    grammars = {id(request.grammar) for request in engine.requests if request.grammar is not None}
    assert len(grammars) == 1


# Half a character decodes to U+FFFD, so a stop text with it is also found where it was not said.
words = st.text(st.characters(codec="utf-8", exclude_characters="\ufffd"), min_size=1, max_size=4)


@given(st.text(max_size=40), st.lists(words, min_size=1, max_size=3))
def test_the_window_finds_what_the_whole_text_holds(text: str, stop: list[str]) -> None:
    tokens = WORDS.encode(text)
    stopped = stop_test(WORDS.decode, stop)
    ends = [end for end in range(1, len(tokens) + 1) if stopped(tokens[:end])]
    so_far = [WORDS.decode(tokens[:end]) for end in range(1, len(tokens) + 1)]
    holding = [end for end, said in enumerate(so_far, 1) if any(word in said for word in stop)]
    assert ends[:1] == holding[:1]  # there a completion ends, whatever would come after it


def test_silent_tokens_hide_no_stop_text() -> None:
    pads = (0,) * 50
    tokens = (*WORDS.encode("E"), *pads, *WORDS.encode("N"), *pads, *WORDS.encode("D"))
    stopped = stop_test(WORDS.decode, ("END",))
    assert stopped(tokens)
    assert not stopped(tokens[:-1])


def test_a_stop_test_decodes_no_more_of_a_long_completion() -> None:
    decoded: list[int] = []

    def decode(tokens: Sequence[int]) -> str:
        decoded.append(len(tokens))
        return WORDS.decode(tokens)

    few, many = WORDS.encode("a" * 50), WORDS.encode("a" * 50_000)
    stop_test(decode, ("###",))(few)
    once = sum(decoded)
    decoded.clear()
    stop_test(decode, ("###",))(many)
    assert 0 < sum(decoded) <= once < len(many) / 100


@given(
    st.text(max_size=60),
    st.lists(st.text(min_size=1, max_size=3), max_size=2),
    st.lists(st.integers(1, 7), min_size=1),
)
def test_streamed_text_is_the_text(text: str, stop: list[str], sizes: list[int]) -> None:
    tokens = list(WORDS.encode(text))
    whole = cut_at_stop(WORDS.decode(tokens), stop)
    stream = TextStream(WORDS.decode, stop)
    said: list[str] = []
    turn = 0
    while tokens:
        size = sizes[turn % len(sizes)]
        said.append(stream.push(tokens[:size]))
        tokens, turn = tokens[size:], turn + 1
    assert whole.startswith("".join(said))
    assert "".join(said) + stream.finish(whole) == whole
    assert not any("\ufffd" in part for part in said) or "\ufffd" in text


def test_a_stream_decodes_twice_for_each_token() -> None:
    decoded: list[int] = []

    def decode(tokens: Sequence[int]) -> str:
        decoded.append(len(tokens))
        return WORDS.decode(tokens)

    tokens = WORDS.encode("so be it, é" * 4)
    stream = TextStream(decode)
    assert "".join(stream.push((token,)) for token in tokens) == WORDS.decode(tokens)
    assert len(decoded) <= 2 * len(tokens)


@pytest.mark.parametrize(
    ("said", "options", "thinking", "answer"),
    [
        ("so [2] ", {}, "so [2]", ""),
        ("so [2] ", {"max_tokens": 6}, "so [2]", ""),
        ("so</think>[2]", {}, "so", "[2]"),
        ("2", {"choices": ("1", "2")}, "", "2"),
        ("2", {"choices": ("1", "2"), "max_tokens": None}, "", "2"),
    ],
    ids=["never closed", "cut off", "closed", "a choice", "no room"],
)
def test_an_answer_in_thinking_that_the_prompt_opened_is_none(
    tmp_path: Path, said: str, options: Mapping[str, Any], thinking: str, answer: str
) -> None:
    shutil.copytree(builtin_path(), tmp_path, dirs_exist_ok=True)
    file = tmp_path / "tokenizer_config.json"
    template = "{{ messages[0]['content'] }}<|assistant|><think>"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"chat_template": template}))
    tokenizer = load_tokenizer(tmp_path)
    client = EngineClient(FakeEngine(lambda _: tokenizer.encode(said)), tokenizer)

    async def ask() -> list[Completion]:
        chat, sampling = [Message("user", "Well?")], Sampling(**options)
        *_, streamed = [part async for part in client.stream(chat, sampling)]
        assert isinstance(streamed, Completion)
        return [await client.complete(chat, sampling), streamed]

    for completion in asyncio.run(ask()):
        assert split_thinking(completion.text) == (thinking, answer)
        assert said.startswith(tokenizer.decode(completion.token_ids))
