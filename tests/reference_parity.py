"""Steps whose reference log-probabilities come from servers, against steps that compute them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from backend_steps import Arrays, compute, logprobs_of, saved
from random_samples import random_samples

from legos.losses.objective import Objective
from legos.records.sample import Sample
from legos.records.step import PassResult, Update
from legos.remote.references import ReferenceServers

__all__ = ["check_equal_steps", "mixed_samples", "moved_backend"]

TERMS = [
    Objective(kl_coef=0.3, kl_estimator="k2"),
    Objective(kl_coef=0.3, kl_estimator="k3"),
]
VOCABULARY = 90
FAST = Update(learning_rate=0.03, max_grad_norm=1e9)


def mixed_samples() -> list[Sample]:
    """Samples of several turns from all tokens at temperature 1, and from legal ones at others."""
    rng = np.random.default_rng(3)
    options: dict[str, Any] = {"vocab": VOCABULARY, "max_length": 14}
    free = random_samples(rng, num_samples=30, support="open", temperatures=(1.0,), **options)
    return [*free, *random_samples(rng, num_samples=10, support="restricted", **options)]


def moved_backend(backend: Any) -> Any:
    """A backend whose policy is some steps away from its reference."""
    samples = mixed_samples()
    for _ in range(3):
        compute(backend, samples, Objective())
        backend.optim_step(FAST).result()
    return backend


def check_equal_steps(references: ReferenceServers, backend: Any, folder: Path) -> None:
    """Check reference log-probabilities, and KL terms and gradients with them, to 1e-5.

    Args:
        references: the servers.
        backend: a backend with a first beta of 0, whose first moment is the gradient.
        folder: an empty folder.
    """
    samples = mixed_samples()
    filled = references(samples).result(timeout=120)
    expected = logprobs_of(backend, samples, reference=True)
    policy = logprobs_of(backend, samples)
    found = [np.array(sample.reference_logprobs) for sample in filled]
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=2e-5)
    assert np.abs(np.concatenate(policy) - np.concatenate(expected)).mean() > 0.05
    saved(backend, folder / "start")
    for number, objective in enumerate(TERMS):
        passes: list[PassResult] = []
        gradients: list[Arrays] = []
        for name, each in (("own", samples), ("servers", filled)):
            backend.restore(folder / "start")
            passes.append(compute(backend, each, objective))
            backend.optim_step(FAST).result()
            after = saved(backend, folder / f"{number}-{name}")
            gradients.append({k: v for k, v in after["optimiser"].items() if k.endswith(".m")})
        own, served = passes
        assert served.loss == pytest.approx(own.loss, abs=1e-5)
        assert served.sums == pytest.approx(own.sums, rel=1e-5, abs=1e-4)
        size = np.sqrt(sum(float(np.square(array).sum()) for array in gradients[0].values()))
        for name, array in gradients[0].items():
            np.testing.assert_allclose(gradients[1][name], array, rtol=0, atol=1e-5 * size)
