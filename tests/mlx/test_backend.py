"""Whole optimiser steps: what is trained gets likelier, also on quantised weights and by layers."""

from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from legos.data.batch import normalisation_weights, pack
from legos.losses.objective import Objective
from legos.mlx.model.load import load_tree
from legos.mlx.model.lora import add_lora, lora_shape
from legos.mlx.model.worker import InlineWorker
from legos.mlx.train.backend import MlxBackend
from legos.testing import make_sample, write_tiny_model

TOKENS = (5, 6, 7, 8, 9, 10, 11)
PROMPT = 3


def make_backend(folder: Path, **options: Any) -> tuple[Any, MlxBackend]:
    tree: Any = load_tree(folder)
    shape = lora_shape(tree, rank=4, alpha=8.0, num_layers=2, head=False)
    add_lora(tree, shape, seed=0)
    return tree, MlxBackend(InlineWorker(), tree, shape, **options)


def logprob(tree: Any) -> float:
    """Mean log-probability of the completion."""
    logits = np.array(tree(mx.array([TOKENS[:-1]]))[0].astype(mx.float32))[PROMPT - 1 :]
    targets = TOKENS[PROMPT:]
    normaliser = np.log(np.exp(logits).sum(axis=1))
    return float(np.mean(logits[np.arange(len(targets)), targets] - normaliser))


def step(tree: Any, backend: MlxBackend, **objective: Any) -> Any:
    sample = make_sample(
        TOKENS, positions=range(PROMPT, len(TOKENS)), logprobs=logprob(tree), advantages=1.0
    )
    batches = pack([sample], normalisation_weights([sample], "token"), max_tokens=100)
    chosen = Objective(loss="reinforce", clip_skip_threshold=1.0, **objective)
    return backend.step(batches, chosen, learning_rate=1e-2).result()


@pytest.mark.parametrize("bits", [None, 4])
@pytest.mark.parametrize("gradient_checkpointing", [False, True])
def test_what_is_rewarded_gets_likelier(
    tmp_path: Path, bits: int | None, gradient_checkpointing: bool
) -> None:
    folder = write_tiny_model(tmp_path / "model", bits=bits)
    tree, backend = make_backend(folder, gradient_checkpointing=gradient_checkpointing)
    before = [logprob(tree)]
    for number in range(6):
        result = step(tree, backend)
        assert result.applied
        assert result.metrics["grad_norm"] > 0
        assert backend.version == number + 1
        before.append(logprob(tree))
    assert before == sorted(before)
    assert before[-1] > before[0] + 0.5
