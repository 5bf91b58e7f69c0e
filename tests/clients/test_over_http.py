"""A real server with a real engine, asked over HTTP: nothing is lost on the way."""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import replace

import httpx
import numpy as np
import pytest
from scripted_server import serving

from legos import (
    DrGRPOCredit,
    Message,
    OpenAIClient,
    Sampling,
    Trainer,
    TrainingConfig,
    apply_lora,
    load_model,
    make_arena,
    training_loop,
)
from legos.clients.engine import EngineClient
from legos.device import LocalEngine, ModelHandle
from legos.errors import AdapterError, RequestError
from legos.loop.trainer import Metrics
from legos.records.group import Group
from legos.records.message import Completion
from legos.records.names import evaluated_name
from legos.remote.legos_server import LegosServer
from legos.server.app import make_app
from legos.server.service import Service
from legos.weights.adapter import Adapter, AdapterInfo, shape_of

ASK = (Message("user", "Nim: 5 left, last one wins.\nMoves: 1 2 3"),)


@pytest.fixture(scope="module")
def model() -> Iterator[ModelHandle]:
    handle = load_model()
    apply_lora(handle)
    yield handle
    handle.close()


@pytest.fixture(scope="module")
def engine(model: ModelHandle) -> Iterator[LocalEngine]:
    made = model.make_engine()
    yield made
    made.close()


@pytest.fixture
def url(model: ModelHandle, engine: LocalEngine) -> Iterator[str]:
    assert model.lora is not None
    engine.load_adapter(model.base_adapter()).result()
    service = Service(
        EngineClient(engine, model.tokenizer),
        engine,
        model.tokenizer,
        model="builtin",
        context=model.context,
        lora_scale=model.lora.scale,
    )
    with serving(make_app(service)) as address:
        yield address


def random_adapter(model: ModelHandle, version: int, *, size: float = 0.2) -> Adapter:
    rng = np.random.default_rng(version)
    base = model.base_adapter()
    arrays = {
        name: (size * rng.standard_normal(np.asarray(array).shape)).astype(np.float32)
        for name, array in base.arrays.items()
    }
    return Adapter(name="policy", version=version, shape=base.shape, arrays=arrays)


def told(completion: Completion) -> tuple[object, ...]:
    """All of it but the time it took."""
    c = completion
    return (
        c.prompt_ids, c.token_ids, c.logprobs, c.versions, c.text, c.finish_reason, c.legal,
        c.restricted, c.temperature, c.adapter,
    )  # fmt: skip


def over_http(url: str, samplings: Sequence[Sampling], adapter: str = "policy") -> list[Completion]:
    async def go() -> list[Completion]:
        async with OpenAIClient(f"{url}/v1") as client:
            asked = (client.complete(ASK, one, adapter=adapter) for one in samplings)
            return await asyncio.gather(*asked)

    return asyncio.run(go())


def in_process(
    model: ModelHandle, engine: LocalEngine, samplings: Sequence[Sampling]
) -> list[Completion]:
    client = EngineClient(engine, model.tokenizer)

    async def go() -> list[Completion]:
        return await asyncio.gather(*(client.complete(ASK, one) for one in samplings))

    return asyncio.run(go())


def publish(url: str, adapter: Adapter) -> AdapterInfo:
    async def go() -> AdapterInfo:
        publisher = LegosServer(url)
        try:
            return await publisher.publish(adapter)
        finally:
            await publisher.aclose()

    return asyncio.run(go())


def close(a: Sequence[float], b: Sequence[float]) -> bool:
    return np.allclose(a, b, atol=1e-5, rtol=0)


@pytest.mark.slow
def test_a_hundred_at_once_are_what_the_engine_says(
    url: str, model: ModelHandle, engine: LocalEngine
) -> None:
    samplings = [
        Sampling(seed=(1 << 63) + n, max_tokens=12, temperature=0.5 + n % 3)
        if n % 2
        else Sampling(seed=n, choices=("1", "2", "3"), restrict=n % 4 == 0, max_tokens=None)
        for n in range(100)
    ]
    theirs = over_http(url, samplings)
    ours = in_process(model, engine, samplings)
    for here, there in zip(ours, theirs, strict=True):
        assert close(here.logprobs, there.logprobs)
        assert told(there)[:2] + told(there)[3:] == told(here)[:2] + told(here)[3:]
    assert theirs[0].restricted
    assert theirs[0].legal
    assert all(completion.trainable for completion in theirs)


def test_all_that_the_engine_tells_of_a_token_arrives(
    url: str, model: ModelHandle, engine: LocalEngine
) -> None:
    sampling = Sampling(max_tokens=4, temperature=0.5, raw_logprobs=True, num_alternatives=20)
    (there,), (here,) = over_http(url, [sampling]), in_process(model, engine, [sampling])
    assert there.token_ids == here.token_ids
    assert close(there.logprobs, here.logprobs)
    assert close(there.raw_logprobs, here.raw_logprobs)
    assert not close(there.logprobs, there.raw_logprobs)
    assert len(there.raw_logprobs) == len(there.alternatives) == len(there.token_ids)
    for theirs, ours in zip(there.alternatives, here.alternatives, strict=True):
        assert [token for token, _ in theirs] == [token for token, _ in ours]
        assert close([logprob for _, logprob in theirs], [logprob for _, logprob in ours])
        assert len(theirs) == 20


