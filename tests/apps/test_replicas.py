"""``legos serve --replicas``: real processes, one of which is killed while requests run."""

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

import httpx
import psutil
import pytest
from launched import announced

from legos import apply_lora, load_model
from legos.cli.process import main
from legos.weights.adapter import pack_adapter
from legos.weights.folder import write_adapter

PLAYS, EACH = 8, 12  # clients, and requests of each


@contextmanager
def served(*options: str) -> Generator[tuple[str, psutil.Process]]:
    """Address and process of ``legos serve --replicas 2``."""
    line = [sys.executable, "-m", "legos", "serve", "--replicas", "2", "--port", "0", *options]
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        try:
            yield announced(process), psutil.Process(process.pid)
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
        finally:
            process.kill()


def replicas(front: psutil.Process) -> list[psutil.Process]:
    """The processes that have an engine."""
    children = front.children(recursive=True)
    return [one for one in children if one.cmdline()[1:3] == ["-m", "legos"]]


def eventually(holds: Callable[[], bool], *, within_s: float) -> bool:
    deadline = time.monotonic() + within_s
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


def versions(answer: httpx.Response) -> set[int]:
    """The policy versions of an answer's tokens."""
    assert answer.status_code == 200, answer.text
    found = answer.json()["choices"][0]["versions"]
    assert len(found) == 64
    return set(found)


def lags(http: httpx.Client) -> list[int]:
    """By how many versions each replica is behind."""
    found = re.findall(r"^legos_engine_lag_versions_\w+ (\S+)$", http.get("/metrics").text, re.M)
    return [int(float(lag)) for lag in found]


@pytest.mark.slow
def test_no_request_is_lost_when_a_replica_is_killed(tmp_path: Path) -> None:
    model = load_model()
    apply_lora(model)
    base = model.base_adapter()
    model.close()
    write_adapter(base, tmp_path)
    with served("--adapter", str(tmp_path)) as (url, front):
        before = replicas(front)
        assert len(before) == 2
        half = str(max(1, (os.cpu_count() or 1) // 2))
        assert [one.environ()["OPENBLAS_NUM_THREADS"] for one in before] == [half, half]
        answers = asyncio.run(asked(url, lambda: os.kill(before[0].pid, signal.SIGKILL)))
        assert len(answers) == PLAYS * EACH
        assert all(versions(answer) == {0} for answer in answers)
        assert eventually(lambda: len(replicas(front)) == 2, within_s=120)
        assert before[0].pid not in {one.pid for one in replicas(front)}
        with httpx.Client(base_url=url, timeout=120, trust_env=False) as http:
            loaded = http.post(
                "/adapters/load?version=7",
                content=pack_adapter(base),
                headers={"content-type": "application/octet-stream"},
            )
            assert loaded.json()["version"] == 7
            assert eventually(lambda: lags(http) == [0, 0], within_s=120)
            os.kill(before[1].pid, signal.SIGKILL)  # the one that was started again must answer
            answers = [http.post("/v1/completions", json=body(seed)) for seed in range(4)]
            assert all(versions(answer) == {7} for answer in answers)
        running = replicas(front)
    assert eventually(lambda: not any(one.is_running() for one in running), within_s=20)


def body(seed: int) -> dict[str, object]:
    return {
        "prompt": [1, 20, 3, seed % 7],
        "max_tokens": 64,
        "ignore_eos": True,
        "seed": seed,
        "return_token_ids": True,
    }


async def asked(url: str, kill: Callable[[], None]) -> list[httpx.Response]:
    """Answers to all clients; the replica is killed once a quarter has come."""
    answers: list[httpx.Response] = []

    async def client(http: httpx.AsyncClient, number: int) -> None:
        for each in range(EACH):
            answers.append(await http.post("/v1/completions", json=body(number * EACH + each)))
            if len(answers) == PLAYS * EACH // 4:
                kill()

    async with (
        httpx.AsyncClient(base_url=url, timeout=120, trust_env=False) as http,
        asyncio.TaskGroup() as group,
    ):
        for number in range(PLAYS):
            group.create_task(client(http, number))
    return answers


def test_what_cannot_be_is_refused_before_anything_is_started(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def refused(*options: str) -> str:
        started = time.monotonic()
        assert main(["serve", "--port", "0", *options]) == 2
        assert time.monotonic() - started < 10
        return " ".join(capsys.readouterr().err.split())

    assert "--replicas is 0; expected 1 or more" in refused("--replicas", "0")
    told = refused("--replicas", "9", "--memory-limit-gib", "0.0001")
    assert "9 replicas of" in told
    assert "not even one fits" in told
    assert "expected more than 0" in refused("--memory-limit-gib", "-1")
    assert "--backend was removed: start vLLM itself" in refused("--backend", "vllm")
