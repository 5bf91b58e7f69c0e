"""docs/serving.md: its programs run; and the command itself, from its first line to SIGTERM."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from safetensors.numpy import save_file

from legos.build.model import ModelHandle

PAGE = Path(__file__).parents[2] / "docs" / "serving.md"


def test_the_programs_of_the_page_run(
    served: Any,
    model: ModelHandle,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    base = model.base_adapter()
    arrays = {name: np.asarray(array) for name, array in base.arrays.items()}
    save_file(arrays, tmp_path / "adapters.safetensors")
    monkeypatch.chdir(tmp_path)
    programs = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(programs) == 2
    for program in programs:
        exec(program.replace("http://127.0.0.1:8000", served.url), {})
    said = capsys.readouterr().out
    assert "ChatCompletion(" in said
    assert f"'version': 12, 'digest': '{base.digest}'" in said
    with served.http() as http:
        weights = (tmp_path / "adapters.safetensors").read_bytes()
        kind = {"content-type": "application/octet-stream"}
        http.post("/adapters/load?version=0", content=weights, headers=kind)


@pytest.fixture
def command() -> Any:
    """A running ``legos serve`` and the first lines that it printed."""
    process = subprocess.Popen(
        [sys.executable, "-m", "legos", "serve", "--port", "0", "--drain-s", "5"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "LEGOS_API_KEY": "from-the-environment"},
    )
    assert process.stdout is not None
    lines = [process.stdout.readline() for _ in range(2)]
    yield process, lines
    process.kill()
    process.communicate()


def test_the_command_says_where_it_is_and_ends_when_told(command: Any) -> None:
    process, (first, second) = command
    assert "serving builtin, policy@0 at http://127.0.0.1:" in first
    assert second.startswith("curl http://127.0.0.1:")
    assert "Authorization: Bearer $LEGOS_API_KEY" in second
    url = re.findall(r"http://127\.0\.0\.1:\d+", first)[0]
    headers = {"authorization": "Bearer from-the-environment"}
    with httpx.Client(base_url=url, headers=headers, trust_env=False, timeout=30) as http:
        assert http.post("/v1/completions", json={"prompt": [1, 20]}).status_code == 200
    began = time.monotonic()
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=20)
    assert time.monotonic() - began < 5
    assert process.returncode == 0, errors
    assert "Traceback" not in errors


def test_the_command_refuses_what_cannot_be(tmp_path: Path) -> None:
    def refused(*options: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "legos", "serve", *options],
            capture_output=True,
            text=True,
            check=False,
            env={key: value for key, value in os.environ.items() if key != "LEGOS_API_KEY"},
        )
        assert done.returncode == 2
        return done.stderr

    assert "LEGOS_API_KEY" in refused("--host", "0.0.0.0")
    assert "adapter folder" in refused("--adapter-folder", str(tmp_path / "none"))
    twice = ("--adapter", f"a={tmp_path}", "--adapter", f"a={tmp_path}")
    assert "is no adapter folder" in refused(*twice)
