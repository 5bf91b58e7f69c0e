"""The chat endpoint over a real engine and the built-in model."""

import math
from collections.abc import Iterator

import pytest
from fastapi.testclient import TestClient

from legos import apply_lora, load_model
from legos.build.model import ModelHandle
from legos.clients.engine import EngineClient
from legos.data.message import Message
from legos.mlx.engine import MlxEngine
from legos.server.app import make_app

QUESTION = "Nim: 5 left, last one wins.\nMoves: 1 2 3"


@pytest.fixture(scope="module")
def model() -> Iterator[ModelHandle]:
    handle = load_model()
    apply_lora(handle)
    yield handle
    handle.close()


@pytest.fixture(scope="module")
def engine(model: ModelHandle) -> Iterator[MlxEngine]:
    made = model.make_engine()
    made.load_adapter(model.base_adapter()).result()
    yield made
    made.close()


@pytest.fixture(scope="module")
def http(model: ModelHandle, engine: MlxEngine) -> Iterator[TestClient]:
    with TestClient(make_app(EngineClient(engine, model.tokenizer), engine)) as client:
        yield client


def ask(http: TestClient, **fields: object) -> dict:
    body = {"messages": [{"role": "user", "content": QUESTION}], "max_tokens": 1, **fields}
    answer = http.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_an_answer_holds_its_tokens_and_their_probabilities(
    http: TestClient, model: ModelHandle
) -> None:
    answer = ask(http, seed=3)
    (choice,) = answer["choices"]
    prompt = model.tokenizer.render((Message("user", QUESTION),))
    assert answer["prompt_token_ids"] == list(prompt)
    assert answer["usage"]["prompt_tokens"] == len(prompt)
    assert model.tokenizer.decode(choice["token_ids"]) == choice["message"]["content"]
    logits = model(prompt)[-1].astype("float64")
    expected = logits[choice["token_ids"][0]] - math.log(sum(math.exp(x) for x in logits))
    assert choice["token_logprobs"][0] == pytest.approx(expected, abs=1e-4)
    assert choice["versions"] == [0]


def test_a_seed_repeats_the_answer(http: TestClient) -> None:
    told = {ask(http, seed=seed)["choices"][0]["message"]["content"] for seed in range(20)}
    assert told > {"1", "2"}
    assert ask(http, seed=11)["choices"] == ask(http, seed=11)["choices"]


def test_models_lists_what_is_live(http: TestClient) -> None:
    (listed,) = http.get("/v1/models").json()["data"]
    assert (listed["id"], listed["version"]) == ("policy", 0)
    assert http.get("/health").json() == {"status": "ok"}


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"temperatur": 1}, "temperatur"),
        ({"messages": []}, "messages"),
        ({"stream": True}, "stream"),
        ({"model": "v7"}, "'v7' is not live"),
        ({"max_tokens": 10**6}, "context"),
    ],
)
def test_a_bad_request_names_the_field(http: TestClient, fields: dict, named: str) -> None:
    body = {"messages": [{"role": "user", "content": QUESTION}], **fields}
    answer = http.post("/v1/chat/completions", json=body)
    assert answer.status_code == 400
    assert named in answer.json()["error"]["message"]


def test_a_stop_text_is_left_out(http: TestClient) -> None:
    said = ask(http, max_tokens=8, temperature=0)["choices"][0]["message"]["content"]
    cut = ask(http, max_tokens=8, temperature=0, stop=[said[0]])["choices"][0]
    assert cut["message"]["content"] == ""
    assert cut["finish_reason"] == "stop"
