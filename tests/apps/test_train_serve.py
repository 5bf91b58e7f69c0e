"""``legos train --serve``: the policy that is being trained answers, and ends with the run."""

import asyncio
import json
import logging
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from hostile_clients import Clients, aside

from legos import Message, OpenAIClient, Sampling
from legos.apps import served_run
from legos.apps.shared_engine import SharedEngine
from legos.cli import main
from legos.errors import AdapterError, EngineError
from legos.fakes import FakeEngine
from legos.records.request import Request, Result
from legos.weights.adapter import Adapter, LoraShape

WINDOW_S = 5.0
SMALL = [
    "--training.min-samples-per-step",
    "64",
    "--play.tasks-per-step",
    "8",
    "--play.options.largest",
    "6",
]


def adapter(name: str) -> Adapter:
    shape = LoraShape(rank=1, scale=1.0, num_layers=1, modules=("q",))
    return Adapter(name=name, version=3, shape=shape, arrays={})


async def newest_version(url: str, *, above: int) -> int:
    """Ask until a version above is the one that answers."""
    async with OpenAIClient(f"{url}/v1", retries=12) as client:
        async with asyncio.timeout(60):
            while True:
                said = await client.complete((Message("user", "hello"),), Sampling(max_tokens=2))
                assert said.trainable
                if min(said.versions) > above:
                    return max(said.versions)
                await asyncio.sleep(0.05)


@contextmanager
def training(folder: Path, *options: str) -> Iterator[tuple["subprocess.Popen[bytes]", str, Path]]:
    """A run that serves its policy, its address, and the file with what it says."""
    said = folder / "said"
    command = [sys.executable, "-u", "-m", "legos", "train", "--serve", "0", *options]
    with (
        said.open("wb") as output,
        subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT) as process,
    ):
        try:
            until = time.monotonic() + 60
            while not (found := re.search(r"http://127\.0\.0\.1:\d+", said.read_text())):
                assert process.poll() is None, said.read_text()
                assert time.monotonic() < until
                time.sleep(0.05)
            yield process, found[0], said
        finally:
            process.kill()


LONG = ["--steps", "100000", "--loop.evaluate-every", "0", *SMALL]


@pytest.mark.slow
def test_the_policy_is_served_while_it_is_trained(tmp_path: Path) -> None:
    with training(tmp_path, "--out", str(tmp_path / "run"), *LONG) as (process, url, said):
        first = asyncio.run(newest_version(url, above=-1))
        assert asyncio.run(newest_version(url, above=first + 1)) > first
        process.terminate()
        ended = time.monotonic()
        process.wait(30)
    told = said.read_text()
    assert process.returncode == 143, told
    assert time.monotonic() - ended < 10
    assert f"the policy is served at {url}/v1" in told
    with pytest.raises(httpx.ConnectError):
        httpx.get(url)


@pytest.mark.nightly
def test_clients_leave_training_a_quarter_of_its_speed(tmp_path: Path) -> None:
    """Steps per second while 64 clients ask, against those without them, in turn.

    The answers have 64 tokens. With very short ones most time goes to HTTP, and not to the engine.
    """
    metrics, steps = tmp_path / "run" / "metrics.jsonl", {"alone": 0, "asked": 0}

    def num_steps() -> int:
        return len(metrics.read_text().splitlines()) if metrics.exists() else 0

    with training(tmp_path, "--out", str(tmp_path / "run"), *LONG) as (process, url, _):
        clients, until = Clients(int(url.rpartition(":")[2])), time.monotonic() + 60
        while num_steps() < 3:  # the first ones compile
            assert process.poll() is None
            assert time.monotonic() < until
            time.sleep(0.1)
        aside(clients.honest_ones(1.0))
        for _ in range(2):
            before = num_steps()
            time.sleep(WINDOW_S)
            between = num_steps()
            aside(clients.honest_ones(WINDOW_S))
            steps["alone"] += between - before
            steps["asked"] += num_steps() - between
    answered = clients.statuses["honest", 200]
    logging.getLogger(__name__).info("steps in %g s: %s; %d answers", WINDOW_S, steps, answered)
    assert answered > 64
    assert steps["asked"] >= 0.25 * steps["alone"] > 0, (steps, answered)


