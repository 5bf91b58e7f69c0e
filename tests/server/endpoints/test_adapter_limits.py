"""How many adapters are live, who waits for whom, and what errors and lists say."""

import base64
import select
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import httpx
import numpy as np
import pytest
from fakes import FakeEngine
from safetensors.numpy import save

from legos.chat.tokenizer import ChatTokenizer
from legos.weights.adapter import Adapter, AdapterInfo

BYTES = {"content-type": "application/octet-stream"}


def small() -> bytes:
    module = "model.layers.0.self_attn.q_proj"
    ones = np.ones((2, 2), np.float32)
    return save({f"{module}.lora_a": ones, f"{module}.lora_b": ones})


def load(http: httpx.Client, name: str, version: int = 1) -> httpx.Response:
    query = f"?version={version}&name={name}"
    return http.post(f"/adapters/load{query}", content=small(), headers=BYTES)


def test_more_adapters_than_allowed_are_refused(fake: Any) -> None:
    with fake(FakeEngine(), max_adapters=2) as server, server.http() as http:
        answers = [load(http, name).status_code for name in ("a", "b", "a", "c")]
        assert answers == [200, 200, 200, 409]
        error = load(http, "c").json()["error"]
        assert error["code"] == "too_many_adapters"
        assert "--max-adapters" in error["message"]
        assert http.get("/adapters/version").json()["max_adapters"] == 2
        http.delete("/adapters/a")
        assert load(http, "c").status_code == 200


def test_two_new_adapters_at_once_are_not_more_than_allowed(fake: Any) -> None:
    """A name counts from the moment that its load begins."""
    loading, go_on = threading.Event(), Future()

    class Slow(FakeEngine):
        def load_adapter(self, adapter: Adapter) -> Future[AdapterInfo]:
            loading.set()
            return go_on

    with (
        fake(Slow(), max_adapters=1) as server,
        server.http() as http,
        ThreadPoolExecutor() as pool,
    ):
        first = pool.submit(load, http, "a")
        assert loading.wait(20)
        second = pool.submit(load, http, "b")
        try:
            assert second.result(timeout=20).status_code == 409
        finally:
            go_on.set_result(AdapterInfo(name="a", version=1, digest=""))
        assert first.result(timeout=20).status_code == 200


class Upload:
    """An upload whose head and body are sent in parts."""

    def __init__(self, server: Any, query: str, length: int | None) -> None:
        port = int(server.url.rsplit(":", 1)[1])
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=20)
        size = "Transfer-Encoding: chunked" if length is None else f"Content-Length: {length}"
        self.send(
            f"POST /adapters/load?version=1{query} HTTP/1.1\r\nHost: x\r\n{size}\r\n"
            "Connection: close\r\n"
            "Content-Type: application/octet-stream\r\n\r\n".encode()
        )

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def answer(self) -> tuple[int, bytes]:
        said = b""
        with self.socket:
            while piece := self.socket.recv(1 << 16):
                said += piece
        return int(said.split()[1]), said


def test_a_new_name_too_many_is_refused_before_its_body_comes(fake: Any) -> None:
    with fake(FakeEngine(), max_adapters=1) as server, server.http() as http:
        assert load(http, "a").status_code == 200
        status, said = Upload(server, "&name=b", 10**9).answer()
        assert status == 409
        assert b"--max-adapters" in said
        assert load(http, "a").status_code == 200


def test_uploads_at_once_take_no_more_memory_than_one_may(
    fake: Any, eventually: Callable[..., bool]
) -> None:
    most, data = 5000, small()
    with fake(FakeEngine(), max_adapter_bytes=most) as server, server.http() as http:
        first = Upload(server, "", most)
        first.send(data)
        refused = Upload(server, "", most - len(data) + 1)  # by its head, without a body
        if not eventually(lambda: readable(refused.socket), seconds=2):
            refused.socket.close()  # its head came before the body of the first
            refused = Upload(server, "", most - len(data) + 1)
        status, said = refused.answer()
        assert status == 429
        assert b"retry-after: 1" in said.lower()
        assert f"have {len(data)} bytes".encode() in said
        chunked = Upload(server, "", None)
        chunked.send(b"1300\r\n" + b"x" * 0x1300 + b"\r\n")  # alone it would fit
        assert chunked.answer()[0] == 429
        assert load(http, "mine").status_code == 200
        first.socket.close()
        assert eventually(lambda: load(http, "policy").status_code == 200)
        whole = Upload(server, "", most)
        whole.send(bytes(most))
        assert whole.answer()[0] == 400  # no adapter, but received as a whole
        assert 'legos_refused_total{limit="uploads"}' in http.get("/metrics").text


