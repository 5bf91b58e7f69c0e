"""What all tests share: Hypothesis's manners, tiny models, an engine that steps when told to."""

import gc
import os
import signal
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Any, ClassVar, cast

import blas  # noqa: F401
import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from threadpoolctl import threadpool_limits
from tiny_folders import write_tiny_model

from legos.records.limits import EngineLimits
from legos.records.request import Generated, Request, Result
from legos.weights.adapter import Adapter, LoraShape

settings.register_profile(
    "legos",
    deadline=None,  # a busy machine is no bug
    max_examples=60,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("legos")

THRESHOLDS = gc.get_threshold()  # read before a fixture of a module trains

WORKERS = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
if WORKERS > 1:  # the threads of matrix products are shared between the processes
    threads = max((os.cpu_count() or 1) // WORKERS, 1)
    threadpool_limits(limits=threads, user_api="blas")
    os.environ.setdefault("OPENBLAS_NUM_THREADS", str(threads))  # of the programs that tests start


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip the tests that need torch where it is not installed."""
    if find_spec("torch") is None:
        skip = pytest.mark.skip(reason="torch is not installed; uv pip install 'torch<2.14'")
        for item in items:
            if item.get_closest_marker("torch"):
                item.add_marker(skip)


@pytest.fixture
def retries_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A failed request is repeated without a pause."""
    monkeypatch.setattr("legos.clients.transport.FIRST_PAUSE_S", 0.0)


@pytest.fixture
def dead_port() -> Iterator[int]:
    """A port on which nothing listens, and which nothing else gets."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


@pytest.fixture(scope="session")
def tiny_models(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """Folders of random models: two architectures, and a vocabulary sampled on the device."""
    root = tmp_path_factory.mktemp("models")
    return {
        "llama": write_tiny_model(root / "llama"),
        "qwen3": write_tiny_model(root / "qwen3", architecture="qwen3", seed=1),
        "wide": write_tiny_model(root / "wide", vocab=5000, seed=2),
    }


@pytest.fixture(autouse=True)
def usual_collector() -> Iterator[None]:
    """A run quiets Python's cycle collector for the rest of its process; here others follow."""
    yield
    gc.set_threshold(*THRESHOLDS)
    gc.unfreeze()


@pytest.fixture(autouse=True)
def usual_interrupt() -> Iterator[None]:
    """A shell's background jobs ignore SIGINT, and so would all processes that they start."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


class StepWorker:
    """A worker whose ticks are asked for, one by one."""

    def __init__(self) -> None:
        self._tick: Callable[[], bool] = lambda: False
        self.closed = False
        self._looks = count()

    def clock(self) -> float:
        return float(next(self._looks))

    def call(self, function: Callable[..., Any], *args: Any) -> "Future[Any]":
        future: Future[Any] = Future()
        try:
            future.set_result(function(*args))
        except Exception as error:
            future.set_exception(error)
        return future

    @property
    def alive(self) -> bool:
        return not self.closed

    @property
    def turn(self) -> int | None:
        return None

    def abandon(self) -> None:
        self.closed = True

    def set_tick(self, tick: Callable[[], bool]) -> None:
        self._tick = tick

    def wake(self) -> None:
        pass

    def tick(self) -> bool:
        return self._tick()

    def close(self) -> None:
        self.closed = True


class EngineRoom:
    """An engine of a tiny model, stepped by hand, and the answers that it delivered.

    Attributes:
        tree: a trainer's module tree with the same weights as the engine's.
        engine: the engine, an adapter of version 0 live in it.
        answers: number -> everything that was delivered under it.
    """

    _known: ClassVar[dict[Path, Any]] = {}  # folder -> what its first engine loaded and probed

    def __init__(self, folder: Path, *, context: int = 1024, **limits: Any) -> None:
        import mlx.core as mx

        from legos.mlx.generate.engine import MlxEngine
        from legos.mlx.model.load import base_arrays, load_tree
        from legos.mlx.model.lora import add_lora, lora_arrays, lora_shape

        self.worker = StepWorker()
        base, capabilities = self._known.get(folder, (None, None))
        self.tree: Any = load_tree(folder, share=base)
        base = base_arrays(self.tree) if base is None else base
        self.shape: LoraShape = lora_shape(self.tree, rank=4, alpha=8.0, num_layers=2, head=True)
        add_lora(self.tree, self.shape, seed=0)
        self.sizes = {name: array.shape for name, array in lora_arrays(self.tree).items()}
        num_vocabulary = self.tree(mx.array([[1]])).shape[-1]
        self.engine = MlxEngine(
            cast("Any", self.worker),
            load_tree(folder, share=base),
            num_vocabulary=num_vocabulary,
            context=context,
            limits=EngineLimits(**limits),
            capabilities=capabilities,
        )
        self._known[folder] = base, self.engine.capabilities
        self.answers: dict[int, list[Result]] = {}
        self.load(0)

    def adapter(self, version: int, *, name: str = "policy", size: float = 0.15) -> Adapter:
        """Random LoRA arrays, none of them zero; the same for the same version."""
        rng = np.random.default_rng(version)
        arrays = {
            key: (size * rng.standard_normal(shape)).astype(np.float32)
            for key, shape in self.sizes.items()
        }
        return Adapter(name=name, version=version, shape=self.shape, arrays=arrays)

    def load(self, version: int) -> None:
        self.make_live(self.adapter(version))

    def make_live(self, adapter: Adapter) -> None:
        """Load an adapter into the engine, and into the tree of a trainer beside it."""
        import mlx.core as mx

        from legos.mlx.model.lora import set_lora_arrays

        self.engine.load_adapter(adapter).result()
        set_lora_arrays(self.tree, {key: mx.array(array) for key, array in adapter.arrays.items()})

    def deliver(self, results: Sequence[tuple[int, Result]]) -> None:
        for number, result in results:
            self.answers.setdefault(number, []).append(result)

    def submit(self, requests: Mapping[int, Request]) -> None:
        self.engine.submit(list(requests.items()), self.deliver)

    def cancel(self, *numbers: int) -> None:
        self.engine.cancel(numbers, self.deliver)

    def tick(self, times: int = 1) -> None:
        for _ in range(times):
            self.worker.tick()

    def finish(self) -> None:
        while self.worker.tick():
            pass

    def ask(self, requests: Sequence[Request]) -> list[Generated]:
        """All requests at once, to the end."""
        first = max(self.answers, default=-1) + 1
        self.submit({first + index: request for index, request in enumerate(requests)})
        self.finish()
        return [self.answer(first + index) for index in range(len(requests))]

    def answer(self, number: int) -> Generated:
        """What was delivered under a number, once and no error."""
        (result,) = self.answers[number]
        assert isinstance(result, Generated), result
        return result

    def error(self, number: int) -> Exception:
        """The error that was delivered under a number, once."""
        (result,) = self.answers[number]
        assert isinstance(result, Exception), result
        return result


MakeRoom = Callable[..., EngineRoom]


@pytest.fixture(params=["off", "on"], ids=["read at once", "ahead"])
def decode_ahead(request: pytest.FixtureRequest) -> str:
    """Whether engine rooms read every step at once, or launch the next one first."""
    return request.param


@pytest.fixture
def room(tiny_models: Mapping[str, Path], decode_ahead: str) -> MakeRoom:
    """Makes engine rooms: ``room("llama", max_rows=4)``."""

    def make(model: str = "llama", **limits: Any) -> EngineRoom:
        options: dict[str, Any] = {"decode_ahead": decode_ahead, **limits}
        return EngineRoom(tiny_models[model], **options)

    return make
