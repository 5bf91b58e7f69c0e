"""The engine of a real vLLM server: tokens, log-probabilities, choices, scores, cancellation."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest
from tiny_folders import write_tiny_model

from legos import Message, Sampling, apply_lora, load_model
from legos.clients.engine import EngineClient
from legos.device import ModelHandle
from legos.errors import AdapterError, EngineError, ModelError, RequestError
from legos.records.message import Completion
from legos.remote.process import ServerProcess
from legos.weights.adapter import Adapter
from legos.wiring.engines import TokenEngine
from legos.wiring.vllm import vllm_at

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]
ASK = (Message("user", "Nim: 5 left, last one wins.\nMoves: 1 2 3"),)
MOVES = ("1", "2", "3")
WORDS = ("raise", "rest", "re", "call")  # several tokens each; one begins another


@pytest.fixture(scope="module")
def model() -> Iterator[ModelHandle]:
    handle = load_model()
    apply_lora(handle)
    yield handle
    handle.close()


def random_adapter(model: ModelHandle, version: int) -> Adapter:
    rng = np.random.default_rng(version)
    base = model.base_adapter()
    arrays = {
        name: (0.1 * rng.standard_normal(np.shape(array))).astype(np.float32)
        for name, array in base.arrays.items()
    }
    return Adapter(name="policy", version=version, shape=base.shape, arrays=arrays)


@pytest.fixture(scope="module")
def adapter(model: ModelHandle) -> Adapter:
    return random_adapter(model, 3)


@pytest.fixture(scope="module")
def served(
    vllm_server: ServerProcess, model: ModelHandle, adapter: Adapter
) -> Iterator[TokenEngine]:
    made = vllm_at([vllm_server.url], model, policies=("policy",))
    made.engine.load_adapter(adapter).result()
    yield made
    made.close()


@pytest.fixture
def client(served: TokenEngine) -> EngineClient:
    return served.client()


def ask(client: EngineClient, *samplings: Sampling) -> list[Completion]:
    async def go() -> list[Completion]:
        return await asyncio.gather(*(client.complete(ASK, one) for one in samplings))

    return asyncio.run(go())


def own_logprobs(model: ModelHandle, adapter: Adapter, completion: Completion) -> np.ndarray:
    """[C] nats of a completion's tokens, as the trainer's model computes them."""
    start = len(completion.prompt_ids) - 1
    logits = model((*completion.prompt_ids, *completion.token_ids), adapter=adapter)[start:-1]
    scaled = logits.astype(np.float64) / completion.temperature
    for row, legal in zip(scaled, completion.legal if completion.restricted else (), strict=False):
        illegal = np.ones(len(row), bool)
        illegal[list(legal)] = False
        row[illegal] = -np.inf
    scaled -= scaled.max(axis=-1, keepdims=True)
    logprobs = scaled - np.log(np.exp(scaled).sum(axis=-1, keepdims=True))
    return logprobs[np.arange(len(logprobs)), list(completion.token_ids)]


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(max_tokens=40, stop_ids=(), ignore_end=True),
        Sampling(max_tokens=8, temperature=0.7),
        Sampling(choices=MOVES, max_tokens=None),
        Sampling(choices=MOVES, max_tokens=None, restrict=True),
        Sampling(choices=WORDS, max_tokens=None, restrict=True),
    ],
    ids=["long", "cool", "moves", "legal moves", "legal words"],
)
def test_log_probabilities_are_those_of_the_trainer(
    client: EngineClient, model: ModelHandle, adapter: Adapter, sampling: Sampling
) -> None:
    for completion in ask(client, *[sampling] * 8):
        assert completion.trainable
        assert set(completion.versions) == {3}
        own = own_logprobs(model, adapter, completion)
        assert completion.logprobs == pytest.approx(own, abs=1e-4)
        if sampling.choices:
            assert len(completion.legal) == len(completion.token_ids)
        if sampling.restrict:
            assert completion.text in sampling.choices
            assert completion.finish_reason == "stop"


def test_a_move_ends_with_its_choice_and_equal_prompts_get_different_answers(
    client: EngineClient, model: ModelHandle
) -> None:
    found = ask(client, *[Sampling(choices=MOVES, max_tokens=None)] * 64)
    legal = {model.tokenizer.encode(move)[0] for move in MOVES}
    assert {len(completion.token_ids) for completion in found} == {1}
    assert {completion.legal for completion in found} == {(tuple(sorted(legal)),)}
    assert len({completion.text for completion in found} & set(MOVES)) > 1


def test_scores_are_those_of_the_engine_in_this_process(
    client: EngineClient, model: ModelHandle, adapter: Adapter
) -> None:
    prompts = [(ASK, MOVES), (ASK, WORDS), (ASK, MOVES[:2])]
    engine = model.make_engine()
    engine.load_adapter(adapter).result()
    try:
        own = asyncio.run(EngineClient(engine, model.tokenizer).score(prompts))
    finally:
        engine.close()
    found = asyncio.run(client.score(prompts))
    for here, there in zip(own, found, strict=True):
        assert there == pytest.approx(here, abs=1e-4)


def test_one_bad_or_cancelled_request_of_a_list_harms_no_other(
    client: EngineClient, served: TokenEngine
) -> None:
    async def go() -> None:
        before = served.engine.tokens_generated("policy").result()
        sampling = Sampling(max_tokens=30, ignore_end=True)
        tasks = [asyncio.create_task(client.complete(ASK, sampling)) for _ in range(3)]
        bad = asyncio.create_task(client.complete([1, 10_000], sampling))
        await asyncio.sleep(0.02)
        tasks[0].cancel()
        with pytest.raises(RequestError, match="10000"):
            await bad
        rest = await asyncio.gather(*tasks[1:])
        assert [len(completion.token_ids) for completion in rest] == [30, 30]
        assert served.engine.tokens_generated("policy").result() - before == 60

    asyncio.run(go())


def test_a_stop_text_ends_a_completion_with_its_last_token(
    client: EngineClient, model: ModelHandle
) -> None:
    for completion in ask(client, *[Sampling(max_tokens=20, stop=MOVES, ignore_end=True)] * 8):
        text = model.tokenizer.decode(completion.token_ids)
        assert not set(text[:-1]) & set(MOVES)
        assert completion.text == text[:-1]
        assert text[-1] in MOVES
        assert completion.finish_reason == "stop"


def test_an_adapter_is_dropped_and_a_closed_engine_refuses(
    vllm_server: ServerProcess, model: ModelHandle
) -> None:
    served = vllm_at([vllm_server.url], model, policies=("policy",))
    served.engine.load_adapter(random_adapter(model, 1)).result()
    served.engine.drop_adapter("policy").result()
    with pytest.raises(RequestError, match="'policy' is not live"):
        ask(served.client(), Sampling(max_tokens=1))
    served.close()
    with pytest.raises(EngineError, match="closed"):
        ask(served.client(), Sampling(max_tokens=1))


def test_several_servers_share_the_requests_and_all_get_each_version(
    vllm_server: ServerProcess, model: ModelHandle
) -> None:
    served = vllm_at([vllm_server.url, vllm_server.url], model, policies=("policy",))
    try:
        for version in (1, 2):
            served.engine.load_adapter(random_adapter(model, version)).result()
            found = ask(served.client(), *[Sampling(max_tokens=2)] * 6)
            assert {one for each in found for one in each.versions} == {version}
        models = httpx.get(f"{vllm_server.url}/v1/models", trust_env=False).json()["data"]
        runs = {one["id"].split("+")[1] for one in models if one["id"].startswith("policy@2+")}
        assert len(runs) == 2  # each server has its own copy, loaded by its own publisher
    finally:
        served.close()


def test_json_follows_its_schema(client: EngineClient) -> None:
    schema = """{"type": "object", "properties": {"move": {"enum": [1, 2, 3]}},
        "required": ["move"], "additionalProperties": false}"""
    for completion in ask(client, *[Sampling(max_tokens=64, json_schema=schema)] * 4):
        assert json.loads(completion.text)["move"] in (1, 2, 3)
        assert completion.finish_reason == "stop"
        assert not completion.trainable


def test_a_server_with_another_model_is_refused(vllm_server: ServerProcess, tmp_path: Path) -> None:
    other = load_model(write_tiny_model(tmp_path / "other"))
    apply_lora(other)
    try:
        with pytest.raises((AdapterError, ModelError)):
            vllm_at([vllm_server.url], other, policies=("policy",))
    finally:
        other.close()