def readable(one: socket.socket) -> bool:
    return bool(select.select([one], [], [], 0)[0])


def test_an_adapter_is_loaded_while_all_other_threads_tokenize(
    fake: Any, eventually: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on, inside = threading.Event(), []
    render = ChatTokenizer.render

    def held(self: ChatTokenizer, *given: Any) -> tuple[int, ...]:
        inside.append(given)
        assert go_on.wait(60)
        return render(self, *given)

    monkeypatch.setattr(ChatTokenizer, "render", held)
    chat = {"messages": [{"role": "assistant", "content": "x " * 4096}], "max_tokens": 1}
    with (
        fake(FakeEngine()) as server,
        server.http() as http,
        ThreadPoolExecutor(4) as pool,
    ):
        server.loop.call_soon_threadsafe(server.loop.set_default_executor, ThreadPoolExecutor(2))
        chats = [pool.submit(http.post, "/v1/chat/completions", json=chat) for _ in range(4)]
        try:
            assert eventually(lambda: len(inside) == 2, seconds=20)
            assert load(http, "rival").status_code == 200
            assert len(inside) == 2
        finally:
            go_on.set()
        assert all(one.result(timeout=60).status_code == 400 for one in chats)  # 1,024 at most


def test_an_unknown_name_is_quoted_in_part(fake: Any) -> None:
    name, quoted = "x" * 1_000_000, repr("x" * 100)
    with fake(FakeEngine()) as server, server.http() as http:
        unload = http.delete(f"/adapters/{name[:10_000]}")
        ask = http.post("/v1/completions", json={"prompt": [1], "model": name})
        version = http.post("/v1/completions", json={"prompt": [1], "model": f"base@{name}"})
        upload = http.post(
            "/adapters/load",
            json={"weights": base64.b64encode(small()).decode(), "version": 1, "name": name},
        )
        found = http.get(f"/v1/models/{name[:10_000]}")
    for answer in (unload, ask, found):
        assert answer.status_code == 404
        assert quoted in answer.json()["error"]["message"]
    assert (version.status_code, upload.status_code) == (404, 400)
    for answer in (unload, ask, version, upload, found):
        assert len(answer.content) < 10_000


def test_an_adapter_with_the_name_of_the_base_model_is_the_one_that_is_asked(fake: Any) -> None:
    engine = FakeEngine()
    with fake(engine) as server, server.http() as http:
        load(http, "policy", 7)
        server.service.model = "policy"
        listed = http.get("/v1/models").json()["data"]
        assert [(one["id"], one["version"]) for one in listed] == [("base", 0), ("policy", 7)]
        assert [http.get(f"/v1/models/{one['id']}").json() for one in listed] == listed
        for one in listed:
            asked = {"prompt": [1], "model": one["id"]}
            assert http.post("/v1/completions", json=asked).status_code == 200
    assert [request.adapter for request in engine.requests] == ["base", "policy"]


def test_a_dropped_adapter_leaves_no_series(fake: Any) -> None:
    with fake(FakeEngine()) as server, server.http() as http:
        load(http, "rival")
        assert http.get("/metrics").text.count('adapter="rival"') == 1
        http.delete("/adapters/rival")
        assert "rival" not in http.get("/metrics").text


def test_the_policy_stands_on_top_of_the_list(fake: Any) -> None:
    with fake(FakeEngine()) as server, server.http() as http:
        load(http, "rival")
        before = http.get("/adapters/version").json()
        assert (before["name"], before["version"], before["digest"]) == ("policy", 0, "")
        assert [one["name"] for one in before["adapters"]] == ["rival"]
        loaded = load(http, "policy", 7).json()
        after = http.get("/adapters/version").json()
        assert {key: after[key] for key in loaded} == loaded
        assert [one["name"] for one in after["adapters"]] == ["policy", "rival"]


def test_an_earlier_version_is_reported(fake: Any, caplog: pytest.LogCaptureFixture) -> None:
    with fake(FakeEngine()) as server, server.http() as http:
        assert "warning" not in load(http, "policy", 7).json()
        answer = load(http, "policy", 3).json()
    assert answer["version"] == 3
    assert answer["warning"] == "version 3 replaces the later version 7"
    assert "adapter 'policy': version 3 replaces the later version 7" in caplog.text
