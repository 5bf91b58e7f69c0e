"""What hostile bodies cost: memory follows what has arrived, and none holds the event loop."""

import gc
import json
import socket
import time
import tracemalloc
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import httpx
import numpy as np
import pytest
from fakes import FakeEngine
from safetensors.numpy import save
from scripted_server import serving

from legos.clients.engine import EngineClient
from legos.server.app import make_app
from legos.server.service import Service

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
BYTES = {"content-type": "application/octet-stream"}
HI = [{"role": "user", "content": "hi"}]


@contextmanager
def longest_turn(server: Any) -> Iterator[list[float]]:
    """CPU seconds of the loop's thread in its longest turn; others do not lengthen those."""
    turns: list[float] = []
    last = 0.0

    def beat() -> None:
        nonlocal last
        now = time.thread_time()
        turns.append(now - last)
        last = now
        if not server.service.draining:
            server.loop.call_later(0.001, beat)

    def begin() -> None:
        nonlocal last
        last = time.thread_time()
        beat()

    longest: list[float] = []
    gc.collect()
    gc.disable()  # the heap is that of all tests
    server.loop.call_soon_threadsafe(begin)
    try:
        yield longest
        time.sleep(0.05)
    finally:
        gc.enable()
    longest.append(max(turns))


def many_fields(number: int) -> dict[str, int]:
    return {f"field{n}": n for n in range(number)}


def calling(arguments: str) -> dict[str, Any]:
    return {"function": {"name": "f", "arguments": arguments}}


MANY_PARAMETERS = {"properties": {f"p{n}": {"type": "string"} for n in range(60)}}
MANY_SCHEMAS = {"properties": {f"p{n}": {} for n in range(100_000)}}
ATTACKS: Mapping[str, tuple[str, Any, int]] = {
    "many biases": (TEXT, {"prompt": [1], "logit_bias": {str(n): 1 for n in range(40_000)}}, 400),
    "a few biases": (TEXT, {"prompt": [1], "logit_bias": {str(n): 1 for n in range(1_000)}}, 200),
    "wrong tokens": (TEXT, {"prompt": [None] * 500_000}, 400),
    "wrong prompts": (TEXT, {"prompt": [[1]] * 60_000 + [None]}, 400),
    "unknown fields": (TEXT, {"prompt": [1], **many_fields(100_000)}, 400),
    "unknown inner fields": (CHAT, {"messages": [{**HI[0], **many_fields(100_000)}]}, 400),
    "wrong messages": (
        CHAT,
        {"messages": [{"role": 1, "content": 2, "tool_calls": 3}] * 9_000},
        400,
    ),
    "wrong variables": (
        CHAT,
        {"messages": HI, "chat_template_kwargs": {str(n): [] for n in range(1_000)}},
        400,
    ),
    "long choices": (TEXT, {"prompt": [1], "choices": [f"{n:1000}" for n in range(1000)]}, 400),
    "many choices": (TEXT, {"prompt": [1], "choices": [f"{n:08}" for n in range(4096)]}, 200),
    "one long choice": (TEXT, {"prompt": [1], "choices": ["x" * 900]}, 200),
    "many long texts": (TEXT, {"prompt": ["long words " * 100] * 300, "max_tokens": 1}, 400),
    "a long text": ("/tokenize", {"prompt": "word " * 200_000}, 200),
    "many scores": (
        "/v1/score",
        {"prompts": [{"messages": HI, "choices": [f"{n:030}" for n in range(1_000)]}] * 100},
        200,
    ),
    "a large schema": (
        CHAT,
        {
            "messages": HI,
            "response_format": {
                "type": "json_schema",
                "json_schema": {"schema": {"enum": [f"{n:030}" for n in range(4_000)]}},
            },
        },
        400,
    ),
    "many schemas in one": (
        CHAT,
        {
            "messages": HI,
            "response_format": {"type": "json_schema", "json_schema": {"schema": MANY_SCHEMAS}},
        },
        400,
    ),
    "many schemas of a forced call": (
        CHAT,
        {
            "prompt_token_ids": [1],
            "tools": [{"type": "function", "function": {"name": "f", "parameters": MANY_SCHEMAS}}],
            "tool_choice": "required",
        },
        400,
    ),
    "many scored tokens": (
        "/v1/score",
        {"prompts": [{"prompt": [1], "choices": [[n] * 480 for n in range(3, 67)]}] * 15},
        200,
    ),
    "many prompts": (TEXT, {"prompt": [[1]] * 60_000, "n": 128}, 400),
    "long arguments of calls": (
        CHAT,
        {"messages": [{"role": "assistant", "tool_calls": [calling("[" + "1," * 130_000 + "1]")]}]},
        400,
    ),
    "deep arguments": (
        CHAT,
        {"messages": [{"role": "assistant", "tool_calls": [calling("[" * 5_000 + "]" * 5_000)]}]},
        400,
    ),
    "arguments that are too long": (
        CHAT,
        {"messages": [{"role": "assistant", "tool_calls": [calling("x" * 300_000)]}]},
        400,
    ),
    "many tools": (
        CHAT,
        {
            "messages": HI,
            "tools": [
                {"type": "function", "function": {"name": f"f{n}", "parameters": MANY_PARAMETERS}}
                for n in range(250)
            ],
        },
        400,
    ),
    "many parts": (
        CHAT,
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}] * 60_000}]},
        400,
    ),
    "many numbers": (TEXT, {"prompt": [1] * 1_300_000}, 400),
    "a long unknown field": (CHAT, {"messages": [{**HI[0], "k" * 3_000_000: 1}]}, 400),
    "deep": (TEXT, {"prompt": [1], "metadata": json.loads('{"a":' * 900 + "1" + "}" * 900)}, 400),
}


