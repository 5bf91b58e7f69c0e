"""A field that is null is absent, as in OpenAI's API: clients write out what they leave open."""

from typing import Any

import pytest
from fakes import FakeEngine
from openai.types import completion_create_params
from openai.types.chat import completion_create_params as chat_params
from pydantic import ValidationError

from legos.server.bodies import Body
from legos.server.endpoints.chat_body import ChatBody
from legos.server.endpoints.completions import CompletionBody
from legos.server.endpoints.texts import DetokenizeBody, TokenizeBody

CALL = {"id": "call00001", "type": "function", "function": {"name": "f", "arguments": "{}"}}
ASK: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2},
    "/v1/completions": {"prompt": [5, 6], "max_tokens": 2},
    "/tokenize": {"prompt": "a"},
    "/detokenize": {"tokens": [5]},
}


@pytest.mark.parametrize(
    ("path", "known"),
    [
        ("/v1/chat/completions", chat_params.CompletionCreateParamsBase.__annotations__),
        ("/v1/completions", completion_create_params.CompletionCreateParamsBase.__annotations__),
        ("/v1/chat/completions", ChatBody.model_fields),
        ("/v1/completions", CompletionBody.model_fields),
        ("/tokenize", TokenizeBody.model_fields),
        ("/detokenize", DetokenizeBody.model_fields),
        ("/v1/chat/completions", ("stream", "thinking_budget")),
    ],
)
def test_null_is_as_good_as_absent(fake: Any, path: str, known: Any) -> None:
    with fake(FakeEngine()) as server, server.http() as http:
        plain = http.post(path, json=ASK[path])
        answer = http.post(path, json={**dict.fromkeys(known), **ASK[path]})
    assert answer.status_code == 200, answer.text
    assert answer.json().get("choices") == plain.json().get("choices")


@pytest.mark.parametrize(
    "more",
    [
        {"stream": True, "stream_options": {"include_usage": None, "include_obfuscation": None}},
        {"response_format": {"type": None, "json_schema": None, "x": None}},
        {"tools": [{"type": "function", "function": {"name": "f", "x": None}, "cache": None}]},
        {"chat_template_kwargs": {"enable_thinking": None}},
        {
            "messages": [
                {"role": "user", "content": [{"type": "text", "text": "a", "cache_control": None}]},
                {
                    "role": "assistant",
                    "content": None,
                    "refusal": None,
                    "tool_calls": [{**CALL, "extra_content": None, "index": None}],
                },
                {
                    "role": "assistant",
                    "tool_calls": [{**CALL, "function": {"name": "f", "arguments": None}}],
                },
                {"role": "tool", "content": "1", "tool_call_id": "call00001", "x": None},
            ]
        },
    ],
)
def test_nulls_inside_of_fields(fake: Any, more: dict[str, Any]) -> None:
    with fake(FakeEngine()) as server, server.http() as http:
        answer = http.post("/v1/chat/completions", json={**ASK["/v1/chat/completions"], **more})
    assert answer.status_code == 200, answer.text
    assert "error" not in answer.text


def test_an_unknown_field_with_a_value_is_still_refused(fake: Any) -> None:
    with fake(FakeEngine()) as server, server.http() as http:
        body = {**ASK["/v1/completions"], "temprature": 0}
        answer = http.post("/v1/completions", json=body)
    assert answer.status_code == 400
    assert "did you mean 'temperature'" in answer.text


def test_the_schema_of_a_tool_keeps_its_nulls() -> None:
    parameters = {"type": "object", "properties": {"x": {"default": None, "enum": [None, 1]}}}
    body = ChatBody.model_validate(
        {"tools": [{"type": "function", "function": {"name": "f", "parameters": parameters}}]}
    )
    assert body.callable_tools()[0][0]["function"]["parameters"] == parameters


def test_every_body_takes_null_for_what_has_a_default() -> None:
    bodies: list[type[Body]] = [Body]
    for body in bodies:
        bodies += body.__subclasses__()
        optional = [n for n, field in body.model_fields.items() if not field.is_required()]
        required = {n for n, field in body.model_fields.items() if field.is_required()}
        try:
            body.model_validate(dict.fromkeys(optional))
        except ValidationError as error:  # only what is required is missing
            problems: list[Any] = error.errors()
            for problem in problems:
                alone = not problem["loc"]  # a model's own check, such as "give one of"
                assert alone or problem["loc"][0] in required, (body, problem)
