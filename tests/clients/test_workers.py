"""Workers: judges and tools on several servers, in turn, without those that have failed."""

import asyncio
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from scripted_server import HttpAnswer, HttpAsked, ScriptedServer, serving

from legos import Arena, GRPOCredit, Task, Workers
from legos.errors import ConfigError, EndpointError, RequestError
from legos.fakes import ScriptedClient
from legos.play.table import Table
from legos.protocols import Seat

MODELS = {"data": [{"id": "judge"}]}


class WorkingServer(ScriptedServer):
    """A server of another make: tools, a judge who prefers the first answer, and no ``/health``."""

    def __init__(self) -> None:
        super().__init__(self.work, models=MODELS)
        self.down = False
        self.done = 0

    def work(self, asked: HttpAsked) -> HttpAnswer:
        if self.down:
            return HttpAnswer(b"bad gateway", 502)
        if asked.path == "/health":
            return HttpAnswer(b"not found", 404)
        self.done += 1
        if asked.path == "/run":
            return HttpAnswer({"sum": sum(asked.body["numbers"])})
        if asked.path == "/refused":
            return HttpAnswer({"error": {"message": "no numbers"}}, 400)
        return HttpAnswer({"choices": [{"message": {"content": "[A]"}, "finish_reason": "stop"}]})


@pytest.fixture(autouse=True)
def without_pauses(retries_at_once: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("legos.clients.pool.CHECK_S", 0.05)


def test_tools_are_asked_in_turn_and_around_those_that_fail() -> None:
    servers = [WorkingServer() for _ in range(3)]

    async def story(urls: list[str]) -> None:
        workers = Workers(*urls)

        async def add(number: int) -> None:
            assert await workers.post("/run", {"numbers": [number, 1]}) == {"sum": number + 1}

        for number in range(6):
            await add(number)
        assert [server.done for server in servers] == [2, 2, 2]
        servers[1].down = True
        await asyncio.gather(*map(add, range(30)))
        assert servers[1].done == 2
        assert sum(server.done for server in servers) == 36
        with pytest.raises(RequestError, match="no numbers"):
            await workers.post("/refused", {})
        servers[1].down = False
        async with asyncio.timeout(10):
            while servers[1].done == 2:
                await add(1)
                await asyncio.sleep(0.01)
        for server in servers:
            server.down = True
        with pytest.raises(EndpointError, match="bad gateway"):
            await add(1)
        await workers.aclose()

    with ExitStack() as stack:
        asyncio.run(story([stack.enter_context(serving(server)) for server in servers]))


class Duel(Arena):
    """A text is compared with another by a judge."""

    roles = ("writer", "judge")
    tasks_per_step, group_size = 4, 2

    def __init__(self, judges: Workers) -> None:
        super().__init__(ScriptedClient(lambda _: "text"), credit_assigner=GRPOCredit())
        self.judges = judges

    def tasks(self, rng: Random) -> Iterable[Task]:
        for number in range(100):
            yield Task(id=f"{number}")

    def seats(self, task: Task) -> Mapping[str, Seat]:
        seats = dict(super().seats(task))
        judge = replace(seats["judge"], client=self.judges, name="judge", trainable=False)
        return {**seats, "judge": judge}

    async def play(self, t: Table) -> Mapping[str, float]:
        text = (await t.ask("writer", "Write.")).answer
        verdict = await t.judge("judge", "Which is better?", text, "other")
        assert verdict.score == 0.5  # the first one in both orders
        return {"writer": 1.0, "judge": 0.0}


def test_a_judge_that_dies_costs_no_play() -> None:
    servers = [WorkingServer() for _ in range(2)]

    async def story(urls: list[str]) -> list[Any]:
        workers = Workers(*urls)
        arena = Duel(workers)
        steps = [await arena.step(concurrency=8)]
        servers[0].down = True
        steps.append(await arena.step(concurrency=8))
        await workers.aclose()
        return steps

    with ExitStack() as stack:
        steps = asyncio.run(story([stack.enter_context(serving(server)) for server in servers]))
    assert [episode.error for step in steps for episode in step.episodes] == [None] * 16
    assert all(server.done > 0 for server in servers)


def test_workers_need_an_address() -> None:
    with pytest.raises(ConfigError, match="give at least one"):
        Workers()


def test_closed_workers_leave_nothing_behind(dead_port: int) -> None:
    async def leave() -> int:
        workers = Workers(f"http://127.0.0.1:{dead_port}", retries=0)
        with pytest.raises(EndpointError):
            await workers.post("/run", {})
        await workers.aclose()
        await asyncio.sleep(0)
        return len(asyncio.all_tasks())

    assert asyncio.run(leave()) == 1