@pytest.mark.nightly
@pytest.mark.parametrize("name", ATTACKS)
def test_no_body_holds_the_loop(fake: Any, name: str) -> None:
    path, body, status = ATTACKS[name]
    with fake(FakeEngine(), max_queue=200, max_running=50) as server, server.http() as http:
        http.post(TEXT, json={"prompt": "warm"})
        with longest_turn(server) as longest:
            answer = http.post(path, json=body)
        assert answer.status_code == status, answer.text[:300]
        assert len(answer.content) < 1000 or status == 200
        assert longest[0] < 0.1  # CPU seconds; 0.02 on a quiet machine


def test_no_answer_holds_the_loop(served: Any) -> None:
    """The answers have 32,000 tokens and alternatives together."""
    body = {"messages": HI, "n": 16, "max_tokens": 100, "logprobs": True, "top_logprobs": 20}
    with served.http() as http:
        http.post(CHAT, json={"messages": HI, "max_tokens": 1})
        with longest_turn(served) as longest:
            answer = http.post(CHAT, json={**body, "ignore_eos": True})
    choices = answer.json()["choices"]
    entries = [entry for choice in choices for entry in choice["logprobs"]["content"]]
    assert len(entries) == 1600
    assert {len(entry["top_logprobs"]) for entry in entries} == {20}
    assert longest[0] < 0.03  # CPU seconds; 0.005 on a quiet machine


def test_more_alternatives_than_memory_should_hold_are_refused(served: Any) -> None:
    body = {"prompt": [1, 20], "n": 128, "max_tokens": 1000, "logprobs": 20}
    with served.http() as http:
        answer = http.post(TEXT, json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "max_tokens")
    assert "up to 2560000 alternatives" in answer.json()["error"]["message"]


def test_choices_limit_the_alternatives_too(served: Any) -> None:
    body = {"prompt": [1, 20], "n": 128, "choices": ["x" * 30_000], "logprobs": 20}
    with served.http() as http:
        answer = http.post(TEXT, json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "max_tokens")


