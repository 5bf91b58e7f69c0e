"""Bodies that are no JSON, or too large: the answer says what is wrong, and where."""

import json
from typing import Any

import httpx
import openai
import pytest
from fakes import FakeEngine
from openai import OpenAI

from legos.server.endpoints.chat_body import ChatBody
from legos.server.problems import Problem

BROKEN = [
    (b'{"prompt": [1],\n "n": 1,}', ["trailing comma", "line 2 column 9"]),
    (b'{"prompt" [1]}', ["expected `:`", "line 1 column 11"]),
    (b'{"prompt": "a" "n": 1}', ["expected `,` or `}`", "line 1 column 16"]),
    (b'{"prompt": [1', ["EOF while parsing", "line 1 column 13"]),
    (b"{'prompt': [1]}", ["key must be a string", "line 1 column 2"]),
    (b'{"prompt": "\xff"}', ["invalid unicode", "line 1 column 13"]),
    (b'{"prompt": "\\ud800"}', ["hex escape", "line 1"]),
    (b'{"prompt": 1} {}', ["trailing characters", "line 1"]),
    (b'{"prompt": [1], "temperature": NaN}', ["temperature: Input should be a finite number"]),
    (b'{"prompt": [1], "n": 1e999}', ["n: "]),
    (b"[1]", ["Input should be an object"]),
    (b"  ", ["EOF while parsing", "line 1"]),
    (b"[" * 60_000, ["recursion limit exceeded"]),
    (b'{"a":' * 250 + b"1" + b"}" * 250, ["recursion limit exceeded"]),
    (b'{"a": {' + b",".join(b'"%d": 1' % n for n in range(1025)) + b"}}", ["not known here"]),
    (b"{" + b",".join(b'"%d": 1' % n for n in range(1025)) + b"}", ["an object has 1025 fields"]),
]


@pytest.mark.parametrize(("body", "told"), BROKEN)
def test_what_is_wrong_is_named_with_its_place(fake: Any, body: bytes, told: list[str]) -> None:
    with fake(FakeEngine()) as server, server.http() as http:
        kind = {"content-type": "application/json"}
        answer = http.post("/v1/completions", content=body, headers=kind)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
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
            http_client=http,
            max_retries=0,
        ) as client,
        pytest.raises(openai.BadRequestError, match=r"the body is no JSON: .* line 1 column 9"),
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


LARGE = {"properties": {f"p{number}": {} for number in range(6_000)}}
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": LARGE}}]


@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": {"type": "json_schema", "json_schema": {"schema": LARGE}}},
        {"tools": TOOLS, "tool_choice": "required"},
        {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "f"}}},
    ],
)
def test_a_large_schema_is_refused_while_the_body_is_parsed(fields: dict[str, Any]) -> None:
    """Afterwards it would be copied several times on the event loop."""
    with pytest.raises(Problem, match=r"the JSON schema has .* expected at most 65536"):
        ChatBody.model_validate_json(json.dumps(fields))
    ChatBody.model_validate_json(json.dumps({"tools": TOOLS, "tool_choice": "auto"}))
