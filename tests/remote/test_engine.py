"""The engine on a server of ours answers as the engine in this process does."""

import asyncio
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace as changed
from functools import partial
from typing import Any, NamedTuple

import pytest
from msgspec import to_builtins
from msgspec.structs import replace
from nested_values import nested_values
from scripted_server import serving

from legos import Message, Sampling, apply_lora, load_model
from legos.clients.engine import EngineClient
from legos.device import LocalEngine, ModelHandle
from legos.errors import AdapterError, EngineError, NotFoundError, RequestError
from legos.records.message import Completion
from legos.records.request import Generated, Request
from legos.remote import legos_server
from legos.remote.engine import CLOSE_S, MOVE_LISTS, RemoteEngine
from legos.remote.legos_server import LegosServer
from legos.server.app import make_app
from legos.server.service import Service
from legos.weights.adapter import Adapter
from legos.wiring.engines import TokenEngine, served_engine

ASK = (Message("user", "Nim: 5 left, last one wins.\nMoves: 1 2 3"),)
MOVES = ("1", "2", "3")
WORDS = ("raise", "rest", "re", "call")  # several tokens each; one begins another


class Both(NamedTuple):
    """One engine here, and the same one over HTTP."""

    url: str
    model: ModelHandle
    engine: LocalEngine
    here: EngineClient
    there: TokenEngine


@pytest.fixture(scope="module")
def both() -> Iterator[Both]:
    model = load_model()
    apply_lora(model)
    engine = model.make_engine()
    here = EngineClient(engine, model.tokenizer)
    source = EngineClient(engine, model.tokenizer, use_threads=True)
    service = Service(
        source, engine, model.tokenizer, model="builtin", context=model.context, lora_scale=1.0
    )
    with serving(make_app(service)) as url:
        there = served_engine([url], model, api_key=None)
        there.engine.load_adapter(changed(model.base_adapter(), version=3)).result()
        yield Both(url, model, engine, here, there)
        there.close()
    engine.close()
    model.close()


def ask(client: EngineClient, sampling: Sampling, count: int = 6) -> list[Completion]:
    seeded = [replace(sampling, seed=seed) for seed in range(1, count + 1)]

    async def go() -> list[Completion]:
        return await asyncio.gather(*(client.complete(ASK, one) for one in seeded))

    return asyncio.run(go())


def values(answer: Completion) -> dict[str, Any]:
    """A request over HTTP may join another batch, in which log-probabilities round otherwise."""
    return nested_values(to_builtins(answer))


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(max_tokens=30),
        Sampling(max_tokens=30, temperature=0.7, stop=("2",), num_alternatives=3),
        Sampling(max_tokens=20, ignore_end=True, raw_logprobs=True),
        Sampling(max_tokens=20, temperature=0.0, num_alternatives=2),
        Sampling(choices=MOVES, max_tokens=None),
        Sampling(choices=WORDS, max_tokens=None, restrict=True),
        Sampling(max_tokens=70),
    ],
    ids=["free", "stopped", "raw", "greedy", "moves", "words", "long"],
)
def test_answers_are_those_of_the_engine_in_this_process(both: Both, sampling: Sampling) -> None:
    found = ask(both.there.client(), sampling)
    for there, here in zip(found, ask(both.here, sampling), strict=True):
        assert values(there) == pytest.approx(values(here), abs=1e-5)
    assert all(one.trainable and set(one.versions) == {3} for one in found)


def test_exact_scores_are_those_of_the_engine_in_this_process(both: Both) -> None:
    prompts = [(ASK, MOVES), (ASK, WORDS)]
    there = asyncio.run(both.there.client().score(prompts))
    assert there == asyncio.run(both.here.score(prompts))


def test_what_the_server_does_not_have_is_refused_alone(both: Both) -> None:
    client = both.there.client()

    async def go() -> list[object]:
        sampling = Sampling(max_tokens=2)
        names = ("policy@3", "policy@2", "nobody", "policy@3")
        asked = [client.complete(ASK, sampling, adapter=name) for name in names]
        return list(await asyncio.gather(*asked, return_exceptions=True))

    good, old, unknown, last = asyncio.run(go())
    assert isinstance(good, Completion)
    assert isinstance(last, Completion)
    assert isinstance(old, RequestError)
    assert isinstance(unknown, RequestError)


def test_tokens_are_counted_adapters_dropped_and_a_closed_engine_refuses(both: Both) -> None:
    engine = both.there.engine
    before = both.there.engine.tokens_generated("policy").result()
    (found,) = ask(both.there.client(), Sampling(max_tokens=5, ignore_end=True), count=1)
    made = both.there.engine.tokens_generated("policy").result() - before
    assert made == len(found.token_ids) == 5
    assert engine.stats()["worked_seconds_total"] > 0
    assert engine.versions() == {"policy": 3}
    rival = changed(both.model.base_adapter(), name="rival", version=1)
    both.there.engine.load_adapter(rival).result()
    assert both.engine.versions() == {"policy": 3, "rival": 1}
    engine.drop_adapter("rival").result()
    assert both.engine.versions() == engine.versions() == {"policy": 3}
    with pytest.raises(AdapterError, match="rival"):
        engine.drop_adapter("rival").result()


