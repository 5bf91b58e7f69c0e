"""The engine with DoRA beside LoRA and the base: what it records is what the trainer computes."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_map
from mlx_lm.models.cache import make_prompt_cache
from numpy.typing import NDArray

from legos.mlx.generate.engine import MlxEngine
from legos.mlx.generate.multi_lora.slots import AdapterSlots
from legos.mlx.model.load import load_tree
from legos.mlx.model.lora import add_lora, lora_arrays, lora_shape, set_lora_arrays
from legos.mlx.model.worker import InlineWorker
from legos.records.limits import EngineLimits
from legos.records.request import Generated, Request, Result
from legos.weights.adapter import Adapter

WITHOUT_EXPERTS = ("llama", "llama_4bit", "qwen2", "qwen3", "gemma3_text", "lfm2", "qwen3_5")


class Steps(InlineWorker):
    """A worker whose ticks are asked for."""

    def wake(self) -> None:
        """Nothing: the test ticks."""


@dataclass(frozen=True)
class Speaker:
    """An adapter, and the tree that a trainer would have with it."""

    adapter: Adapter
    tree: Any


def speaker(folder: Path, name: str, version: int, *, use_dora: bool) -> Speaker:
    """A random adapter whose effect is plain to see."""
    tree: Any = load_tree(folder)
    shape = lora_shape(tree, rank=4, alpha=8.0, num_layers=2, head=False, use_dora=use_dora)
    add_lora(tree, shape, seed=0)
    rng = np.random.default_rng(version)
    arrays: dict[str, mx.array] = {}
    for key, array in lora_arrays(tree).items():
        noise = mx.array(rng.standard_normal(array.shape).astype(np.float32))
        arrays[key] = array * (1 + 0.2 * noise) if key.endswith(".m") else 0.15 * noise
    mx.eval(arrays)
    set_lora_arrays(tree, arrays)
    return Speaker(Adapter(name=name, version=version, shape=shape, arrays=arrays), tree)


class Room:
    """An engine stepped by hand."""

    def __init__(self, folder: Path, *speakers: Speaker) -> None:
        limits = EngineLimits(max_rows=8, prefill_tokens=600, chunk_tokens=64)
        tree = load_tree(folder)
        self.engine = MlxEngine(Steps(), tree, num_vocabulary=358, context=1024, limits=limits)
        self.answers: dict[int, Result] = {}
        for one in speakers:
            self.engine.load_adapter(one.adapter).result()

    def submit(self, requests: list[Request]) -> None:
        self.engine.submit(list(enumerate(requests)), lambda told: self.answers.update(told))

    def ask(self, requests: list[Request]) -> list[Generated]:
        self.submit(requests)
        while self.engine._tick():
            pass
        return [self.answer(number) for number in range(len(requests))]

    def answer(self, number: int) -> Generated:
        told = self.answers[number]
        assert isinstance(told, Generated), told
        return told


def chosen(logits: mx.array, token_ids: tuple[int, ...]) -> NDArray[np.float32]:
    """[T] log-probabilities of T tokens from [T, V] logits."""
    logits = logits.astype(mx.float32)
    logprobs = np.array(logits - mx.logsumexp(logits, axis=-1, keepdims=True))
    return logprobs[np.arange(len(token_ids)), list(token_ids)]


def of_one_pass(tree: Any, request: Request, answer: Generated) -> NDArray[np.float32]:
    whole = request.prompt_ids + answer.token_ids
    start = len(request.prompt_ids)
    return chosen(tree(mx.array([list(whole)]))[0, start - 1 : -1], answer.token_ids)


@pytest.mark.parametrize("name", WITHOUT_EXPERTS)
def test_what_is_sampled_is_what_the_trainer_computes(
    name: str, folders: Mapping[str, Path]
) -> None:
    folder = folders[name]
    policy = speaker(folder, "policy", 1, use_dora=True)
    rival = speaker(folder, "rival", 2, use_dora=False)
    trees = {"policy": policy.tree, "rival": rival.tree, "base": load_tree(folder)}
    room = Room(folder, policy, rival)
    rng = np.random.default_rng(5)
    prompts = [tuple(map(int, rng.integers(6, 340, n))) for n in (3, 40, 300, 17, 70, 5)]
    for turn in range(2):  # the second turns continue what the prefix cache keeps of the first
        requests = [
            Request(prompt_ids=p, max_tokens=4 + n, seed=10 * turn + n, adapter=list(trees)[n % 3])
            for n, p in enumerate(prompts)
        ]
        answers = room.ask(requests)
        for request, answer in zip(requests, answers, strict=True):
            expected = of_one_pass(trees[request.adapter], request, answer)
            assert answer.logprobs == pytest.approx(expected, abs=3e-5)
        prompts = [p + a.token_ids + (7, 8, 9) for p, a in zip(prompts, answers, strict=True)]
    assert room.engine.stats()["prefix_tokens_total"] > 300


@pytest.mark.parametrize("name", ["llama", "llama_4bit", "qwen2"])
@pytest.mark.parametrize("was_dora", [False, True])
def test_tokens_after_a_swap_come_from_the_new_lengths(
    name: str, was_dora: bool, folders: Mapping[str, Path]
) -> None:
    """Also where one of the two is LoRA: what had gone through the model stays as it was."""
    folder = folders[name]
    old = speaker(folder, "policy", 1, use_dora=was_dora)
    new = speaker(folder, "policy", 2, use_dora=True)
    room = Room(folder, old)
    prompt = (5, 6, 7)
    room.submit([Request(prompt_ids=prompt, max_tokens=6, seed=1)])
    for _ in range(3):
        room.engine._tick()
    assert room.engine.load_adapter(new.adapter).result() == new.adapter.info
    while room.engine._tick():
        pass
    answer = room.answer(0)
    assert answer.versions == (1, 1, 1, 2, 2, 2)
    tokens = prompt + answer.token_ids
    cache = make_prompt_cache(old.tree)
    first = old.tree(mx.array([list(tokens[:5])]), cache=cache)[0, 2:]
    second = new.tree(mx.array([list(tokens[5:8])]), cache=cache)[0]
    expected = chosen(mx.concatenate([first, second]), answer.token_ids)
    assert answer.logprobs == pytest.approx(expected, abs=3e-5)
    (fresh,) = room.ask([Request(prompt_ids=prompt, max_tokens=6, seed=1)])
    request = Request(prompt_ids=prompt, max_tokens=6)
    assert fresh.versions == (2,) * 6  # nothing of the old weights is left in the prefix cache
    assert fresh.logprobs == pytest.approx(of_one_pass(new.tree, request, fresh), abs=3e-5)


@pytest.mark.parametrize("name", ["llama", "qwen2", "llama_4bit"])
def test_in_16_bits_engine_and_trainer_agree_as_far_as_rounding_goes(
    name: str, folders: Mapping[str, Path]
) -> None:
    def halved(tree: Any) -> Any:
        tree.update(tree_map(half, tree.parameters()))
        return tree

    def half(array: mx.array) -> mx.array:
        return array.astype(mx.bfloat16) if mx.issubdtype(array.dtype, mx.floating) else array

    folder = folders[name]
    tree = halved(load_tree(folder))
    shape = lora_shape(tree, rank=4, alpha=8.0, num_layers=2, head=False, use_dora=True)
    add_lora(tree, shape, seed=0)
    whole = speaker(folder, "policy", 1, use_dora=True)
    set_lora_arrays(tree, whole.adapter.arrays)
    engine = halved(load_tree(folder))
    slots = AdapterSlots(engine)
    slot = slots.load(whole.adapter)
    rows = mx.array(np.random.default_rng(0).integers(6, 340, (3, 12)))
    with slots.rows([slot, 0, slot]):
        served = np.array(engine(rows).astype(mx.float32))[::2]
    trained = np.array(tree(rows).astype(mx.float32))[::2]
    exact = np.array(whole.tree(rows))[::2]
    rounding = np.abs(trained - exact).mean()
    assert np.abs(served - trained).mean() < rounding
    assert 0 < rounding < 0.1 * np.abs(exact).mean()
