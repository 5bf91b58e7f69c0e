"""Steps of any backend, and the arrays of the checkpoint that it writes."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file

from legos.errors import Stopped, TrainerError
from legos.losses.metrics import skip_reason, step_metrics
from legos.losses.normalisation import normalisation_weights
from legos.losses.objective import Objective
from legos.protocols import Backend
from legos.records.count import Count
from legos.records.names import POLICY
from legos.records.sample import Sample
from legos.records.step import PassResult, Stop, Update, never

__all__ = ["Arrays", "Stepped", "check_stops", "compute", "logprobs_of", "optimiser_step", "saved"]

Arrays = Mapping[str, NDArray[np.float32]]


def compute(
    backend: Any, samples: Sequence[Sample], objective: Objective, *, stop: Stop = never
) -> PassResult:
    """The forward and backward pass over samples."""
    weights = normalisation_weights(samples, "sample")
    return backend.forward_backward(samples, weights, objective, stop=stop).result()


def logprobs_of(
    backend: Any, samples: Sequence[Sample], *, policy: str = POLICY, reference: bool = False
) -> Sequence[NDArray[np.float32]]:
    """[S][A] log-probabilities of chosen tokens under a policy or its reference; drops gradients.

    The reference takes the policy's place for one forward pass.
    """
    backend.adapter(policy)
    own, weights = backend._policies[policy], [1.0] * len(samples)
    before = own.arrays
    if reference:
        lora = own.reference
        at = lora.scale / backend._shape.scale if lora is not None else 0.0
        arrays = before if lora is None else lora.arrays
        own.arrays = {  # made of NumPy's arrays, because lazy ones belong to their thread
            name: backend._device.array(
                np.asarray(array) * (at if name.endswith("lora_b") else 1.0)
            )
            for name, array in arrays.items()
        }
        for array in own.arrays.values():
            array.tolist()  # MLX computes it here: the backend's thread lacks this one's stream
    try:
        reinforce = Objective(loss="reinforce")
        step = backend.forward_backward(samples, weights, reinforce, policy=policy)
        return step.result().logprobs
    finally:
        own.arrays = before
        backend._device.install(before)


def check_stops(backend: Any, samples: Sequence[Sample], objective: Objective) -> int:
    """Stop a step before each of its passes in turn; nothing changes, and the step can be made.

    The backend counts the passes that have ended.

    Returns:
        How often the step asks whether to stop.
    """
    asked, seen = 0, list[Count]()

    def stop(after: int) -> bool:
        nonlocal asked
        asked += 1
        seen.append(replace(backend.passes))
        return asked > after

    compute(backend, samples, objective)  # plans the memory of steps
    expected = compute(backend, samples, objective, stop=lambda: stop(1 << 30))
    most, planned = asked, seen[0].planned
    assert {each.ended for each in seen} >= {*range(planned)}
    assert all(each.planned == planned for each in seen)
    assert backend.passes.text == ""
    for number in range(most):
        asked = 0
        with pytest.raises(Stopped):
            compute(backend, samples, objective, stop=lambda number=number: stop(number))
        assert asked == number + 1
        with pytest.raises(TrainerError, match="no gradients"):
            backend.optim_step(Update(learning_rate=1e-2)).result()
    found = compute(backend, samples, objective)
    assert (found.loss, found.sums, found.grad_norm) == (
        expected.loss,
        expected.sums,
        expected.grad_norm,
    )
    return most


def saved(backend: Any, folder: Path) -> dict[str, Arrays]:
    """File of a checkpoint -> its arrays."""
    folder.mkdir(parents=True)
    backend.snapshot().result()(folder)
    return {file.stem: load_file(file) for file in folder.glob("*.safetensors")}


class Stepped(NamedTuple):
    """The result of one optimiser step of a backend."""

    metrics: Mapping[str, float]
    reason: str | None  # why the step was skipped; None: it was applied


def optimiser_step(
    backend: Backend,
    samples: Sequence[Sample],
    objective: Objective | None = None,
    *,
    weights: Sequence[float] | None = None,
    update: Update | None = None,
    clip_skip_threshold: float = 1.0,
) -> Stepped:
    """Make one optimiser step with a backend, as a trainer does.

    Args:
        backend: the backend.
        samples: samples of the step.
        objective: the objective to minimise; None: the default one.
        weights: loss weights of the samples; None: every token has the same weight.
        update: settings of the update; None: a learning rate of 0.01.
        clip_skip_threshold: maximum fraction of clipped tokens; above it, the step is skipped.
    """
    weights = normalisation_weights(samples, "token") if weights is None else weights
    found = backend.forward_backward(samples, weights, objective or Objective()).result()
    metrics = step_metrics(found.loss, found.sums, found.grad_norm)
    reason = skip_reason(metrics, clip_skip_threshold=clip_skip_threshold)
    if reason is None:
        backend.optim_step(update or Update(learning_rate=1e-2)).result()
    return Stepped(metrics, reason)
