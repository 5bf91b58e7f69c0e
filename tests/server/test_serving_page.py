"""The programs of docs/serve/serving.md run; and the command, from its first line to SIGTERM."""

import inspect
import json
import math
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from pydantic import ValidationError
from safetensors.numpy import save_file
from tiny_folders import write_tiny_model

from legos.apps.serve import bearer_option
from legos.apps.served_run import DRAIN_S
from legos.cli.process import main
from legos.cli.serve import serve
from legos.clients.constraints import TREES
from legos.clients.progress_queue import MOST_PARTS
from legos.device import ModelHandle
from legos.errors import AdapterError
from legos.records.message import MAX_ALTERNATIVES, MAX_BIAS
from legos.run.folder import RunFolder
from legos.server.bodies import MOST_FIELDS
from legos.server.endpoints import sampling, uploads
from legos.server.endpoints.chat_body import MOST_ARGUMENTS, ChatBody, ToolFunction
from legos.server.endpoints.completions import CompletionBody
from legos.server.endpoints.episodes import StartBody
from legos.server.endpoints.generation import MOST_ALTERNATIVES
from legos.server.endpoints.texts import MOST_TOKENS, ScoreBody, ScoredPrompt, ScoredTokens
from legos.server.listen import IDLE_S, MOST_CONNECTIONS, MOST_HEAD_BYTES
from legos.server.options import ServerOptions
from legos.weights import tensors
from legos.weights.adapter import Adapter, checked_name
from legos.weights.folder import write_adapter

ROOT = Path(__file__).parents[2]
PAGE, README = ROOT / "docs" / "serve" / "serving.md", ROOT / "README.md"


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
    names: dict[str, Any] = {}
    for program in programs:
        exec(program.replace("http://127.0.0.1:8000", served.url), names)
    names["client"].close()  # what the end of a process does
    said = capsys.readouterr().out
    assert "ChatCompletion(" in said
    assert f"'version': 12, 'digest': '{base.digest}'" in said
    with served.http() as http:
        weights = (tmp_path / "adapters.safetensors").read_bytes()
        kind = {"content-type": "application/octet-stream"}
        http.post("/adapters/load?version=0", content=weights, headers=kind)


def asked_by(line: str) -> tuple[str, dict[str, Any]]:
    """Path and body of a curl line that sends JSON."""
    words = shlex.split(line)
    return "/" + words[1].split(":8000/")[1], json.loads(words[words.index("-d") + 1])


@pytest.mark.parametrize("page", [PAGE, README], ids=lambda page: page.name)
def test_the_curl_lines_of_the_pages_are_answered_with_moves(served: Any, page: Path) -> None:
    lines = [line for line in page.read_text().splitlines() if line.startswith("curl ")]
    sent = [asked_by(line) for line in lines if " -d " in line]
    chats = [body for path, body in sent if path == "/v1/chat/completions"]
    scores = [body for path, body in sent if path == "/v1/score"]
    assert len(chats) == 1
    assert len(scores) == (page == PAGE)
    with served.http() as http:
        for _ in range(5):
            (choice,) = http.post("/v1/chat/completions", json=chats[0]).json()["choices"]
            assert choice["message"]["content"] in ("1", "2", "3")
        for body in scores:
            answer = http.post("/v1/score", json=body)
            (row,) = answer.json()["scores"]
            assert sum(map(math.exp, row)) == pytest.approx(1.0, abs=0.02)


def test_the_official_client_of_the_readme(served: Any, capsys: pytest.CaptureFixture[str]) -> None:
    (program,) = (
        block
        for block in re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
        if "OpenAI" in block
    )
    names: dict[str, Any] = {}
    exec(program.replace("http://localhost:8000", served.url), names)
    names["client"].close()  # what the end of a process does
    assert capsys.readouterr().out.strip() in ("1", "2", "3")


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


@pytest.mark.slow
def test_the_command_says_where_it_is_and_ends_when_told(command: Any) -> None:
    process, (first, second) = command
    assert "serving builtin, policy@0 at http://127.0.0.1:" in first
    assert second.startswith("curl http://127.0.0.1:")
    assert "Authorization: Bearer $LEGOS_API_KEY" in second
    assert asked_by(second.replace("127.0.0.1:", "x:8000/"))[1]["choices"] == ["1", "2", "3"]
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


