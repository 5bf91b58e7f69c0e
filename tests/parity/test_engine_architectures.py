"""The engine on every architecture: what it samples and records is what one forward pass gives.

Long prompts in chunks, conversations from the prefix cache, two adapters and the base in one batch,
rows that end by a token: each recorded log-probability is compared with a tree without a cache.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import mlx.core as mx
import numpy as np
import pytest
from numpy.typing import NDArray

from legos.device.worker import InlineWorker
from legos.mlx.generate.engine import MlxEngine
from legos.mlx.model.load import load_tree
from legos.mlx.model.lora import add_lora, lora_arrays, lora_shape, set_lora_arrays
from legos.records.limits import DecodeAhead, EngineLimits
from legos.records.request import Generated, Request, Result
from legos.weights.adapter import Adapter


class Steps(InlineWorker):
    """A worker whose ticks are asked for."""

    def wake(self) -> None:
        """Nothing: the test ticks."""


class Bench:
    """An engine with two adapters, and a trainer's tree to hold it against."""

    def __init__(self, folder: Path, decode_ahead: DecodeAhead = "off") -> None:
        self.tree: Any = load_tree(folder)
        shape = lora_shape(self.tree, rank=4, alpha=8.0, num_layers=2, head=False)
        add_lora(self.tree, shape, seed=0)
        sizes = {name: array.shape for name, array in lora_arrays(self.tree).items()}
        self.arrays: dict[str, dict[str, mx.array]] = {
            "base": {name: mx.zeros(size) for name, size in sizes.items()}
        }
        self.worker = Steps()
        limits = EngineLimits(
            max_rows=8, prefill_tokens=600, chunk_tokens=64, decode_ahead=decode_ahead
        )
        self.engine = MlxEngine(
            self.worker, load_tree(folder), num_vocabulary=358, context=1024, limits=limits
        )
        for version, name in enumerate(("policy", "rival"), start=1):
            rng = np.random.default_rng(version)
            arrays = {
                key: mx.array((0.15 * rng.standard_normal(size)).astype(np.float32))
                for key, size in sizes.items()
            }
            self.arrays[name] = arrays
            adapter = Adapter(name=name, version=version, shape=shape, arrays=arrays)
            self.engine.load_adapter(adapter).result()

    def ask(self, requests: list[Request]) -> list[Generated]:
        answers: dict[int, Result] = {}
        self.engine.submit(list(enumerate(requests)), lambda results: answers.update(results))
        while self.engine._tick():
            pass
        told = [answers[number] for number in range(len(requests))]
        generated = [answer for answer in told if isinstance(answer, Generated)]
        assert generated == told
        return generated

    def expected(self, request: Request, answer: Generated) -> NDArray[np.float32]:
        set_lora_arrays(self.tree, self.arrays[request.adapter])
        whole = request.prompt_ids + answer.token_ids
        logits = self.tree(mx.array([list(whole)]))[0].astype(mx.float32)
        logprobs = np.array(logits - mx.logsumexp(logits, axis=-1, keepdims=True))
        start = len(request.prompt_ids)
        return logprobs[np.arange(start - 1, len(whole) - 1), list(answer.token_ids)]


@pytest.mark.parametrize("decode_ahead", ["off", pytest.param("on", marks=pytest.mark.nightly)])
def test_what_is_sampled_is_what_a_forward_pass_gives(
    architecture: str, folders: Mapping[str, Path], decode_ahead: DecodeAhead
) -> None:
    bench = Bench(folders[architecture], decode_ahead)
    rng = np.random.default_rng(5)
    prompts = [tuple(map(int, rng.integers(6, 340, n))) for n in (3, 40, 300, 17, 70, 5)]
    speakers = ("policy", "rival", "base")
    for turn in range(3):
        requests = [
            Request(
                prompt_ids=prompt,
                max_tokens=4 + 2 * n,
                seed=10 * turn + n,
                end_ids=tuple(range(3, 340, 10)),
                adapter=speakers[n % 3],
            )
            for n, prompt in enumerate(prompts)
        ]
        answers = bench.ask(requests)
        for request, answer in zip(requests, answers, strict=True):
            assert answer.logprobs == pytest.approx(bench.expected(request, answer), abs=3e-5)
        prompts = [
            prompt + answer.token_ids + (7, 8, 9 + turn)
            for prompt, answer in zip(prompts, answers, strict=True)
        ]
    stats = bench.engine.stats()
    assert stats["prefix_tokens_total"] > 0.5 * stats["prompt_tokens_total"]  # turns were known


class Watched:
    """A module tree, and how many tokens went through it at once."""

    def __init__(self, tree: Any) -> None:
        self._tree = tree
        self.sizes: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tree, name)

    def __call__(self, tokens: mx.array, **options: Any) -> mx.array:
        self.sizes.append(tokens.size)
        return self._tree(tokens, **options)


def test_prompts_whose_pieces_are_long_come_in_few_at_a_time(folders: Mapping[str, Path]) -> None:
    """While others decode, a forward pass keeps to its limit whatever a piece's length is."""
    bench = Bench(folders["lfm2"])
    forward = bench.engine._scheduler._forward
    watched = Watched(forward.trunk)
    forward.trunk = cast("Any", watched)
    rng = np.random.default_rng(1)
    prompts = [tuple(map(int, rng.integers(6, 340, n))) for n in range(30, 41)]
    first = Request(prompt_ids=prompts[0], max_tokens=60, adapter="base")
    others = [Request(prompt_ids=prompt, max_tokens=2, adapter="base") for prompt in prompts[1:]]
    bench.engine.submit([(0, first)], lambda _: None)
    bench.engine._tick()
    watched.sizes.clear()
    answers = bench.ask(others)
    assert 40 - 1 <= max(watched.sizes) <= 64
    for request, answer in zip(others, answers, strict=True):
        assert answer.logprobs == pytest.approx(bench.expected(request, answer), abs=3e-5)