def play_episodes(url: str, ended: threading.Event) -> None:
    """Play and reward episodes until the run ends."""
    chat = {"messages": [{"role": "user", "content": "nim 5"}], "max_tokens": 4}
    with httpx.Client(base_url=f"{url}/v1", timeout=60, trust_env=False) as http:
        while not ended.is_set():
            try:
                episode = http.post("/episodes", json={"wait_s": 1})
                if episode.status_code != 200:
                    continue
                headers = {"authorization": f"Bearer {episode.json()['api_key']}"}
                said = http.post("/chat/completions", json=chat, headers=headers).json()
                reward = float(said["choices"][0]["message"]["content"] == "5")
                http.post(f"/episodes/{episode.json()['id']}/reward", json={"reward": reward})
            except (httpx.TransportError, KeyError):  # the run starts or ends
                time.sleep(0.05)


@pytest.mark.slow
def test_programs_train_the_policy_with_episodes_of_their_own(tmp_path: Path) -> None:
    run, ended = tmp_path / "run", threading.Event()
    options = ["--arena", "programs", "--steps", "3", "--out", str(run)]
    small = ["--training.min-samples-per-step", "16", "--play.tasks-per-step", "4"]
    with (
        ThreadPoolExecutor(8) as programs,
        training(tmp_path, *options, *small) as (process, url, said),
    ):
        for _ in range(8):
            programs.submit(play_episodes, url, ended)
        try:
            process.wait(120)
        finally:
            ended.set()
    assert process.returncode == 0, said.read_text()
    steps = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert steps[-1]["step"] == 3
    assert all(step["tokens_trained"] > 0 for step in steps[1:])


def test_outsiders_do_not_replace_what_is_trained() -> None:
    engine = FakeEngine()
    shared = SharedEngine(engine)
    engine.load_adapter(adapter("policy")).result()
    with pytest.raises(AdapterError, match="only its trainer replaces it"):
        shared.load_adapter(adapter("policy")).result()
    with pytest.raises(AdapterError, match="only its trainer replaces it"):
        shared.drop_adapter("policy").result()
    assert shared.load_adapter(adapter("rival")).result().name == "rival"
    assert dict(shared.versions()) == {"policy": 3, "rival": 3}
    assert shared.drop_adapter("rival").result() is None


def test_tokens_of_outsiders_are_counted_apart() -> None:
    engine = FakeEngine(hold=True)
    shared = SharedEngine(engine)
    told: list[Sequence[tuple[int, Result]]] = []
    ours, theirs = told.append, list[Sequence[tuple[int, Result]]]().append
    engine.submit([(1, Request(prompt_ids=(1, 2, 3), max_tokens=9))], theirs)
    shared.submit([(1, Request(prompt_ids=(1, 2), max_tokens=9))], ours)
    shared.submit([(2, Request(prompt_ids=(1,), max_tokens=9))], ours)
    shared.submit([(3, Request(prompt_ids=(1, 2, 3, 4), max_tokens=9, adapter="base"))], ours)
    shared.submit([(4, Request(prompt_ids=(1,), max_tokens=9, adapter="base"))], ours)
    shared.cancel([2, 4], ours)
    engine.release()
    assert shared.tokens_generated == 2  # of the trained adapter
    assert sorted(number for results in told for number, _ in results) == [1, 2, 3, 4]


def test_a_port_that_is_taken_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        code = main(["train", "--serve", str(port), "--out", str(tmp_path / "run"), *SMALL])
    assert code == 2
    assert str(port) in capsys.readouterr().err


def test_a_run_that_serves_limits_memory_arenas_first(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    monkeypatch.setattr(served_run, "limit_arenas", lambda: done.append("arenas"))
    monkeypatch.setattr(served_run, "bind", lambda *_: done.append("port"))

    async def refuse() -> None:
        raise EngineError("no weights")

    async def begin() -> None:
        trainer: Any = SimpleNamespace(publish_weights=refuse)
        shared: Any = None
        address = {"name": "tiny", "host": "127.0.0.1", "port": 0}
        async with served_run.served_run(trainer, shared, **address, say=done.append):
            pass

    with pytest.raises(EngineError, match="no weights"):
        asyncio.run(begin())
    assert done == ["arenas", "port"]
