"""Losses of whole groups, in steps that passes compute in any split.

The log-probabilities of a step come first, without gradient. The loss of each group and its slopes
d loss / d logprob are computed from them. By the chain rule, the gradient of the step is then the
sum over tokens of slope * d logprob, so passes may have the samples of a group in any order.

S samples of a group, A chosen tokens of the longest.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np

from legos.device.gradients import DeviceGradients, StepResult
from legos.losses.metrics import SUMS
from legos.losses.objective import Objective
from legos.losses.total import BatchArrays, policy_loss
from legos.records.batch import make_batch
from legos.records.packing import StepSamples, per_sample


def of_groups(
    device: DeviceGradients,
    passes: Callable[[StepSamples], StepResult],
    step: StepSamples,
    objective: Objective,
) -> StepResult:
    """Compute a step whose loss has the scope "group".

    A sample that does not fit into memory is left out of its group.

    Args:
        device: differentiates the loss of a group.
        passes: computes the passes of a step.
        step: the samples; those of one group and role may be anywhere in it.
        objective: the objective to minimise.
    """
    scored = passes(replace(step, backward=False))
    if scored.row_limit is not None:
        step = step.no_longer_than(scored.row_limit)
    logprobs = per_sample(scored.logprobs, [len(sample.positions) for sample in step.samples])
    groups: dict[tuple[str, str], list[int]] = {}
    for index, sample in enumerate(step.samples):
        groups.setdefault(sample.compared, []).append(index)
    xp, samples, totals = device.xp, list(step.samples), np.zeros(2)
    for members in groups.values():
        own, weights = [step.samples[i] for i in members], [step.weights[i] for i in members]
        unread = [[(0, 0)] * len(sample.positions) for sample in own]
        batch = make_batch(np.zeros((1, 1), np.int32), own, weights, unread)
        arrays = BatchArrays(xp, batch)

        def loss(logprob: Any, arrays: BatchArrays = arrays) -> tuple[Any, Any]:
            per_token, cut = policy_loss(xp, logprob, objective, arrays, of_group=True)
            return xp.sum(per_token * arrays.weight), xp.sum(cut)

        at = np.zeros(batch.mask.shape, np.float32)
        at[batch.mask] = np.concatenate([logprobs[i] for i in members])
        found, slope = xp.value_and_grad(loss)(device.array(at))
        totals += [value.item() for value in found]
        advantages = np.nan_to_num(-np.array(slope.tolist()), posinf=0.0, neginf=0.0)
        for index, row, mask, weight in zip(members, advantages, batch.mask, weights, strict=True):
            given = tuple((row[mask] / weight).tolist())
            samples[index] = msgspec.structs.replace(samples[index], advantages=given)
    result = passes(replace(step, samples=samples))
    result.sums[SUMS.index("clipped")] += totals[1]
    limits = [limit for limit in (scored.row_limit, result.row_limit) if limit is not None]
    return replace(result, loss=result.loss + totals[0], row_limit=min(limits, default=None))
