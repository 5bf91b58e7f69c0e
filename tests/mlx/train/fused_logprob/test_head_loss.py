"""The loss of a pass in chunks of positions is that of all positions at once, whatever it reads."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from numpy.typing import NDArray
from packed import pack
from random_samples import random_samples

from legos.losses.metrics import SUMS
from legos.losses.normalisation import normalisation_weights
from legos.losses.objective import Objective
from legos.mlx.model.forward import CausalModel
from legos.mlx.model.load import load_tree
from legos.mlx.train.fused_logprob.head_loss import OtherLogits, head_loss
from legos.records.batch import Batch

VOCAB = 358
HIDDEN = 32
CHUNK = 3  # positions

PULLED: Any = {"kl_coef": 0.3, "ema_kl_coef": 0.2, "entropy_coef": 0.1}
OBJECTIVES: Mapping[str, Objective] = {
    "token": Objective(loss="ppo", **PULLED),
    "token_exact": Objective(loss="cispo", kl_estimator="exact", **PULLED),
    "token_mask": Objective(icepop=2.0),
    "truncated": Objective(anchor="proximal"),
    "gspo": Objective(loss="gspo", **PULLED),
    "gmpo_exact": Objective(loss="gmpo", kl_estimator="exact", **PULLED),
}


def case() -> tuple[Batch, mx.array, dict[str, OtherLogits]]:
    """A batch, hidden states at its positions, and logits of the other policies there."""
    rng = np.random.default_rng(4)
    samples = random_samples(rng, num_samples=12, vocab=VOCAB, support="open")
    (batch,) = pack(samples, normalisation_weights(samples, "token"), max_tokens=1000)
    behaviour = np.where(batch.mask, rng.normal(-np.log(VOCAB), 1.0, batch.mask.shape), 0.0)
    longest = batch.mask.sum(axis=1).argmax()
    behaviour[longest, 0] = -np.log(VOCAB) - 16.0  # far enough to be an outlier
    batch = replace(batch, behaviour_logprob=behaviour.astype(np.float32))
    num_positions = len(batch.logit_row)
    hidden = mx.array(rng.normal(size=(num_positions, HIDDEN)).astype(np.float32))
    drawn = rng.normal(size=(2, num_positions, VOCAB)).astype(np.float32)
    reference, average = (mx.array(logits) for logits in drawn)
    return batch, hidden, {"reference": lambda at: reference[at], "ema": lambda at: average[at]}


def computed(
    folder: Path, objective: Objective, num_positions: int
) -> tuple[float, NDArray[np.float32], NDArray[np.float32], NDArray[np.float32]]:
    """Loss, sums, the gradient along the hidden states, and [2, N] values of the tokens."""
    forward = CausalModel(load_tree(folder))
    batch, hidden, policies = case()
    used = {"reference": objective.kl_coef, "ema": objective.ema_kl_coef}
    others = {name: policies[name] for name, coefficient in used.items() if coefficient}

    def loss(hidden: mx.array) -> Any:
        return head_loss(forward, hidden, batch, objective, others, num_positions=num_positions)

    (_, value, sums, reported), gradient = mx.value_and_grad(loss)(hidden)
    of_tokens = np.array(reported)[:, batch.mask]
    return float(np.array(value)), np.array(sums), np.array(gradient), of_tokens


@pytest.mark.parametrize("name", OBJECTIVES)
def test_chunks_change_nothing(tiny_models: Mapping[str, Path], name: str) -> None:
    folder, objective = tiny_models["llama"], OBJECTIVES[name]
    value, sums, gradient, (logprobs, entropies) = computed(folder, objective, 1000)
    assert np.abs(gradient).max() > 1e-3
    if objective.icepop:
        counts = dict(zip(SUMS, sums.tolist(), strict=True))
        assert 0 < counts["masked"] < counts["tokens"]
    in_chunks = computed(folder, objective, CHUNK)
    assert in_chunks[0] == pytest.approx(value, rel=1e-5)
    assert in_chunks[1] == pytest.approx(sums, rel=1e-5, abs=1e-5)
    assert in_chunks[3][0] == pytest.approx(logprobs, abs=1e-5)
    assert in_chunks[3][1] == pytest.approx(entropies, abs=1e-5)
    assert entropies.sum() == pytest.approx(sums[SUMS.index("entropy")], rel=1e-5)
    assert np.abs(in_chunks[2] - gradient).max() < 2e-6 * np.abs(gradient).max()