def test_a_server_that_was_started_again_gets_its_adapters_again(
    both: Both, caplog: pytest.LogCaptureFixture
) -> None:
    rival = changed(both.model.base_adapter(), name="rival", version=1)
    both.there.engine.load_adapter(rival).result()
    expected = ask(both.there.client(), Sampling(max_tokens=5))

    def lose() -> None:
        for name in ("policy", "rival"):
            both.engine.drop_adapter(name).result()

    def start_with(version: int) -> None:
        both.engine.load_adapter(changed(both.model.base_adapter(), version=version)).result()

    for lost in (lose, partial(start_with, 0), partial(start_with, 200)):
        lost()
        caplog.clear()
        assert ask(both.there.client(), Sampling(max_tokens=5)) == expected
        assert both.engine.versions() == {"policy": 3, "rival": 1}
        [message] = [r.getMessage() for r in caplog.records if r.name == legos_server.__name__]
        assert message == f"{both.url} has lost its adapters; loaded again: policy@3, rival@1"
    lose()
    prompts = [(ASK, MOVES)]
    there = asyncio.run(both.there.client().score(prompts))
    assert there == asyncio.run(both.here.score(prompts))
    both.engine.drop_adapter("rival").result()
    both.there.engine.drop_adapter("rival").result()  # the server has done so already


def test_what_a_server_has_lost_is_loaded_with_the_next_publication(both: Both) -> None:
    """Players in other processes ask it, so that no request tells this one that it is missing."""
    policy = both.model.base_adapter()
    rival = changed(policy, name="rival", version=1)
    both.there.engine.load_adapter(rival).result()
    for name in ("policy", "rival"):
        both.engine.drop_adapter(name).result()
    both.there.engine.load_adapter(changed(policy, version=4)).result()
    assert both.engine.versions() == {"policy": 4, "rival": 1}
    both.there.engine.load_adapter(changed(policy, version=3)).result()
    both.there.engine.drop_adapter("rival").result()


def test_an_answer_of_a_version_that_is_being_loaded_is_taken(both: Both) -> None:
    mine = changed(both.model.base_adapter(), name="mine", version=3)

    async def go() -> tuple[Sequence[Generated | RequestError], int]:
        server = LegosServer(both.url)
        await server.publish(mine)
        load, ask = server._load, server._transport.request
        loaded, answered = asyncio.Event(), asyncio.Event()

        async def confirmed_late(adapter: Adapter) -> None:
            await load(adapter)
            loaded.set()
            await answered.wait()

        async def asked(*args: Any, **kwargs: Any) -> Any:
            found = await ask(*args, **kwargs)
            answered.set()
            return found

        server._load = confirmed_late
        server._transport.request = asked
        publishing = asyncio.create_task(server.publish(changed(mine, version=4)))
        await loaded.wait()
        found = await server.answer([Request(prompt_ids=(1, 2), max_tokens=1, adapter="mine")])
        await publishing
        await server.drop("mine")
        await server.aclose()
        return found, server._reloads

    [found], reloads = asyncio.run(go())
    assert isinstance(found, Generated)
    assert (found.versions, reloads) == ((4,), 0)


def test_a_server_that_is_taken_away_again_and_again_ends_the_run(both: Both) -> None:
    mine = changed(both.model.base_adapter(), name="taken", version=3)

    async def go() -> None:
        server = LegosServer(both.url)
        await server.publish(mine)
        other = both.engine.load_adapter(changed(mine, version=2))
        await asyncio.wrap_future(other)

        async def load_nothing(_: object) -> None:
            """Load nothing, as if another run were faster."""

        server._load = load_nothing  # pyrefly: ignore[bad-assignment]
        request = Request(prompt_ids=(1, 2), max_tokens=1, adapter="taken")
        with pytest.raises(EngineError, match=r"lost its adapters 10 times.* not 3\)"):
            await server.answer([request])
        await server.drop("taken")
        await server.aclose()

    asyncio.run(go())


def test_a_closed_engine_refuses_and_the_server_goes_on(both: Both) -> None:
    other = served_engine([both.url], both.model, api_key=None)
    other.close()
    with pytest.raises(EngineError, match="closed"):
        ask(other.client(), Sampling(max_tokens=1), count=1)
    assert len(ask(both.there.client(), Sampling(max_tokens=1), count=1)) == 1


def test_a_request_made_while_the_engine_is_closed_gets_an_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Server:
        async def answer(self, requests: list[Request]) -> None:
            await asyncio.Event().wait()

        async def aclose(self) -> None:
            """Nothing is open."""

    server: Any = Server()
    engine = RemoteEngine([server], None)
    check, found = engine._check_open, list[Any]()
    closing = threading.Thread(target=engine.close)

    def closed_after_the_check() -> None:
        check()
        closing.start()
        closing.join(2)

    with monkeypatch.context() as patched:
        patched.setattr(engine, "_check_open", closed_after_the_check)
        engine.submit([(1, Request(prompt_ids=(1,), max_tokens=1))], found.extend)
    closing.join()
    ((number, error),) = found
    assert number == 1
    assert isinstance(error, EngineError)


