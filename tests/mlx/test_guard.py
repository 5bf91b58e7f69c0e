"""The watchdog: a dead or stuck engine answers everybody and comes back with its adapters."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from legos.data.request import Generated, Request, Result
from legos.errors import EngineError
from legos.mlx.generate.engine import MlxEngine
from legos.mlx.generate.guard import MAX_RESTARTS, GuardedEngine
from legos.mlx.model.load import load_tree
from legos.mlx.model.worker import ThreadWorker
from legos.weights.adapter import Adapter

REQUEST = Request(prompt_ids=(5, 6, 7), max_tokens=4, seed=1)


class House:
    """A guarded engine of a tiny model, and what it delivered."""

    def __init__(self, folder: Path, adapter: Callable[[int], Adapter]) -> None:
        self.folder = folder
        self.made: list[MlxEngine] = []
        self.workers: list[ThreadWorker] = []
        self.answers: dict[int, Result] = {}
        self.heard = threading.Condition()
        self.guarded = GuardedEngine(self.make, stuck_after_s=0.5, check_every_s=0.02)
        self.guarded.load_adapter(adapter(0)).result()
        self.guarded.load_adapter(adapter(4)).result()

    def make(self) -> MlxEngine:
        worker = ThreadWorker("engine")

        def build() -> MlxEngine:
            tree: Any = load_tree(self.folder)
            return MlxEngine(worker, tree, num_vocabulary=tree.args.vocab_size, context=256)

        engine = worker.call(build).result()
        self.workers.append(worker)
        self.made.append(engine)
        return engine

    def deliver(self, results: Sequence[tuple[int, Result]]) -> None:
        with self.heard:
            for number, result in results:
                assert number not in self.answers
                self.answers[number] = result
            self.heard.notify_all()

    def ask(self, *numbers: int) -> list[Result]:
        self.guarded.submit([(number, REQUEST) for number in numbers], self.deliver)
        return self.wait(*numbers)

    def wait(self, *numbers: int) -> list[Result]:
        with self.heard:
            assert self.heard.wait_for(lambda: set(numbers) <= self.answers.keys(), timeout=20)
        return [self.answers[number] for number in numbers]

    def settle(self) -> None:
        deadline = time.monotonic() + 20
        while self.guarded.trouble is not None and time.monotonic() < deadline:
            time.sleep(0.01)


@pytest.fixture
def house(tiny_models: Mapping[str, Path], room: Callable[..., Any]) -> Iterator[House]:
    made = House(tiny_models["llama"], room("llama").adapter)
    yield made
    made.guarded.close()


def test_a_stuck_engine_is_replaced_and_knows_its_adapters(house: House) -> None:
    (before,) = house.ask(0)
    assert isinstance(before, Generated)
    released = threading.Event()
    sampler: Any = house.made[0]._scheduler.sampler
    sampler.draw = lambda *_, **__: released.wait(10)  # a step that does not end
    house.guarded.submit([(1, REQUEST), (2, REQUEST)], house.deliver)
    for error in house.wait(1, 2):
        assert isinstance(error, EngineError)
        assert "a step has taken more than" in str(error)
    house.settle()
    assert house.guarded.restarts == 1
    assert house.guarded.versions() == {"policy": 4}
    (after,) = house.ask(3)
    assert after == before
    released.set()  # the old one wakes up: nobody hears of it
    time.sleep(0.1)
    assert len(house.answers) == 4


def test_a_dead_thread_is_noticed_while_nothing_is_asked(house: House) -> None:
    house.workers[0].abandon()  # as if its thread had died
    deadline = time.monotonic() + 20
    while house.guarded.restarts == 0 and time.monotonic() < deadline:
        time.sleep(0.01)
    house.settle()
    (answer,) = house.ask(0)
    assert isinstance(answer, Generated)
    assert answer.versions == (4,) * 4


def test_what_dies_again_and_again_stays_down(house: House) -> None:
    for _ in range(MAX_RESTARTS + 1):
        house.settle()
        house.workers[-1].abandon()
        deadline = time.monotonic() + 20
        while house.guarded.trouble is None and time.monotonic() < deadline:
            time.sleep(0.001)
        if len(house.made) > MAX_RESTARTS:
            break
        house.settle()
    deadline = time.monotonic() + 20
    while "died 4 times" not in (house.guarded.trouble or "") and time.monotonic() < deadline:
        time.sleep(0.01)
    assert "died 4 times" in (house.guarded.trouble or "")
    (error,) = house.ask(9)
    assert isinstance(error, EngineError)
