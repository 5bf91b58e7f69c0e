"""Whatever the OpenAPI page allows, and much that it does not, is answered without a failure."""

import json
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error

from legos.server import bodies as schema_file
from legos.server.bodies import Schema
from legos.server.options import ServerOptions
from legos.wiring.http import app_of


@pytest.fixture(scope="module")
def schema(model: Any, engine: Any) -> Any:
    """The application without a network; answers are short."""
    options = ServerOptions(request_timeout_s=20.0)
    return schemathesis.openapi.from_asgi(
        "/openapi.json", app_of(model, engine, name="builtin", options=options)
    )


def test_every_model_on_the_page_has_an_example(served: Any) -> None:
    with served.http() as http:
        page = http.get("/openapi.json").json()
    paths = set(page["paths"])
    assert paths >= {
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/models",
        "/adapters/load",
        "/adapters/version",
        "/adapters/{name}",
        "/health",
        "/metrics",
        "/tokenize",
        "/detokenize",
    }
    bodies = [
        operation["requestBody"]["content"]["application/json"]
        for methods in page["paths"].values()
        for operation in methods.values()
        if "requestBody" in operation
    ]
    schemas = page["components"]["schemas"]
    for body in bodies:
        name = body["schema"].get("$ref", "").rsplit("/", 1)[-1]
        assert schemas.get(name, body["schema"])["examples"], name


def test_every_example_is_one_of_its_schema() -> None:
    kinds: dict[str, Any] = {}
    left: list[type[Schema]] = [Schema]
    while left:
        left += (found := left.pop()).__subclasses__()
        kinds[found.__name__] = found
    examples = json.loads(Path(schema_file.__file__).with_name("examples.json").read_text())
    assert examples
    for name, several in examples.items():
        for example in several:
            assert kinds[name].model_validate(example, strict=True)


def test_the_page_needs_nothing_from_elsewhere(served: Any) -> None:
    with served.http() as http:
        answer = http.get("/docs")
        paths = http.get("/openapi.json").json()["paths"]
        evil = http.get("/docs", headers={"host": "x'><script>alert(1)</script>"})
    assert answer.headers["content-type"].startswith("text/html")
    assert re.findall(r"https?://[^\s/'\"<]+", answer.text) == []
    assert re.findall(r"(?:src|href|url|import)\s*[=(]\s*['\"]?([^'\">)]+)", answer.text) == [
        "openapi.json"
    ]
    assert "<script" not in answer.text + evil.text
    for path in paths:
        assert f" {path}</code>" in answer.text
    assert "of each choice as the complete answer" in answer.text


@pytest.mark.nightly
@pytest.mark.parametrize("mode", list(GenerationMode))
def test_no_request_makes_the_server_fail(schema: Any, mode: GenerationMode) -> None:
    operations = [found.ok() for found in schema.get_all_operations()]
    assert len(operations) == 12
    for operation in operations:

        @settings(
            max_examples=25,
            phases=[Phase.generate],
            suppress_health_check=[
                HealthCheck.too_slow,
                HealthCheck.filter_too_much,
                HealthCheck.data_too_large,
            ],
        )
        @given(case=operation.as_strategy(generation_mode=mode))
        def answered(case: Any) -> None:
            case.call_and_validate(checks=[not_a_server_error])

        with suppress(Unsatisfiable):  # nothing is wrong that could be asked here
            answered()