def test_only_the_policies_stay_at_a_server_after_the_run(both: Both) -> None:
    other = served_engine([both.url], both.model, api_key=None, policies=("policy",))
    for name, version in (("policy", 3), ("policy-abc", 1), ("seat-abc", 2)):
        one = changed(both.model.base_adapter(), name=name, version=version)
        other.engine.load_adapter(one).result()
    assert both.engine.versions() == {"policy": 3, "policy-abc": 1, "seat-abc": 2}
    other.close()
    assert both.engine.versions() == {"policy": 3}


@pytest.mark.parametrize("hanging", ["loader", "server"])
def test_a_server_that_hangs_does_not_keep_an_engine_from_closing(both: Both, hanging: str) -> None:
    class Hangs:
        async def aclose(self) -> None:
            await asyncio.Event().wait()

    hangs: Any = Hangs()
    if hanging == "loader":
        engine = RemoteEngine([LegosServer(both.url)], hangs)
    else:
        engine = RemoteEngine([hangs], None)
    closing = threading.Thread(target=engine.close, daemon=True)
    closing.start()
    closing.join(CLOSE_S / 2)
    assert closing.is_alive()  # it gives the server some time
    closing.join(CLOSE_S + 10)
    assert not closing.is_alive()


def test_a_server_that_fails_at_the_end_does_not_keep_an_engine_from_closing() -> None:
    class Fails:
        async def aclose(self) -> None:
            raise EngineError("it has come back as another model")

    fails: Any = Fails()
    closing = threading.Thread(target=RemoteEngine([fails], None).close, daemon=True)
    closing.start()
    closing.join(10)
    assert not closing.is_alive()


def test_moves_wait_for_each_other_while_lists_of_them_are_on_their_way() -> None:
    class Server:
        def __init__(self) -> None:
            self.lists: list[int] = []
            self.go = asyncio.Event()

        async def answer(self, requests: list[Request]) -> list[Generated]:
            self.lists.append(len(requests))
            await self.go.wait()
            return [Generated(token_ids=(one.seed,), finish_reason="length") for one in requests]

        async def aclose(self) -> None:
            """Nothing is open."""

    server: Any = Server()
    engine = RemoteEngine([server], None)
    found: dict[int, Any] = {}

    async def turns() -> None:
        for _ in range(5):
            await asyncio.sleep(0)

    def ask(number: int) -> None:
        request = Request(prompt_ids=(1,), max_tokens=1, seed=number)
        engine.submit([(number, request)], found.update)
        engine.call(turns()).result()

    for number in range(MOVE_LISTS + 4):
        ask(number)
    assert server.lists == [1] * MOVE_LISTS
    assert engine.stats()["computing"]
    last = MOVE_LISTS + 3
    engine.cancel([0, last], found.update)
    engine.call(turns()).result()
    assert {number: one.finish_reason for number, one in found.items()} == {
        0: "cancelled",
        last: "cancelled",
    }
    assert server.lists == [1] * MOVE_LISTS + [3]  # a list without requests makes room
    ask(last + 1)

    async def go() -> None:
        server.go.set()
        await turns()
        await turns()

    engine.call(go()).result()
    assert server.lists == [1] * MOVE_LISTS + [3, 1]
    assert [found[n].token_ids for n in range(1, last)] == [(n,) for n in range(1, last)]
    assert engine.stats()["requests_running"] == 0
    assert not engine.stats()["computing"]
    engine.close()


def test_a_player_elsewhere_finds_the_server_that_has_an_opponent() -> None:
    """It does not know which servers have got a snapshot already, and waits while none has."""

    class Server:
        def __init__(self, *live: str, coming: str = "") -> None:
            self.name, self.live, self.coming, self.answered = "one", {*live}, coming, 0

        async def answer(self, requests: list[Request]) -> list[Generated]:
            if requests[0].adapter not in self.live:
                self.live.add(self.coming)
                raise NotFoundError(f"adapter {requests[0].adapter!r} is not live")
            self.answered += len(requests)
            return [Generated(token_ids=(one.seed,), finish_reason="length") for one in requests]

        async def aclose(self) -> None: ...

    late, early = Server("policy"), Server("policy", coming="policy-abc")
    servers: Any = [late, early]
    engine = RemoteEngine(servers, None)
    found: dict[int, Any] = {}
    done = threading.Event()

    def deliver(results: Sequence[tuple[int, Any]]) -> None:
        found.update(results)
        if len(found) == 8:
            done.set()

    for number, adapter in enumerate(["policy-abc", "policy"] * 4):
        request = Request(prompt_ids=(number,), max_tokens=9, seed=number, adapter=adapter)
        engine.submit([(number, request)], deliver)
    assert done.wait(10)
    engine.close()
    assert [found[number].token_ids for number in range(8)] == [(number,) for number in range(8)]
    assert early.answered >= 4