def test_an_upload_takes_memory_as_it_comes(fake: Any) -> None:
    """Three heads that promise 1 GB each, and a body of which nothing more comes."""
    with fake(FakeEngine()) as server, server.http() as http:
        port = int(server.url.rsplit(":", 1)[1])
        head = (
            "POST /adapters/load?version=1 HTTP/1.1\r\nHost: x\r\n"
            f"Content-Type: {BYTES['content-type']}\r\nContent-Length: {2**30}\r\n\r\n"
        ).encode()
        tracemalloc.start()
        try:
            senders = [socket.create_connection(("127.0.0.1", port)) for _ in range(3)]
            for sender in senders:
                sender.sendall(head + b"x" * 1000)
            time.sleep(0.3)
            assert http.get("/health").status_code == 200
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
            for sender in senders:
                sender.close()
    assert peak < 50e6


def upload(header: Any, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def _tensors() -> dict[str, np.ndarray]:
    return {
        "model.layers.0.self_attn.q_proj.lora_a": np.ones((4, 2), np.float32),
        "model.layers.0.self_attn.q_proj.lora_b": np.ones((2, 4), np.float32),
    }


NO_SENSE: Mapping[str, tuple[bytes, str]] = {  # upload, and what the answer says about it
    **{
        f"record {record:.20}": (
            save(_tensors(), metadata={"legos": record}),
            "header entry 'legos' cannot be read: ",
        )
        for record in (
            *('{"scale": "abc"}', '{"scale": NaN}', '{"scale": true}', '{"version": 1.5}'),
            *('{"name": 5}', "[[1, 2]]", "[" * 100_000),
        )
    },
    **{
        f"header {header!s:.50}": (upload(header, b"1234"), "cannot be read as safetensors: ")
        for header in (
            {"__metadata__": [1, 2]},
            {"__metadata__": {"legos": 5}},
            b"[" * 100_000,
            {"a.lora_a": {"dtype": ["F32"], "shape": [1, 1], "data_offsets": [0, 4]}},
            {"a.lora_a": {"dtype": "F32", "shape": ["1"], "data_offsets": [0, 4]}},
        )
    },
    "one axis": (
        upload({"a.lora_a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}, b"1234"),
        "array a.lora_a has shape (1,)",
    ),
}


@pytest.fixture(scope="module")
def loading(tokenizer: Any) -> Iterator[tuple[FakeEngine, httpx.Client]]:
    """An engine without adapters, and a client of its server."""
    engine = FakeEngine()
    words = EngineClient(engine, tokenizer, use_threads=True)
    service = Service(words, engine, tokenizer, model="small", context=1024, lora_scale=2.0)
    with (
        serving(make_app(service)) as url,
        httpx.Client(base_url=url, trust_env=False, verify=False) as http,
    ):
        yield engine, http


@pytest.mark.parametrize("name", NO_SENSE)
def test_an_upload_that_makes_no_sense_is_refused(loading: Any, name: str) -> None:
    (engine, http), (content, reason) = loading, NO_SENSE[name]
    version = "" if "version" in name else "?version=1"
    answer = http.post(f"/adapters/load{version}", content=content, headers=BYTES)
    assert answer.status_code == 400, answer.text
    assert reason in answer.json()["error"]["message"]
    assert not engine.live


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        (b'{"config": ' + b'{"a":' * 5000 + b"1" + b"}" * 5000 + b"}", "is no JSON of an upload"),
        (b'{"weights": "AAAA", "name": "\\ud800"}', "is no JSON of an upload"),
        (b'{"weights": "AAAA", "scale": "abc"}', "scale: Input should be a valid number"),
        (b'{"weights": "AAAA", "scale": 1e999}', "scale: Input should be a finite number"),
    ],
)
def test_a_load_that_makes_no_sense_is_refused(loading: Any, fields: bytes, reason: str) -> None:
    (_, http), kind = loading, {"content-type": "application/json"}
    answer = http.post("/adapters/load?version=1", content=fields, headers=kind)
    assert answer.status_code == 400, answer.text
    assert reason in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    "fields",
    [
        b'{"weights": "AAAA", "config": {"a": [' + b"1," * 1_000_000 + b"1]}}",
        b'{"name": "' + b"x" * 2_000_000 + b'"}',
    ],
)
def test_the_fields_of_a_load_besides_its_weights_are_bounded(loading: Any, fields: bytes) -> None:
    (_, http), kind = loading, {"content-type": "application/json"}
    answer = http.post("/adapters/load?version=1", content=fields, headers=kind)
    assert answer.status_code == 413, answer.text
    assert "besides weights" in answer.json()["error"]["message"]