def test_the_key_of_a_file_is_not_that_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEGOS_API_KEY", "one")
    assert bearer_option("one") == '-H "Authorization: Bearer $LEGOS_API_KEY" '
    assert bearer_option("another") == '-H "Authorization: Bearer KEY" '
    assert bearer_option(None) == ""


def test_the_command_refuses_what_cannot_be(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LEGOS_API_KEY", raising=False)

    def refused(*options: str) -> str:
        assert main(["serve", "--port", "0", *options]) == 2
        return capsys.readouterr().err

    assert "LEGOS_API_KEY" in refused("--host", "0.0.0.0")
    twice = ("--adapter", f"a={tmp_path}", "--adapter", f"a={tmp_path}")
    assert "holds no run and no adapter" in refused(*twice)


def test_an_adapter_is_served_on_its_own_model_alone(
    tmp_path: Path, model: ModelHandle, capsys: pytest.CaptureFixture[str]
) -> None:
    other = write_tiny_model(tmp_path / "other")
    base = model.base_adapter()

    def refused(adapter: Adapter, *options: str) -> str:
        run = RunFolder(tmp_path / "run")
        shutil.rmtree(run.path, ignore_errors=True)
        with run.new_run(""):
            run.write_adapters([adapter])
        assert main(["serve", "--port", "0", "--adapter", str(run.path), *options]) == 2
        return capsys.readouterr().err

    told = refused(replace(base, base_model="builtin"), "--model", str(other))
    assert f"was trained on model 'builtin' and cannot be put on '{other}'" in told
    told = refused(base, "--model", str(other))
    assert "expected" in told
    assert f"(trained on a model it does not name) does not fit model '{other}'" in told
    assert "no model folder '/gone'" in refused(replace(base, base_model="/gone"))


def test_what_cannot_be_served_is_refused_before_a_model_is_loaded(
    tmp_path: Path, model: ModelHandle, capsys: pytest.CaptureFixture[str]
) -> None:
    write_adapter(model.base_adapter(), tmp_path)
    assert main(["serve", "--port", "0", "--model", str(tmp_path)]) == 2
    told = capsys.readouterr().err
    assert f"holds an adapter and no model; give it as --adapter {tmp_path}" in told
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert main(["serve", "--port", port, "--model", "/nowhere"]) == 2
    assert f"cannot listen on 127.0.0.1 port {port}" in capsys.readouterr().err


def numbers(text: str) -> list[float]:
    """The numbers of a table's cell in bytes, seconds or counts, without those of code."""
    text = re.sub("`.*?`", "", text)
    found = re.findall(r"(-?[\d,]*\d(?:\.\d+)?)( KiB| MiB)?", text)
    sizes = {"": 1, " KiB": 2**10, " MiB": 2**20}
    return [float(number.replace(",", "")) * sizes[unit] for number, unit in found]


def table(head: str) -> dict[str, list[str]]:
    """The rows of a table below "Limits" that begins with a line: first cell -> the others."""
    text = PAGE.read_text().split("\n## Limits\n")[1].split("\n## ")[0]
    lines = text.split(f"\n{head}\n")[1].splitlines()[1:]
    rows = [[cell.strip() for cell in line[1:-1].split("|")] for line in lines[: lines.index("")]]
    return {row[0]: row[1:] for row in rows}


def test_the_page_has_the_defaults_of_the_options() -> None:
    rows = table("| option | default | effect |")
    given = {name: p.default for name, p in inspect.signature(serve).parameters.items()}
    given["api_key_file"] = given.pop("api_key")
    own = ServerOptions()
    assert given["max_batch"] == own.max_running
    assert given["max_queue"] == own.max_queue
    assert given["max_body_mb"] * 2**20 == own.max_body_bytes
    assert given["timeout_s"] == own.request_timeout_s
    assert given["max_adapters"] == own.max_adapters
    named = {"auto", "none", "most of the memory"}
    for option, (default, effect) in rows.items():
        names = re.findall(r"--([a-z-]+)", option)
        assert names, option
        for name, cell in zip(names, default.split("; "), strict=True):
            value = given[name.replace("-", "_")]
            if isinstance(value, (int, float)):
                assert numbers(cell) == [value], option
            else:
                assert cell in named, option
                assert value in (None, cell), option
        if "--max-body-mb" in option:
            assert numbers(effect)[-1] == own.max_adapter_bytes
    text = PAGE.read_text()
    assert f"requests get {DRAIN_S:g} seconds to finish" in text


def test_the_page_has_the_limits_of_connections() -> None:
    own = ServerOptions()
    rows = {what: numbers(cells[0]) for what, cells in table("| connections | |").items()}
    assert rows == {
        "open at the same time": [MOST_CONNECTIONS, 503],
        "the head of a request": [MOST_HEAD_BYTES, 400],
        "its body": [own.body_pause_s, 408],
        "idle time between two requests": [IDLE_S],
    }


def limits_of(schema: Any) -> list[float]:
    """The largest numbers, lengths and counts that a JSON schema allows, in its order."""
    if isinstance(schema, list):
        return [limit for each in schema for limit in limits_of(each)]
    if not isinstance(schema, dict):
        return []
    own = ("maxItems", "maxLength", "maxProperties", "maximum")
    return [
        limit
        for key, value in schema.items()
        for limit in ([value] if key in own else limits_of(value))
    ]


def test_the_page_has_the_limits_of_bodies() -> None:
    def of(body: Any, field: str) -> list[float]:
        return limits_of(body.model_json_schema()["properties"][field])

    rows = {what: numbers(cells[0]) for what, cells in table("| in one body | at most |").items()}
    assert of(ScoredTokens, "choices") == [sampling.MOST_CHOICE_CHARACTERS]
    (prompts,) = set(of(ScoreBody, "prompts"))
    assert {*of(CompletionBody, "logit_bias")} == {MAX_BIAS, MOST_FIELDS}
    assert of(CompletionBody, "logprobs") == of(ChatBody, "top_logprobs") == [MAX_ALTERNATIVES]
    assert rows == {
        "fields of one object, `logit_bias` among them": [MOST_FIELDS],
        "`choices` of a prompt": [
            *of(CompletionBody, "choices"),
            *of(ScoredPrompt, "choices"),
            sampling.MOST_CHOICE_CHARACTERS,
        ],
        "prompts of `/v1/score`": [prompts],
        "a `logit_bias`": [-MAX_BIAS, MAX_BIAS],
        "`stop`": sorted({*of(CompletionBody, "stop")}),
        "`stop_token_ids`; `end_token_ids`": [
            *of(CompletionBody, "stop_token_ids"),
            *of(ScoreBody, "end_token_ids"),
        ],
        "a JSON schema": [sampling.MOST_SCHEMA_CHARACTERS],
        "messages of a chat; `tools`; `chat_template_kwargs`": [
            *of(ChatBody, "messages"),
            *of(ChatBody, "tools"),
            *of(ChatBody, "chat_template_kwargs"),
        ],
        "characters of the arguments of one tool call": [MOST_ARGUMENTS],
        "characters of an adapter's name; of a tool's name": [
            longest(checked_name),
            longest(lambda name: ToolFunction(name=name, parameters=None)),
        ],
        "tokens of `/detokenize`": [MOST_TOKENS],
        "`n`; `top_logprobs`; the same times `n`, prompts and `max_tokens`": [
            *of(CompletionBody, "n"),
            MAX_ALTERNATIVES,
            MOST_ALTERNATIVES,
        ],
        "`wait_s` of `/v1/episodes`": of(StartBody, "wait_s"),
        "of an adapter: fields besides the weights; header of the safetensors file": [
            uploads._MOST_OTHERS,
            tensors._MOST_HEADER_BYTES,
        ],
    }


def test_the_page_has_the_limits_of_what_is_kept() -> None:
    text = " ".join(PAGE.read_text().split())
    assert f"holds {MOST_PARTS} tokens" in text
    assert f"kept for later requests, up to {TREES >> 20} MiB" in text


def longest(accept: Callable[[str], object]) -> int:
    """The number of letters of the longest name that is accepted."""
    for length in range(1, 10_000):
        try:
            accept("x" * length)
        except (AdapterError, ValidationError):
            return length - 1
    raise AssertionError("any name is accepted")


def test_no_limit_of_a_schema_is_missing_on_the_page(served: Any) -> None:
    stated = {n for cells in table("| in one body | at most |").values() for n in numbers(cells[0])}
    ranges = {100.0, 2.0, 1.0, 0.0, 2.0**31}  # of temperature and other sampling settings
    known = limits_of(served.app.openapi()["components"]["schemas"])
    assert set(known) - ranges <= stated
