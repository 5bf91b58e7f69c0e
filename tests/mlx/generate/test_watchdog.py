"""The watchdog: a dead or stuck engine answers everybody and comes back with its adapters."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from legos.errors import EngineError
from legos.mlx.generate.engine import MlxEngine
from legos.mlx.generate.watchdog import MAX_RESTARTS, WatchedEngine
from legos.mlx.model.load import load_tree
from legos.mlx.model.worker import ThreadWorker
from legos.records.request import Generated, Request, Result
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
        self.adapter = adapter
        self.guarded = WatchedEngine(self.make, stuck_after_s=0.5, every_s=0.02)
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

    def ask_again(self, number: int) -> list[Result]:
        """Ask once the engine was replaced."""
        deadline = time.monotonic() + 20
        while self.guarded.restarts == 0 and time.monotonic() < deadline:
            time.sleep(0.01)
        self.settle()
        return self.ask(number)

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
    (answer,) = house.ask_again(0)
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


def test_loads_drops_and_scores_behind_a_stuck_step_get_an_error(house: House) -> None:
    released = threading.Event()
    sampler: Any = house.made[0]._scheduler.sampler
    sampler.draw = lambda *_, **__: released.wait(20)
    house.guarded.submit([(1, REQUEST)], house.deliver)
    while house.made[0].turn is None:
        time.sleep(0.001)
    waiting = [
        house.guarded.load_adapter(house.adapter(5)),
        house.guarded.drop_adapter("policy"),
        house.guarded.score([((5, 6), [(7,), (8,)])], end_ids=(2,)),
    ]
    for future in waiting:
        assert isinstance(future.exception(timeout=20), EngineError)
    house.settle()
    assert house.guarded.versions() == {"policy": 4}
    released.set()


def test_a_load_that_hangs_is_noticed_as_a_step_is(house: House) -> None:
    released = threading.Event()
    scheduler: Any = house.made[0]._scheduler
    scheduler.load = lambda *_: released.wait(20)
    loading = house.guarded.load_adapter(house.adapter(5))
    assert isinstance(loading.exception(timeout=20), EngineError)
    house.settle()
    assert house.guarded.restarts == 1
    (answer,) = house.ask(0)
    assert isinstance(answer, Generated)
    released.set()


def test_a_drop_right_after_its_load_holds_after_a_restart(house: House) -> None:
    released = threading.Event()
    house.made[0].run(lambda _: released.wait(0.3))  # what comes now waits
    rival = replace(house.adapter(9), name="rival")
    loaded, dropped = house.guarded.load_adapter(rival), house.guarded.drop_adapter("rival")
    released.set()
    assert loaded.result(timeout=20).version == 9
    dropped.result(timeout=20)
    house.workers[0].abandon()
    (answer,) = house.ask_again(0)
    assert isinstance(answer, Generated)
    assert house.guarded.versions() == {"policy": 4}


def test_a_receiver_that_fails_keeps_nothing_from_the_others(house: House) -> None:
    def broken(_: object) -> None:
        raise RuntimeError("the loop is closed")

    held = threading.Event()
    house.made[0].run(lambda _: held.wait(0.2))  # both are answered by one step
    house.guarded.submit([(1, REQUEST)], broken)
    house.guarded.submit([(1, REQUEST), (2, REQUEST)], house.deliver)
    held.set()
    assert all(isinstance(answer, Generated) for answer in house.wait(1, 2))


STOPPED = """
import sys, time
from pathlib import Path
from legos.records.request import Request
from legos.mlx.generate.engine import MlxEngine
from legos.mlx.generate.watchdog import WatchedEngine
from legos.mlx.model.load import load_tree
from legos.mlx.model.worker import ThreadWorker

def make():
    worker = ThreadWorker("engine")
    build = lambda: MlxEngine(worker, load_tree(Path(sys.argv[1])), num_vocabulary=358, context=256)
    return worker.call(build).result()

guarded = WatchedEngine(make, stuck_after_s=2.0, every_s=0.05)
sampler = guarded._engine._scheduler.sampler
draw, answers = sampler.draw, []

def slow(*args, **options):
    print("inside", flush=True)
    for _ in range(20):
        time.sleep(0.05)
    return draw(*args, **options)

sampler.draw = slow
guarded.submit([(1, Request(prompt_ids=(5,), max_tokens=1, adapter="base"))], answers.extend)
while not answers:
    time.sleep(0.01)
print(type(answers[0][1]).__name__, guarded.restarts, flush=True)
guarded.close()
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="nothing stops a process here")
def test_a_process_that_was_stopped_keeps_its_engine(
    tiny_models: Mapping[str, Path], tmp_path: Path
) -> None:
    """Time in which the process did not run is no time that a step has taken."""
    script = tmp_path / "stopped.py"
    script.write_text(STOPPED)
    with subprocess.Popen(
        [sys.executable, script, tiny_models["llama"]], stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "inside\n"
        time.sleep(0.2)  # the watchdog checks the step before the process stops
        os.kill(child.pid, signal.SIGSTOP)
        time.sleep(4.0)
        os.kill(child.pid, signal.SIGCONT)
        assert child.stdout.readline() == "Generated 0\n"
    assert child.returncode == 0
