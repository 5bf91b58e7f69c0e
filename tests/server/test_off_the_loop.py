"""What takes long for a large body runs on a thread, never on that of the event loop.

The tests of ``test_hostile_bodies.py`` measure the loop's own processor time, which work in Rust
and waits for other threads do not lengthen; these see where each function runs.
"""

import base64
import importlib
import threading
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pytest
from fakes import FakeEngine
from safetensors.numpy import save

from legos.chat.tokenizer import ChatTokenizer

CHAT, TEXT, LOAD = "/v1/chat/completions", "/v1/completions", "/adapters/load?version=1&scale=2"
LARGE = 20_000  # characters, bytes, tokens or alternatives
HI = [{"role": "user", "content": "hi"}]
LONG = "so be it, " * 4_000
LONG_CHAT = [{"role": "user", "content": LONG}]
MANY = [f"{n:07}" for n in range(4_000)]
SCHEMA = {"type": "object", "properties": {f"p{n}": {"enum": [f"{n:09}"]} for n in range(1_000)}}
WEIGHTS = save(
    {
        "model.layers.0.self_attn.q_proj.lora_a": np.ones((4_000, 2), np.float32),
        "model.layers.0.self_attn.q_proj.lora_b": np.ones((2, 4_000), np.float32),
    }
)


def characters(texts: Any) -> int:
    """Characters of texts, messages or their fields."""
    if isinstance(texts, str):
        return len(texts)
    if isinstance(texts, Mapping):
        return characters(texts["content"])
    if hasattr(texts, "content"):
        return len(texts.content)
    return sum(map(characters, texts))


class Case(NamedTuple):
    """A function, the size of what one call of it works on, and a request that calls it."""

    owner: str | type
    name: str
    size: Callable[[Any, Any], int]  # from the last argument that is positional, and the result
    path: str
    body: Any


CASES = {
    "text": Case(
        ChatTokenizer, "encode_each", lambda given, _: characters(given), TEXT, {"prompt": LONG}
    ),
    "texts": Case(
        ChatTokenizer,
        "encode_each",
        lambda given, _: characters(given),
        TEXT,
        {"prompt": [LONG[:200]] * 200},
    ),
    "text to count": Case(
        ChatTokenizer,
        "encode_each",
        lambda given, _: characters(given),
        "/tokenize",
        {"prompt": LONG},
    ),
    "choices": Case(
        ChatTokenizer,
        "encode_each",
        lambda given, _: characters(given),
        TEXT,
        {"prompt": [1], "choices": MANY},
    ),
    "scored choices": Case(
        ChatTokenizer,
        "encode_each",
        lambda given, _: characters(given),
        "/v1/score",
        {"prompts": [{"messages": HI, "choices": MANY[:1_000]}] * 4},
    ),
    "scored chat": Case(
        ChatTokenizer,
        "render_chat",
        lambda given, _: characters(given),
        "/v1/score",
        {"prompts": [{"messages": LONG_CHAT, "choices": ["a"]}]},
    ),
    "chat": Case(
        ChatTokenizer,
        "render_chat",
        lambda given, _: characters(given),
        CHAT,
        {"messages": LONG_CHAT},
    ),
    "chat with a variable": Case(
        ChatTokenizer,
        "render_chat",
        lambda given, _: characters(given),
        CHAT,
        {"messages": LONG_CHAT, "chat_template_kwargs": {"enable_thinking": False}},
    ),
    "chat to count": Case(
        ChatTokenizer,
        "render_chat",
        lambda given, _: characters(given),
        "/tokenize",
        {"messages": LONG_CHAT},
    ),
    "tree": Case(
        "legos.clients.constraints",
        "choice_tree",
        lambda given, _: sum(map(len, given)),
        TEXT,
        {"prompt": [1], "choices": MANY},
    ),
    "grammar": Case(
        "legos.chat.grammar",
        "json_grammar",
        lambda given, _: len(given),
        CHAT,
        {
            "messages": HI,
            "response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}},
        },
    ),
    "tokens": Case(
        ChatTokenizer,
        "decode",
        lambda given, _: len(given),
        "/detokenize",
        {"tokens": [30] * 30_000},
    ),
    "body": Case(
        "legos.server.bodies",
        "without_nulls",
        lambda given, _: len(given["prompt"]),
        TEXT,
        {"prompt": [1] * 30_000},
    ),
    "answer": Case(
        "msgspec.json",
        "encode",
        lambda _, made: len(made),
        CHAT,
        {"messages": HI, "n": 64, "max_tokens": 20, "logprobs": True, "top_logprobs": 20},
    ),
    "counted tokens": Case(
        "msgspec.json", "encode", lambda _, made: len(made), "/tokenize", {"prompt": LONG}
    ),
    "scores": Case(
        "msgspec.json",
        "encode",
        lambda _, made: len(made),
        "/v1/score",
        {"prompts": [{"prompt": [1], "choices": [[2]] * 1_000}] * 8},
    ),
    "adapter": Case(
        "legos.server.endpoints.adapters", "adapter_of", lambda _, made: len(WEIGHTS), LOAD, WEIGHTS
    ),
    "adapter in JSON": Case(
        "legos.server.endpoints.adapters",
        "read_json_upload",
        lambda given, _: len(given),
        LOAD,
        {"weights": base64.b64encode(WEIGHTS).decode()},
    ),
}


@pytest.mark.nightly
@pytest.mark.parametrize("name", CASES)
def test_large_inputs_are_not_handled_on_the_loop(
    fake: Any, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    owner, function, size, path, body = CASES[name]
    place: Any = importlib.import_module(owner) if isinstance(owner, str) else owner
    own: Any = getattr(place, function)
    first = int(isinstance(owner, type))  # index of the argument after ``self``
    calls: list[tuple[int, threading.Thread]] = []

    def watched(*given: Any, **named: Any) -> Any:
        made = own(*given, **named)
        calls.append((size(given[first], made), threading.current_thread()))
        return made

    raw = isinstance(body, bytes)
    content = body if raw else msgspec.json.encode(body)
    kind = {"content-type": "application/octet-stream" if raw else "application/json"}
    with fake(FakeEngine()) as server, server.http() as http:
        server.service.context = 1_000_000
        monkeypatch.setattr(place, function, watched)
        answer = http.post(path, content=content, headers=kind)
    assert answer.status_code == 200, answer.text[:300]
    large = [thread.name for size, thread in calls if size > LARGE]
    assert large
    assert "server" not in large, calls
