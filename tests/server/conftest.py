"""Servers on free ports: the built-in model behind one, scripted engines behind others."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from fakes import FakeEngine
from fastapi import FastAPI

from legos import apply_lora, load_model
from legos.chat.tokenizer import ChatTokenizer
from legos.chat.tools import PLAIN_TOOLS, ToolFormat
from legos.clients.engine import EngineClient
from legos.device import LocalEngine, ModelHandle
from legos.server.app import make_app, service_of
from legos.server.listen import bind, serve_app
from legos.server.options import ServerOptions
from legos.server.service import Service
from legos.wiring.http import app_of


@dataclass
class Served:
    """An application that answers at an address, on an event loop of its own thread."""

    app: FastAPI
    url: str
    loop: asyncio.AbstractEventLoop
    stop: Callable[[], object]

    @property
    def service(self) -> Service:
        return service_of(self.app)

    def http(self) -> httpx.Client:
        """A client, which reads no certificates: that takes 50 ms."""
        return httpx.Client(base_url=self.url, timeout=30, trust_env=False, verify=False)


@contextmanager
def serving(app: FastAPI, *, drain_s: float = 5.0) -> Iterator[Served]:
    """Serve within the block."""
    started = threading.Event()
    told: list[Served] = []
    failed: list[BaseException] = []

    async def serve() -> None:
        end = asyncio.Event()
        loop = asyncio.get_running_loop()
        async with serve_app(app, bind("127.0.0.1", 0), drain_s=drain_s) as url:
            told.append(Served(app, url, loop, lambda: loop.call_soon_threadsafe(end.set)))
            started.set()
            await end.wait()

    def run() -> None:
        try:
            asyncio.run(serve())
        except BaseException as error:
            failed.append(error)
        finally:
            started.set()

    thread = threading.Thread(target=run, name="server")
    thread.start()
    started.wait(30)
    assert told, failed
    try:
        yield told[0]
    finally:
        if thread.is_alive():
            told[0].stop()
        thread.join(30)
    assert not thread.is_alive()
    assert not failed


MakeServer = Callable[..., AbstractContextManager[Served]]


@pytest.fixture(scope="session")
def model() -> Iterator[ModelHandle]:
    """The built-in model."""
    handle = load_model()
    apply_lora(handle)
    yield handle
    handle.close()


@pytest.fixture(scope="session")
def engine(model: ModelHandle) -> Iterator[LocalEngine]:
    made = model.make_engine()
    made.load_adapter(model.base_adapter()).result()
    yield made
    made.close()


@pytest.fixture(scope="session")
def served(model: ModelHandle, engine: LocalEngine) -> Iterator[Served]:
    """The built-in model over HTTP, its policy live."""
    with serving(app_of(model, engine, name="builtin", options=ServerOptions())) as server:
        yield server


@pytest.fixture(scope="session")
def tokenizer(model: ModelHandle) -> ChatTokenizer:
    return model.tokenizer


@pytest.fixture
def fake(tokenizer: ChatTokenizer) -> MakeServer:
    """Serves a scripted engine: ``with fake(FakeEngine(...), max_queue=2) as server``."""

    def make(
        engine: FakeEngine,
        *,
        drain_s: float = 5.0,
        tools: ToolFormat = PLAIN_TOOLS,
        own: ChatTokenizer | None = None,
        **options: Any,
    ) -> AbstractContextManager[Served]:
        words = own or tokenizer
        service = Service(
            EngineClient(engine, words, use_threads=True),
            engine,
            words,
            model="small",
            context=1024,
            tools=tools,
            lora_scale=2.0,
            options=ServerOptions(**options),
        )
        return serving(make_app(service), drain_s=drain_s)

    return make


@pytest.fixture
def eventually() -> Callable[..., bool]:
    """Waits for a condition: ``eventually(lambda: ..., seconds=2)`` is whether it came."""

    def wait(condition: Callable[[], bool], *, seconds: float = 5.0) -> bool:
        deadline = time.monotonic() + seconds
        while not condition() and time.monotonic() < deadline:
            time.sleep(0.005)
        return condition()

    return wait
