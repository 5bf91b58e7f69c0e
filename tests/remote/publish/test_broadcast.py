"""A broadcaster: eight readers of which one is stopped, one that fails, and what requests find."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import asdict
from itertools import pairwise
from typing import Any

import pytest
from fakes import FakeBackend
from published import caught_up, publishers, small_adapter
from run_world import Duel, step_settings
from scripted_server import HttpAnswer, HttpAsked, ScriptedServer, serving
from virtual_time import in_virtual_time

from legos.credit import RAECredit
from legos.errors import AdapterError, EngineError
from legos.fakes import Asked, ScriptedClient
from legos.loop.loop import training_loop
from legos.loop.trainer import Metrics, PolicyTrainer
from legos.records.step import PassResult
from legos.remote.publish.broadcast import AGAIN_S, Broadcaster, Reader
from legos.weights.adapter import Adapter, AdapterInfo
from legos.weights.packed import unpack_adapter

LOAD_S = 0.02
STEP_S = 1.0


class Slow:
    """A reader that loads an adapter in some time, unless it is stopped or fails."""

    def __init__(self, load_s: float = LOAD_S) -> None:
        self.load_s = load_s
        self.runs = asyncio.Event()
        self.runs.set()
        self.error: Exception | None = None
        self.loaded: list[int] = []
        self.dropped: list[str] = []

    async def publish(self, adapter: Adapter) -> AdapterInfo:
        await asyncio.sleep(self.load_s)
        await self.runs.wait()
        if self.error is not None:
            raise self.error
        self.loaded.append(adapter.version)
        return adapter.info

    async def drop(self, name: str) -> None:
        await self.runs.wait()
        if self.error is not None:
            raise self.error
        self.dropped.append(name)

    async def aclose(self) -> None:
        self.runs.set()


Story = Callable[[Broadcaster], Awaitable[None]]


def told(story: Story, readers: Mapping[str, Reader]) -> float:
    """Tell a story of a broadcaster; returns its seconds on the virtual clock."""

    async def whole() -> None:
        broadcaster = Broadcaster(readers.items())
        try:
            await story(broadcaster)
        finally:
            await broadcaster.aclose()

    return in_virtual_time(whole())[1]


def test_a_stopped_reader_delays_a_run_by_less_than_a_twentieth_of_a_step() -> None:
    """A training run whose step takes a second, with eight readers, one of which stops."""

    class Timed(FakeBackend):
        def forward_backward(self, *args: Any, **options: Any) -> "Future[PassResult]":
            return later(super().forward_backward(*args, **options))

    def seconds_of_steps(*, stopped: bool) -> list[float]:
        ended: list[float] = []
        readers = {f"engine-{number}": Slow() for number in range(8)}

        async def story(broadcaster: Broadcaster) -> None:
            trainer = PolicyTrainer(Timed(), broadcaster, step_settings(2))

            async def note(metrics: Metrics, batches: object) -> None:
                ended.append(asyncio.get_running_loop().time())
                if stopped and trainer.step == 3:
                    readers["engine-5"].runs.clear()
                if stopped and trainer.step > 3:
                    behind = {name: lag for name, lag in broadcaster.lags().items() if lag}
                    assert behind == {"engine-5": trainer.step - 3}

            def answer(asked: Asked) -> str:
                client.version = trainer.version
                return str(asked.sampling.seed % 10)

            client = ScriptedClient(answer)
            arena = Duel(client, credit_assigner=RAECredit())
            await training_loop(
                arena, trainer, 9, after_step=note, publisher=broadcaster, progress=False
            )

        told(story, readers)
        return [after - before for before, after in pairwise(ended)]

    both = zip(seconds_of_steps(stopped=True), seconds_of_steps(stopped=False), strict=True)
    delays = [slow - fast for slow, fast in both]
    assert max(delays) < 0.05 * STEP_S
    assert max(delays) > 0  # the step in which it stopped waited for it
    assert sorted(delays)[-2] == pytest.approx(0, abs=1e-6)  # no later one did


def later(future: "Future[PassResult]") -> "Future[PassResult]":
    """The same result, a step later."""
    slow: Future[PassResult] = Future()
    asyncio.get_running_loop().call_later(STEP_S, lambda: slow.set_result(future.result()))
    return slow


def test_a_reader_that_comes_back_gets_the_newest_version_and_no_other() -> None:
    readers = {"a": Slow(), "b": Slow()}

    async def story(broadcaster: Broadcaster) -> None:
        await broadcaster.publish(small_adapter(0))
        assert broadcaster.holds(1, "policy")
        readers["b"].runs.clear()
        for version in range(1, 5):
            await broadcaster.publish(small_adapter(version))
            assert broadcaster.holds(0, "policy")
            assert not broadcaster.holds(1, "policy")
        assert broadcaster.lags() == {"a": 0, "b": 4}
        assert broadcaster.holds(1, "policy@0")
        assert broadcaster.holds(1, "base")
        readers["b"].runs.set()
        await asyncio.sleep(1)
        assert broadcaster.lags() == {"a": 0, "b": 0}
        assert broadcaster.holds(1, "policy@4")

    told(story, readers)
    assert readers["a"].loaded == [0, 1, 2, 3, 4]
    assert readers["b"].loaded == [0, 1, 4]  # 1 was on its way when it stopped


def test_a_reader_that_fails_gets_everything_again_and_one_alone_ends_the_run() -> None:
    readers = {"a": Slow(), "b": Slow()}

    async def story(broadcaster: Broadcaster) -> None:
        await broadcaster.publish(small_adapter(0))
        await broadcaster.publish(small_adapter(7, name="rival"))
        readers["b"].error = EngineError("b is down")
        await broadcaster.publish(small_adapter(1))
        assert not broadcaster.holds(1, "rival")
        readers["b"].error = None
        await asyncio.sleep(AGAIN_S + 1)
        assert broadcaster.holds(1, "rival")
        assert broadcaster.holds(1, "policy")
        for reader in readers.values():
            reader.error = EngineError("all are down")
        with pytest.raises(EngineError, match="all are down"):
            await broadcaster.publish(small_adapter(2))

    told(story, readers)
    assert sorted(readers["b"].loaded) == [0, 1, 7, 7]


def test_a_reader_that_was_started_again_gets_everything_at_once() -> None:
    """Also while it is sent something, or fails and waits for its next attempt."""
    readers = {"a": Slow(), "b": Slow()}

    async def story(broadcaster: Broadcaster) -> None:
        await broadcaster.publish(small_adapter(7, name="rival"))
        for version, prepare in enumerate((readers["b"].runs.clear, fails)):
            prepare()
            await broadcaster.publish(small_adapter(version))
            assert not broadcaster.holds(1, "policy")
            readers["b"].runs.set()
            readers["b"].error = None
            started = asyncio.get_running_loop().time()
            await broadcaster.reload(1)
            assert asyncio.get_running_loop().time() - started < AGAIN_S / 10
            assert broadcaster.holds(1, "policy")
            assert broadcaster.holds(1, "rival")
        fails()
        with pytest.raises(EngineError, match="b is down"):
            await broadcaster.reload(1)

    def fails() -> None:
        readers["b"].error = EngineError("b is down")

    told(story, readers)
    assert readers["b"].loaded == [7, 7, 0, 7, 1]


def test_a_wrong_server_ends_the_run_at_its_start_and_a_refusal_at_any_time() -> None:
    async def down(broadcaster: Broadcaster) -> None:
        with pytest.raises(EngineError, match="no answer") as error:
            await broadcaster.publish(small_adapter(0))
        assert error.value.__notes__ == ["1 of 2 servers lack 'policy'"]

    bad = Slow(load_s=3.0)  # much later than the other one
    bad.error = EngineError("no answer")
    told(down, {"a": Slow(), "b": bad})

    async def refused(broadcaster: Broadcaster) -> None:
        await broadcaster.publish(small_adapter(0))
        picky.error = AdapterError("rank 3")
        await broadcaster.publish(small_adapter(1))  # it answers too late for this one
        await asyncio.sleep(5)
        with pytest.raises(AdapterError, match="rank 3"):
            await broadcaster.publish(small_adapter(2))

    picky = Slow(load_s=3.0)
    told(refused, {"a": Slow(), "b": picky})


def test_an_adapter_that_is_refused_is_forgotten() -> None:
    """Its error is raised once, though both readers refuse it, and neither is asked again."""
    readers = {"a": Slow(), "b": Slow()}

    async def story(broadcaster: Broadcaster) -> None:
        await broadcaster.publish(small_adapter(0))
        for reader in readers.values():
            reader.error = AdapterError("rank 3")
        with pytest.raises(AdapterError, match="rank 3"):
            await broadcaster.publish(small_adapter(7, name="rival"))
        await asyncio.sleep(1)
        for reader in readers.values():
            reader.error = None
        await broadcaster.publish(small_adapter(1))
        readers["b"].error = EngineError("b is down")
        await broadcaster.publish(small_adapter(2))
        readers["b"].error = None
        await asyncio.sleep(AGAIN_S + 1)
        assert broadcaster.holds(1, "policy")
        assert [*broadcaster.live()] == ["policy"]

    told(story, readers)
    assert [reader.loaded for reader in readers.values()] == [[0, 1, 2]] * 2


def test_a_dropped_name_is_dropped_everywhere_and_may_come_again() -> None:
    readers = {"a": Slow(), "b": Slow()}

    async def story(broadcaster: Broadcaster) -> None:
        for round in range(2):
            await broadcaster.publish(small_adapter(round, name="rival"))
            assert broadcaster.holds(1, f"rival@{round}")
            await broadcaster.drop("rival")
        with pytest.raises(AdapterError, match="'rival' is not live"):
            await broadcaster.drop("rival")

    told(story, readers)
    assert [reader.dropped for reader in readers.values()] == [["rival"] * 2] * 2


@pytest.mark.parametrize("lost", [False, True])
def test_a_drop_that_failed_is_asked_again(lost: bool) -> None:
    """Also where the server has lost the adapter meanwhile."""
    readers = {"a": Slow(), "b": Slow()}

    async def story(broadcaster: Broadcaster) -> None:
        await broadcaster.publish(small_adapter(0))
        await broadcaster.publish(small_adapter(7, name="rival"))
        readers["b"].error = EngineError("b is down")
        await broadcaster.drop("rival")
        readers["b"].error = None
        if lost:
            readers["b"].drop = unknown
        await asyncio.sleep(AGAIN_S + 1)
        await broadcaster.publish(small_adapter(1))
        assert broadcaster.holds(1, "policy")

    async def unknown(name: str) -> None:
        raise AdapterError(f"{name!r} is not live")

    told(story, readers)
    assert readers["a"].dropped == ["rival"]
    assert readers["b"].dropped == ([] if lost else ["rival"])


def test_over_http_a_stopped_server_is_left_out_until_it_has_the_newest_version() -> None:
    """Eight servers on real sockets; one does not answer for a while."""
    runs = threading.Event()
    runs.set()

    def live(asked: HttpAsked) -> HttpAnswer:
        info = unpack_adapter(asked.body).info
        return HttpAnswer(asdict(info))

    async def slow(asked: HttpAsked) -> HttpAnswer:
        await asyncio.to_thread(runs.wait)
        return live(asked)

    last = ScriptedServer(slow)
    others = [ScriptedServer(live) for _ in range(7)]

    async def story(urls: list[str]) -> None:
        broadcaster = Broadcaster(zip(urls, publishers(urls), strict=True))
        loop = asyncio.get_running_loop()
        try:
            await broadcaster.publish(small_adapter(0))
            runs.clear()
            await broadcaster.publish(small_adapter(1))
            started = loop.time()
            for version in range(2, 12):
                await broadcaster.publish(small_adapter(version))
            assert max(broadcaster.lags().values()) == 11
            assert loop.time() - started < 5  # nothing waited for its time limit
            runs.set()
            await caught_up(broadcaster, 7, "policy@11")
        finally:
            runs.set()
            await broadcaster.aclose()

    with ExitStack() as stack:
        urls = [stack.enter_context(serving(server)) for server in (*others, last)]
        asyncio.run(story(urls))
    got = [unpack_adapter(asked.body).version for asked in last.asked]
    assert got == [0, 1, 11]
