"""``legos serve --backend vllm``: what it refuses, and the real server that it starts."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from io import StringIO
from pathlib import Path

import httpx
import numpy as np
import psutil
import pytest
from published import small_adapter

from legos.apps.serve_vllm import serve_vllm
from legos.cli.process import main
from legos.weights.peft import write_peft
from legos.wiring.model import apply_lora, load_model


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--backend", "vllm", "--max-queue", "3"], "--max-queue has no effect with --backend"),
        (["--vllm-arguments", "x"], "--vllm-arguments has no effect with --backend legos"),
        (["--vllm-bin", "vllm"], "--vllm-bin was removed: set LEGOS_VLLM_BIN"),
        (["--backend", "vllm", "--host", "0.0.0.0"], "set --api-key"),
        (["--backend", "vllm"], "'/no/vllm' is not found"),
    ],
)
def test_what_cannot_be_served_is_refused_before_anything_starts(
    options: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LEGOS_VLLM_BIN", "/no/vllm")
    assert main(["serve", *options]) == 2
    assert message in capsys.readouterr().err


PROGRAM = """#!{python}
import json, os, sys
sys.path[:] = {path}
import uvicorn
from vllm_stand_in import StandIn
from scripted_server import ScriptedServer

line = sys.argv[1:]
with open({record!r}, "w") as file:
    json.dump([line, os.environ.get("VLLM_API_KEY")], file)
host, port, name = (line[line.index(f"--{{x}}") + 1] for x in ("host", "port", "served-model-name"))
stand_in = StandIn(base=name)
uvicorn.run(ScriptedServer(stand_in.reply), host=host, port=int(port), log_level="error")
"""


def test_what_is_served_can_be_asked_with_the_message_and_with_chat(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    program, record = tmp_path / "vllm", tmp_path / "record.json"
    monkeypatch.setenv("LEGOS_VLLM_BIN", str(program))
    program.write_text(
        PROGRAM.format(python=sys.executable, path=repr(sys.path), record=str(record))
    )
    program.chmod(0o755)
    said: list[str] = []

    def say(message: str) -> None:
        said.append(message)
        if "serves" not in message:
            return
        url = message.split()[message.split().index("at") + 1]
        with ThreadPoolExecutor() as pool:  # beside the loop that watches the server
            line = ["chat", "--url", url, "--api-key", "k", "--adapter", "nim"]
            assert pool.submit(main, line).result() == 0
        os.kill(os.getpid(), signal.SIGINT)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.stdin", StringIO("Hello\n"))
        serve_vllm(
            model=None,
            adapters=[small_adapter(3, name="nim")],
            host="127.0.0.1",
            port=0,
            api_key="k",
            max_rows=4,
            arguments=(),
            say=say,
        )
    assert "nim answers" in capsys.readouterr().out
    assert '-H "Authorization: Bearer $LEGOS_API_KEY" -H' in said[-1]
    line, key = json.loads(record.read_text())
    assert key == "k"
    assert line[line.index("--allowed-origins") + 1] == "[]"


def alive(process: psutil.Process) -> bool:
    """Whether a process runs; a zombie has ended, and nobody has asked how."""
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


def ask(port: int) -> list[int]:
    """The most probable tokens that the adapter gives after a prompt."""
    body = {"model": "policy", "prompt": [50, 60, 70], "max_tokens": 20, "temperature": 0}
    body |= {"return_token_ids": True, "ignore_eos": True}
    url = f"http://127.0.0.1:{port}/v1/completions"
    answer = httpx.post(url, json=body, timeout=60.0, trust_env=False)
    return answer.raise_for_status().json()["choices"][0]["token_ids"]


def serves(port: int) -> bool:
    """Whether the server answers and has the adapter."""
    try:
        listed = httpx.get(f"http://127.0.0.1:{port}/v1/models", timeout=5.0, trust_env=False)
    except httpx.HTTPError:
        return False
    return "policy" in listed.text


def read_until(server: "subprocess.Popen[str]", text: str) -> str:
    assert server.stdout is not None
    for line in server.stdout:
        if text in line:
            return line
    raise AssertionError(f"{text!r} was not printed")


@pytest.mark.vllm
@pytest.mark.timeout(900)
def test_an_adapter_is_served_and_comes_back_when_vllm_is_killed(tmp_path: Path) -> None:
    model = load_model()
    apply_lora(model, rank=8, layers=2)
    rng, base = np.random.default_rng(0), model.base_adapter()
    arrays = {name: 0.1 * rng.standard_normal(a.shape) for name, a in base.arrays.items()}
    model.close()
    write_peft(replace(base, version=3, arrays=arrays), tmp_path)
    line = [sys.executable, "-m", "legos", "serve", "--backend", "vllm", "--port", "0"]
    line += ["--model", "builtin", "--adapter", str(tmp_path), "--vllm-arguments=--enforce-eager"]
    environment = {**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1"}
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True, env=environment) as server:
        try:
            told = re.search(r":(\d+)/v1", read_until(server, "policy (version 3)"))
            assert told is not None
            port = int(told[1])
            found = ask(port)
            (guardian,) = psutil.Process(server.pid).children()
            guardian.children()[0].kill()
            read_until(server, "started again")
            while not serves(port):
                assert server.poll() is None
                time.sleep(0.5)
            assert ask(port) == found
        finally:
            processes = psutil.Process(server.pid).children(recursive=True)
            server.send_signal(signal.SIGTERM)
            server.wait(60)
    assert not [process for process in processes if alive(process)]
