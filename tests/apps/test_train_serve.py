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
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from hostile_clients import Clients, aside

from legos import Message, OpenAIClient, Sampling, Trainer, load_model
from legos.apps.served_run import ServedRun
from legos.cli.process import main
from legos.errors import EngineError
from legos.weights.adapter import pack_adapter

WINDOW_S = 5.0
SMALL = [
    "--training.min-samples-per-step",
    "64",
    "--play.tasks-per-step",
    "8",
    "--play.options.largest",
    "6",
]


async def newest_version(url: str, *, above: int) -> int:
    """Ask until a version above is the one that answers."""
    async with OpenAIClient(f"{url}/v1", retries=12) as client:
        async with asyncio.timeout(100):
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
            until = time.monotonic() + 200  # where other programs run
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
        clients, until = Clients(int(url.rpartition(":")[2])), time.monotonic() + 200
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


@pytest.mark.nightly
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
    assert all(step["tokens_trained"] > 0 for step in steps[1:-1])


def test_outsiders_do_not_replace_what_is_trained_and_are_counted_apart() -> None:
    with closing(Trainer(model=load_model())) as trainer:
        own = trainer.adapters[0]
        ours, other = pack_adapter(own), pack_adapter(replace(own, name="rival"))
        kind = {"content-type": "application/octet-stream"}
        asked = {"prompt": [1, 20], "max_tokens": 5, "ignore_eos": True}
        served = ServedRun(trainer, name="tiny", host="127.0.0.1", port=0)
        said: list[str] = []

        async def ask() -> list[httpx.Response]:
            async with served.open(lambda *lines: said.extend(lines)):
                [url] = re.findall(r"http://[^/]+", said[0])
                async with httpx.AsyncClient(base_url=url, timeout=30, trust_env=False) as http:
                    return [
                        await http.post("/adapters/load", content=ours, headers=kind),
                        await http.delete("/adapters/policy"),
                        await http.post("/adapters/load", content=other, headers=kind),
                        await http.post("/v1/completions", json={**asked, "model": "policy"}),
                        await http.post("/v1/completions", json={**asked, "model": "base"}),
                    ]

        answers = asyncio.run(ask())
    assert all("only its trainer replaces it" in one.text for one in answers[:2])
    assert [one.status_code for one in answers[2:]] == [200, 200, 200]
    assert served.tokens_generated == 5  # of the trained adapter


def test_a_policy_that_cannot_be_published_leaves_no_listener(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bound: list[socket.socket] = []

    def bind(host: str, port: int) -> socket.socket:
        bound.append(socket.create_server((host, port)))
        return bound[0]

    async def fail() -> None:
        raise EngineError("it died")

    async def opened(served: ServedRun) -> None:
        async with served.open(lambda *_: None):
            raise AssertionError("it is not served")

    monkeypatch.setattr("legos.apps.served_run.bind", bind)
    with closing(Trainer(model=load_model())) as trainer:
        monkeypatch.setattr(trainer, "publish_weights", fail)
        with pytest.raises(EngineError, match="it died"):
            asyncio.run(opened(ServedRun(trainer, name="tiny", host="127.0.0.1", port=0)))
    assert bound[0].fileno() == -1


def test_a_port_that_is_taken_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        code = main(["train", "--serve", str(port), "--out", str(tmp_path / "run"), *SMALL])
    assert code == 2
    assert str(port) in capsys.readouterr().err
