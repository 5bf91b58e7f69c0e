"""Every method that is promised for any thread, called from several while the engine works."""

import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from legos import apply_lora, load_model
from legos.device import worker
from legos.errors import EngineError
from legos.fakes import make_sample
from legos.losses.objective import Objective
from legos.mlx.generate import engine as engine_module
from legos.records.request import Request
from legos.records.step import BackendConfig

SECONDS = 1.0
KEEP = Objective()


@pytest.fixture
def quick_switches() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    yield
    sys.setswitchinterval(before)


@pytest.mark.slow
@pytest.mark.usefixtures("quick_switches")
def test_any_thread_may_call_the_engine_and_the_model_under_load(
    tiny_models: Mapping[str, Path],
) -> None:
    model = load_model(tiny_models["llama"])
    apply_lora(model, rank=2)
    backend: Any = model.make_backend(BackendConfig())
    engine: Any = model.make_engine()
    adapter = backend.adapter()
    engine.load_adapter(adapter).result()
    numbers, answered, failed = count(), set[int](), list[BaseException]()
    end = time.monotonic() + SECONDS

    def deliver(results: Any) -> None:
        answered.update(number for number, _ in results)

    def ask() -> None:
        first = next(numbers)
        prompts = [(5, *range(3, 3 + first % 90), n) for n in range(1, 9)]
        requests = [
            (next(numbers), Request(prompt_ids=p, max_tokens=1 + n % 7, seed=first + n))
            for n, p in enumerate(prompts)
        ]
        asked.update(number for number, _ in requests)
        engine.submit(requests, deliver)
        engine.cancel([requests[0][0]], deliver)
        time.sleep(0.02)

    asked, sample = set[int](), make_sample(range(1, 20))
    calls: dict[str, Callable[[], object]] = {
        "submit, cancel": ask,
        "stats": engine.stats,
        "versions, adapters": lambda: (engine.versions(), engine.adapters()),
        "load_adapter": lambda: engine.load_adapter(adapter).result(),
        "score": lambda: engine.score([((5, 6), [(7,), (8, 9)])], end_ids=(2,)).result(),
        "tokens_generated": lambda: engine.tokens_generated("policy").result(),
        "handle": lambda: model((1, 2, 3), adapter=adapter),
        "turns": lambda: dict(model.turns),
        "forward_backward": lambda: backend.forward_backward([sample], [1.0], KEEP).result(),
        "backend": lambda: (backend.adapter().digest, backend.snapshot().result()),
    }

    def repeat(call: Callable[[], object]) -> None:
        try:
            while time.monotonic() < end:
                call()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=repeat, args=(call,)) for call in calls.values()]
    threads += [threading.Thread(target=repeat, args=(engine.stats,))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    engine.close()
    model.close()
    assert not failed
    assert answered == asked
    assert asked


def test_a_step_that_never_ends_is_given_up(
    tiny_models: Mapping[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The requests that wait for it are answered at once, and the thread is waited for once."""
    monkeypatch.setattr(engine_module, "CLOSE_S", 0.05)
    monkeypatch.setattr(worker, "CLOSE_S", 30.0)
    model = load_model(tiny_models["llama"])
    engine: Any = model.make_engine()
    began, release = threading.Event(), threading.Event()
    answers: list[Any] = []

    def hang(_: Any) -> None:
        began.set()
        release.wait()

    running = engine.run(hang)
    assert began.wait(10.0)
    assert engine.stats()["computing"]
    engine.submit([(0, Request(prompt_ids=(5,), max_tokens=2))], answers.extend)
    started = time.monotonic()
    engine.close()
    assert time.monotonic() - started < 15.0
    ((number, error),) = answers
    assert number == 0
    assert isinstance(error, EngineError)
    release.set()
    running.result(10.0)
    model.close()


def test_a_model_whose_call_never_ends_is_given_up(
    tiny_models: Mapping[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever waits for a later call gets an error."""
    monkeypatch.setattr(worker, "CLOSE_S", 0.05)
    model: Any = load_model(tiny_models["llama"])
    began, release = threading.Event(), threading.Event()
    model.worker.call(lambda: (began.set(), release.wait()))
    assert began.wait(10.0)
    later = model.worker.call(abs, -1)
    model.close()
    with pytest.raises(EngineError, match="was closed before this call"):
        later.result(10.0)
    release.set()
    model.worker._thread.join(10.0)
    assert not model.worker._thread.is_alive()
