"""The in-process client: messages to requests, answers to completions, and who waits for what."""

import asyncio
import gc
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from fakes import FakeEngine, echo
from virtual_time import in_virtual_time

from legos.chat.load import load_tokenizer
from legos.chat.tokenizer import ChatTokenizer
from legos.clients.engine import EngineClient
from legos.clients.requests import Target, request_of
from legos.errors import EngineError, RequestError
from legos.protocols import Deliver
from legos.records.message import Completion, Message, Sampling
from legos.records.request import Generated, Request


class Engine(FakeEngine):
    """Counts submissions, and may fail at one."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.submissions: list[list[int]] = []
        self.broken = False

    def submit(self, requests: Sequence[tuple[int, Request]], deliver: Deliver) -> None:
        if self.broken:
            raise EngineError("cannot take it")
        self.submissions.append([number for number, _ in requests])
        super().submit(requests, deliver)


@pytest.fixture(scope="module")
def tokenizer(tiny_models: Mapping[str, Path]) -> ChatTokenizer:
    return load_tokenizer(tiny_models["llama"])


async def submitted() -> None:
    """Let tasks ask, and the client submit."""
    await asyncio.sleep(0)
    await asyncio.sleep(0)


def ids(tokenizer: ChatTokenizer, text: str) -> tuple[int, ...]:
    return (*tokenizer.encode(text), *tokenizer.end_ids)


def test_a_chat_becomes_a_request_and_its_answer_a_completion(tokenizer: ChatTokenizer) -> None:
    engine = Engine(lambda request: ids(tokenizer, "so be it"))
    client = EngineClient(engine, tokenizer)
    chat = [Message("system", "Be brief."), Message("user", "Well?")]
    sampling = Sampling(temperature=0.5, max_tokens=20, seed=7)
    completion = asyncio.run(client.complete(chat, sampling, adapter="v3"))
    (request,) = engine.requests
    assert request == Request(
        prompt_ids=tokenizer.render(chat),
        max_tokens=20,
        temperature=0.5,
        seed=7,
        end_ids=tokenizer.end_ids,
        adapter="v3",
    )
    assert completion == Completion(
        prompt_ids=request.prompt_ids,
        token_ids=ids(tokenizer, "so be it"),
        logprobs=(-1.0,) * 9,
        versions=(0,) * 9,
        text="so be it",
        finish_reason="stop",
        temperature=0.5,
        adapter="v3",
    )


def test_the_event_loop_goes_on_while_a_long_prompt_is_rendered(
    tokenizer: ChatTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on = threading.Event()

    def render(*_: object) -> tuple[int, ...]:
        assert goes_on.wait(20), "the event loop waited"
        return (5,)

    monkeypatch.setattr(ChatTokenizer, "render", render)
    client = EngineClient(Engine(lambda request: ids(tokenizer, "a")), tokenizer)
    chat = (Message("system", "Be brief."), Message("user", "x" * (1 << 20)))

    async def ask() -> Completion:
        asking = asyncio.ensure_future(client.complete(chat, Sampling(max_tokens=2)))
        await asyncio.sleep(0.01)
        goes_on.set()
        return await asking

    assert client.prepare(chat, Sampling(max_tokens=2)) is None
    assert asyncio.run(ask()).prompt_ids == (5,)


def test_token_ids_are_asked_as_they_are(tokenizer: ChatTokenizer) -> None:
    engine = Engine(echo)
    completion = asyncio.run(
        EngineClient(engine, tokenizer).complete([5, 6, 7], Sampling(max_tokens=2))
    )
    assert engine.requests[0].prompt_ids == (5, 6, 7)
    assert (completion.token_ids, completion.finish_reason) == ((5, 6), "length")


def test_choices_are_a_tree_that_is_made_once(tokenizer: ChatTokenizer) -> None:
    engine = Engine(lambda request: ids(tokenizer, "2"))
    client = EngineClient(engine, tokenizer)
    sampling = Sampling(choices=("12", "2"), restrict=True, max_tokens=None)

    async def twice() -> list[Completion]:
        return [await client.complete([1], sampling) for _ in range(2)]

    with pytest.raises(Exception, match=r"legal of a completion of \d tokens has 0 values"):
        asyncio.run(twice())  # the fake tells no legal tokens, and that is noticed
    first = engine.requests[0]
    assert first.restrict
    assert first.max_tokens == 2  # the longest choice
    assert first.choices is not None
    one, two = tokenizer.encode("1"), tokenizer.encode("2")
    assert first.choices.legal == tuple(sorted(one + two))
    open_choices = Sampling(choices=("12", "2"))
    asyncio.run(client.complete([1], open_choices))
    assert engine.requests[-1].choices is first.choices


def test_no_limit_needs_choices(tokenizer: ChatTokenizer) -> None:
    client = EngineClient(Engine(), tokenizer)
    with pytest.raises(RequestError, match="max_tokens is None and there are no choices"):
        asyncio.run(client.complete([1], Sampling(max_tokens=None)))


def test_stop_texts_end_a_completion_and_are_left_out(tokenizer: ChatTokenizer) -> None:
    said = tokenizer.encode("one. two; three")
    engine = Engine(lambda request: said)
    client = EngineClient(engine, tokenizer)
    sampling = Sampling(stop=(";", "two"))
    completion = asyncio.run(client.complete([1], sampling))
    assert completion.text == "one. "
    assert completion.token_ids == tokenizer.encode("one. two")  # the record is what was sampled
    stops = engine.requests[0].stops
    assert stops is not None
    assert not stops(tokenizer.encode("one. tw"))
    assert stops(tokenizer.encode("one. two"))
    assert stops(tokenizer.encode("one;"))


@pytest.mark.parametrize("error", [RequestError("too long"), EngineError("closed")])
def test_an_error_reaches_the_asker(tokenizer: ChatTokenizer, error: Exception) -> None:
    def answer(request: Request) -> Sequence[int]:
        if request.prompt_ids == (1,):
            raise error
        return (7,)

    client = EngineClient(Engine(answer), tokenizer)

    async def ask() -> list[Completion | BaseException]:
        asked = (client.complete([n], Sampling()) for n in (1, 2))
        return await asyncio.gather(*asked, return_exceptions=True)

    failed, fine = asyncio.run(ask())
    assert failed is error
    assert isinstance(fine, Completion)


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ([], r"the prompt is empty; expected messages, such as \[Message\('user', 'Hello'\)\], or"),
        ("Hello", "the prompt is the text 'Hello'; expected messages"),
        ([Message("user", "a"), "b"], "the prompt holds 'b'; expected messages"),
        (
            [{"role": "user", "content": "a"}],
            r"the prompt holds \{'role': 'user', .*; expected mess",
        ),
        ([1.5], "the prompt holds 1.5; expected messages"),
        ([Message("user", 3)], "a message of the prompt holds 3; expected text"),  # pyrefly: ignore[bad-argument-type]
    ],
)
def test_a_prompt_that_is_none_is_refused(
    prompt: Any, message: str, tokenizer: ChatTokenizer
) -> None:
    with pytest.raises(RequestError, match=message):
        asyncio.run(EngineClient(Engine(), tokenizer).complete(prompt, Sampling()))
    with pytest.raises(RequestError, match=message):
        request_of(prompt, Sampling(), Target(dialect="legos", adapter="policy", model="policy"))


def test_what_is_asked_in_one_turn_of_the_loop_is_one_submission(tokenizer: ChatTokenizer) -> None:
    engine = Engine()
    client = EngineClient(engine, tokenizer)

    async def twice() -> None:
        await asyncio.gather(*(client.complete([n + 1], Sampling()) for n in range(50)))
        await client.complete([1], Sampling())

    asyncio.run(twice())
    assert [len(numbers) for numbers in engine.submissions] == [50, 1]
    assert len({n for numbers in engine.submissions for n in numbers}) == 51


@pytest.mark.parametrize(
    ("server", "asked", "apart_ms", "sizes"),
    [(True, 5, 0.5, [5]), (True, 5, 5, [1] * 5), (True, 99, 0.5, [64, 35]), (False, 2, 0, [1, 1])],
    ids=["a burst", "far apart", "a long burst", "no server"],
)
def test_a_server_submits_the_requests_of_a_burst_together(
    tokenizer: ChatTokenizer, server: bool, asked: int, apart_ms: float, sizes: Sequence[int]
) -> None:
    engine = Engine(lambda request: ids(tokenizer, "yes"))
    client = EngineClient(engine, tokenizer, use_threads=server)

    async def ask_in_turns() -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(asked):
                group.create_task(client.complete((5, 6), Sampling(max_tokens=4)))
                await asyncio.sleep(apart_ms / 1000)

    in_virtual_time(ask_in_turns())
    assert [len(numbers) for numbers in engine.submissions] == sizes


def test_a_submission_that_fails_is_told_to_all_who_asked(tokenizer: ChatTokenizer) -> None:
    engine = Engine()
    engine.broken = True
    client = EngineClient(engine, tokenizer)

    async def ask() -> list[object]:
        asked = (client.complete([n], Sampling()) for n in (1, 2))
        return list(await asyncio.gather(*asked, return_exceptions=True))

    assert [str(error) for error in asyncio.run(ask())] == ["cannot take it"] * 2


def test_an_asker_who_leaves_before_the_submission_is_never_submitted(
    tokenizer: ChatTokenizer,
) -> None:
    engine = Engine()
    client = EngineClient(engine, tokenizer)

    async def ask() -> None:
        tasks = [asyncio.create_task(client.complete([n], Sampling())) for n in (1, 2)]
        # The first one asks, and is cancelled before the loop comes to the submission.
        tasks[0].get_loop().call_soon(tasks[0].cancel)
        await asyncio.wait(tasks)
        assert tasks[0].cancelled()
        assert tasks[1].result().prompt_ids == (2,)

    asyncio.run(ask())
    assert [request.prompt_ids for request in engine.requests] == [(2,)]
    assert engine.cancelled == []


def test_an_asker_who_leaves_later_cancels_and_the_others_stay(tokenizer: ChatTokenizer) -> None:
    engine = Engine(hold=True)
    client = EngineClient(engine, tokenizer)

    async def ask() -> None:
        tasks = [asyncio.create_task(client.complete([n], Sampling())) for n in (1, 2, 3)]
        await submitted()
        tasks[1].cancel()
        await asyncio.wait([tasks[1]])
        assert tasks[1].cancelled()
        engine.release()
        first, third = await asyncio.gather(tasks[0], tasks[2])
        assert (first.prompt_ids, third.prompt_ids) == ((1,), (3,))

    asyncio.run(ask())
    assert engine.cancelled == [engine.submissions[0][1]]
    assert not client._waiting


def test_answers_come_from_another_thread(tokenizer: ChatTokenizer) -> None:
    engine = Engine(hold=True)
    client = EngineClient(engine, tokenizer)

    async def ask() -> list[Completion]:
        asked = [asyncio.create_task(client.complete([n + 1], Sampling())) for n in range(20)]
        await submitted()
        thread = threading.Thread(target=engine.release)
        thread.start()
        completions = await asyncio.gather(*asked)
        thread.join()
        return completions

    assert [c.token_ids for c in asyncio.run(ask())] == [(n + 1,) for n in range(20)]


def test_long_answers_that_come_together_leave_the_loop_time(tokenizer: ChatTokenizer) -> None:
    """Between them the loop does other work, such as answering ``/health``."""
    engine = Engine(hold=True)
    client = EngineClient(engine, tokenizer)
    others: list[int] = []  # number of answers each time that other work is done

    async def ask() -> None:
        loop = asyncio.get_running_loop()
        asked = [
            asyncio.ensure_future(client.complete([n + 1], Sampling(max_tokens=10_000)))
            for n in range(8)
        ]
        await submitted()
        long = Generated(token_ids=(5,) * 10_000, logprobs=(-1.0,) * 10_000, versions=(0,) * 10_000)

        def work() -> None:
            others.append(sum(one.done() for one in asked))
            if others[-1] < len(asked):
                loop.call_soon(work)

        loop.call_soon(client._deliver, [(number, long) for number, _, _ in engine.held])
        loop.call_soon(work)
        await asyncio.gather(*asked)

    asyncio.run(ask())
    assert {2, 4, 6} <= set(others)


def test_answers_after_the_loop_has_gone_harm_nobody(tokenizer: ChatTokenizer) -> None:
    engine = Engine(hold=True)
    client = EngineClient(engine, tokenizer)

    async def ask_and_leave() -> None:
        task = asyncio.ensure_future(client.complete([1], Sampling()))
        await submitted()
        held, engine.held = engine.held, []  # so that leaving does not answer it
        task.cancel()
        await asyncio.wait([task])
        engine.held = held

    asyncio.run(ask_and_leave())
    late, engine.held = engine.held, []
    generated = Generated(
        token_ids=(9,), logprobs=(-1.0,), versions=(0,), legal=(), finish_reason="stop"
    )

    def answer_late() -> None:
        for number, _, deliver in late:
            deliver([(number, generated)])

    answer_late()

    async def ask_again() -> Completion:
        task = asyncio.ensure_future(client.complete([2], Sampling()))
        await submitted()
        answer_late()  # the old number again, now into the new loop
        engine.release()
        return await task

    assert asyncio.run(ask_again()).token_ids == (2,)
    gc.collect()


def test_scores_are_asked_as_whole_answers(tokenizer: ChatTokenizer) -> None:
    asked: list[object] = []

    class Scorer(Engine):
        def score(self, prompts: Sequence, **options: Any):  # pyrefly: ignore[unannotated-return]  # noqa: ANN202
            asked.append((prompts, options["end_ids"], options["adapter"]))
            return super().score(prompts, **options)

    client = EngineClient(Scorer(), tokenizer)
    chat = [Message("user", "Well?")]
    scores = asyncio.run(client.score([(chat, ["yes", "no"]), (chat, ["maybe"])], adapter="old@3"))
    assert scores == [[-3.0, -2.0], [-5.0]]
    prompt, encode = tokenizer.render(chat), tokenizer.encode
    assert asked == [
        (
            [(prompt, [encode("yes"), encode("no")]), (prompt, [encode("maybe")])],
            tokenizer.end_ids,
            "old@3",
        )
    ]


def test_a_score_that_nobody_waits_for_is_cancelled(tokenizer: ChatTokenizer) -> None:
    scores: Future[list[list[float]]] = Future()

    class Slow(Engine):
        def score(self, *_: object, **__: object) -> Future[list[list[float]]]:
            return scores

    client = EngineClient(Slow(), tokenizer)

    async def leave() -> None:
        async with asyncio.timeout(0.01):
            await client.score([([Message("user", "Well?")], ["yes"])])

    with pytest.raises(TimeoutError):
        asyncio.run(leave())
    assert scores.cancelled()
