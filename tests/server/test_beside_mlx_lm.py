"""What docs/serve/serving.md says of mlx-lm's own server, and of this one, asked of both."""

from collections.abc import Iterator, Mapping
from typing import Any

import httpx
import pytest
from bench.server_processes import running, serve_command, stock_command
from tiny_folders import write_tiny_model

pytestmark = pytest.mark.nightly
TEXT = {"prompt": "Nim: 5 left, last one wins.", "max_tokens": 4}


def chat(text: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], "max_tokens": 4}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_tiny_model(tmp_path_factory.mktemp("model") / "tiny"))


@pytest.fixture(scope="module")
def urls(folder: str) -> Iterator[Mapping[str, str]]:
    with (
        running(serve_command(folder, rows=8)) as ours,
        running(stock_command(folder, rows=8)) as theirs,
    ):
        yield {"legos": ours.url, "mlx_lm": theirs.url}


def post(url: str, path: str, body: Mapping[str, Any]) -> httpx.Response:
    return httpx.post(url + path, json=body, timeout=60)


def test_both_answer(urls: Mapping[str, str]) -> None:
    for url in urls.values():
        assert post(url, "/v1/chat/completions", chat("Nim: 5 left")).status_code == 200
        assert post(url, "/v1/completions", {"prompt": "Nim:", "max_tokens": 4}).status_code == 200


@pytest.mark.parametrize(
    ("path", "body", "statuses"),
    [
        ("/v1/completions", {"prompt": [5, 6, 7], "max_tokens": 2}, (200, 404)),
        ("/v1/completions", {"prompt": "How?", "max_tokens": 4, "logprobs": 1}, (200, 400)),
        ("/tokenize", {"prompt": "a"}, (200, 404)),
        ("/v1/chat/completions", chat("How hot?") | {"temprature": 0.5}, (400, 200)),
    ],
    ids=["token ids", "a number of logprobs", "tokenize", "a misspelt field"],
)
def test_what_is_taken(
    urls: Mapping[str, str], path: str, body: Mapping[str, Any], statuses: tuple[int, int]
) -> None:
    found = tuple(post(urls[name], path, body).status_code for name in ("legos", "mlx_lm"))
    assert found == statuses


def test_several_answers(urls: Mapping[str, str]) -> None:
    asked = chat("What else?") | {"n": 3}
    answers = {n: post(url, "/v1/chat/completions", asked).json() for n, url in urls.items()}
    counts = {name: len(answer["choices"]) for name, answer in answers.items()}
    assert counts == {"legos": 3, "mlx_lm": 1}


def test_metrics_and_adapters(urls: Mapping[str, str]) -> None:
    for path in ("/metrics", "/adapters/version"):
        statuses = {name: httpx.get(url + path).status_code for name, url in urls.items()}
        assert statuses == {"legos": 200, "mlx_lm": 404}


def test_an_empty_prompt_harms_nobody_else(folder: str, urls: Mapping[str, str]) -> None:
    empty = {"prompt": "", "max_tokens": 2}
    assert post(urls["legos"], "/v1/completions", empty).status_code == 400
    assert post(urls["legos"], "/v1/chat/completions", chat("And now?")).status_code == 200
    with running(stock_command(folder, rows=8)) as theirs:
        with pytest.raises(httpx.RemoteProtocolError):
            post(theirs.url, "/v1/completions", empty)
        assert "thread died" in post(theirs.url, "/v1/chat/completions", chat("And now?")).text
        assert httpx.get(theirs.url + "/health").status_code == 503