def test_each_adapter_scores_in_its_own_way(url: str, model: ModelHandle) -> None:
    publish(url, random_adapter(model, 900))

    def score(adapter: str) -> list[list[float]]:
        messages = [{"role": one.role, "content": one.content} for one in ASK]
        body = {"model": adapter, "prompts": [{"messages": messages, "choices": ["1", "2"]}]}
        return httpx.post(f"{url}/v1/score", json=body, trust_env=False).json()["scores"]

    base, policy, exact = map(score, ("base", "policy", "policy@900"))
    assert policy == exact
    assert abs(base[0][0] - policy[0][0]) > 1e-3


def test_what_is_published_speaks_next(url: str, model: ModelHandle, engine: LocalEngine) -> None:
    sampling = Sampling(seed=3, max_tokens=16)
    (before,) = over_http(url, [sampling])
    adapter = random_adapter(model, 5)
    assert publish(url, adapter) == adapter.info
    (after,) = over_http(url, [sampling])
    assert set(before.versions) == {0}
    assert set(after.versions) == {5}
    assert after.token_ids != before.token_ids
    (pinned,) = over_http(url, [sampling], adapter="policy@5")
    assert pinned.token_ids == after.token_ids
    with pytest.raises(RequestError, match="policy"):
        over_http(url, [sampling], adapter="policy@4")
    with pytest.raises(RequestError, match=r"rival.*does not exist here"):
        over_http(url, [sampling], adapter="rival")


def test_an_adapter_that_does_not_fit_changes_nothing(url: str, model: ModelHandle) -> None:
    publish(url, random_adapter(model, 6))
    good = random_adapter(model, 7)
    name = next(iter(sorted(good.arrays)))
    bad = {**good.arrays, name: np.full_like(good.arrays[name], np.nan)}
    with pytest.raises(AdapterError, match=rf"{name}.*not finite"):
        publish(url, Adapter(name="policy", version=7, shape=shape_of(bad, 4.0), arrays=bad))
    assert set(over_http(url, [Sampling(max_tokens=4)])[0].versions) == {6}


def test_token_ids_go_as_they_are(url: str, model: ModelHandle) -> None:
    prompt = model.tokenizer.render(ASK)

    async def go() -> tuple[Completion, Completion]:
        async with OpenAIClient(f"{url}/v1") as client:
            sampling = Sampling(seed=2, max_tokens=8)
            return await client.complete(prompt, sampling), await client.complete(ASK, sampling)

    as_ids, as_chat = asyncio.run(go())
    assert as_ids.prompt_ids == prompt
    assert told(as_ids) == told(as_chat)


def test_a_pinned_adapter_stays_next_to_the_policy_until_it_is_dropped(
    url: str, model: ModelHandle, engine: LocalEngine
) -> None:
    policy = model.base_adapter()
    pinned = replace(policy, name=evaluated_name(policy.name))

    async def go() -> None:
        publisher = LegosServer(url)
        await publisher.publish(pinned)
        await publisher.publish(replace(policy, version=7))
        live = engine.versions()
        assert (live["policy"], live["policy-evaluated"]) == (7, 0)
        await publisher.drop(pinned.name)
        assert engine.versions()["policy"] == 7
        assert "policy-evaluated" not in engine.versions()
        with pytest.raises(AdapterError, match="'policy-evaluated' is not dropped"):
            await publisher.drop(pinned.name)
        await publisher.aclose()

    asyncio.run(go())


def test_a_trainer_learns_from_what_a_server_plays(url: str, engine: LocalEngine) -> None:
    config = TrainingConfig(min_samples_per_step=8, staleness_limit=1, learning_rate=1e-3)
    model = load_model()
    trainer = Trainer(model=model, config=config)
    steps: list[Metrics] = []

    async def note(metrics: Metrics, batches: Sequence[Group]) -> None:
        steps.append(metrics)
        assert engine.versions()["policy"] == trainer.version
        assert all(batch.samples for batch in batches)

    async def go() -> None:
        async with OpenAIClient(base_url=f"{url}/v1") as client:
            arena = make_arena("nim", client)
            arena.credit_assigner = DrGRPOCredit()
            arena.tasks_per_step, arena.group_size = 2, 4
            await training_loop(arena, trainer, 2, episode_concurrency=8, after_step=note)
            batch = await arena.step(concurrency=8)
            trainer.train_step(batch)
            live = await trainer.publish_weights(url)
            assert live.version == trainer.version == engine.versions()["policy"]

    try:
        asyncio.run(go())
    finally:
        trainer.close()
    assert [metrics["step"] for metrics in steps] == [1, 2]
    assert all((metrics["staleness_max"] or 0) <= 1 for metrics in steps)
    assert trainer.version == 3
