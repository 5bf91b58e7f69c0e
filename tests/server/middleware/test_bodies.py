"""Bodies that are no JSON: the answer says what is wrong, and where."""

from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI

from legos.errors import LegosError
from legos.fakes import FakeEngine
from legos.server.middleware.bodies import parse_json
from legos.server.problems import Problem

BROKEN = [
    (b'{"prompt": [1],\n "n": 1,}', 400, ["trailing comma in object", "line 2, column 9"]),
    (b'{"prompt" [1]}', 400, ["expected ':'", "line 1, column 11"]),
    (b'{"prompt": "a" "n": 1}', 400, ["expected ',' or '}'", "line 1, column 16"]),
    (b'{"prompt": [1', 400, ["ends in the middle", "line 1, column 14"]),
    (b"{'prompt': [1]}", 400, ["object keys must be strings", "line 1, column 2"]),
    (b'{\n\n"prompt": NaN}', 400, ["invalid character b'N'", "line 3, column 11"]),
    (b'{"prompt": "\xff"}', 400, ["invalid UTF-8", "line 1, column 13"]),
    (b'{"prompt": "\\ud800"}', 400, ["surrogate"]),
    (b'{"prompt": 1} {}', 400, ["trailing characters", "line 1"]),
    (b'{"n": 1e999}', 400, ["out of range"]),
    (b"[1]", 400, ["type list", "expected an object"]),
    (b"  ", 400, ["empty", "expected a JSON object"]),
    (b"[" * 60_000, 400, ["nested too deeply"]),
    (b'{"a":' * 65 + b"1" + b"}" * 65, 400, ["nested too deeply", "at most 64"]),
    (b"{" * 70_000, 413, ["16384"]),
]


@pytest.mark.parametrize(("body", "status", "told"), BROKEN)
def test_what_is_wrong_is_named_with_its_place(
    fake: Any, body: bytes, status: int, told: list[str]
) -> None:
    with fake(FakeEngine()) as server, server.http() as http:
        kind = {"content-type": "application/json"}
        answer = http.post("/v1/completions", content=body, headers=kind)
    assert answer.status_code == status
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["param"] is None
    for part in told:
        assert part in error["message"]


def test_the_official_client_shows_it(fake: Any) -> None:
    class Breaking(httpx.HTTPTransport):
        def handle_request(self, request: httpx.Request) -> httpx.Response:
            broken = httpx.Request(
                request.method,
                request.url,
                headers={"content-type": "application/json", "content-length": "9"},
                content=b'{"model":',
            )
            return super().handle_request(broken)

    with (
        fake(FakeEngine()) as server,
        httpx.Client(transport=Breaking()) as http,
        OpenAI(
            base_url=f"{server.url}/v1",
            api_key="k",
            http_client=http,  # pyright: ignore[reportArgumentType]
            max_retries=0,
        ) as client,
        pytest.raises(openai.BadRequestError, match=r"the body is no JSON: .* line 1, column 10"),
    ):
        client.completions.create(model="base", prompt="x")


def test_a_body_of_another_kind_is_named(fake: Any) -> None:
    with fake(FakeEngine()) as server, server.http() as http:
        answer = http.post("/v1/completions", content=b'{"prompt": [1]}')
        assert answer.status_code == 415
        assert "expected application/json" in answer.json()["error"]["message"]
        charset = {"content-type": "application/json; charset=utf-8"}
        answer = http.post("/v1/completions", content=b'{"prompt": [1]}', headers=charset)
        assert answer.status_code == 200


def test_values_are_those_of_python() -> None:
    body = b'{"a": [1, 1.5, "\\ud83d\\ude00", null, true], "b": {"c": 123456789012345678901}}'
    assert parse_json(body) == {
        "a": [1, 1.5, "\U0001f600", None, True],
        "b": {"c": 123456789012345678901},
    }
    with pytest.raises(LegosError) as caught:
        parse_json(b'{"a": {' + b",".join(b'"%d": 1' % n for n in range(1025)) + b"}}")
    assert isinstance(caught.value, Problem)
    assert caught.value.status == 413