@pytest.mark.parametrize("place", ["content", "model", "stop", "choices", "prompt"])
def test_half_a_surrogate_pair_is_a_bad_request(fake: Any, place: str) -> None:
    half = '"a\\ud800b"'
    bodies = {
        "content": (CHAT, f'{{"messages": [{{"role": "user", "content": {half}}}]}}'),
        "model": (TEXT, f'{{"prompt": [1], "model": {half}}}'),
        "stop": (TEXT, f'{{"prompt": [1], "stop": {half}}}'),
        "choices": (TEXT, f'{{"prompt": [1], "choices": [{half}]}}'),
        "prompt": ("/tokenize", f'{{"prompt": {half}}}'),
    }
    path, body = bodies[place]
    with fake(FakeEngine()) as server, server.http() as http:
        answer = http.post(path, content=body, headers={"content-type": "application/json"})
        assert answer.status_code == 400
        assert "hex escape" in answer.json()["error"]["message"]


def test_a_bias_that_no_float_holds_is_named(served: Any) -> None:
    with served.http() as http:
        for bias in (1e308, -1e39, 1001):
            body = {"prompt": [1, 20], "logit_bias": {"30": bias}, "max_tokens": 1}
            answer = http.post(TEXT, json=body)
            assert answer.status_code == 400
            assert answer.json()["error"]["param"] == "logit_bias"
            assert "1000" in answer.json()["error"]["message"]
        body = {"prompt": [1, 20], "logit_bias": {"30": -1000}, "temperature": 1e-3}
        assert http.post(TEXT, json=body).status_code == 200


def test_a_client_that_hangs_up_while_it_sends_is_no_bad_request(
    fake: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("DEBUG", "legos.server"), fake(FakeEngine(hold=True)) as server:
        port = int(server.url.rsplit(":", 1)[1])
        for path in (TEXT, "/adapters/load?version=1"):
            with socket.create_connection(("127.0.0.1", port)) as sender:
                sender.sendall(
                    f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                    'Content-Length: 500\r\n\r\n{"prompt": '.encode()
                )
                time.sleep(0.1)
        with server.http() as http:
            with pytest.raises(httpx.ReadTimeout):
                http.post(TEXT, json={"prompt": [5], "max_tokens": 3}, timeout=0.3)
            until = time.monotonic() + 5
            while caplog.text.count(" 499 ") < 3 and time.monotonic() < until:
                time.sleep(0.01)
            told = http.get("/metrics").text
    assert not [record for record in caplog.records if record.levelname == "ERROR"]
    lines = [(r.levelname, r.getMessage().rsplit(" ", 2)[0]) for r in caplog.records]
    assert [line for line in lines if line[1].endswith("499")] == [
        ("DEBUG", f"POST {TEXT} 499"),
        ("DEBUG", "POST /adapters/load 499"),
        ("DEBUG", f"POST {TEXT} 499"),
    ]
    assert f'legos_hung_up_total{{route="{TEXT}"}} 2.0' in told
    assert 'status="400"' not in told  # the log may hold the last line of another test's server
