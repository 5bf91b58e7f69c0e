"""The weight of each sample in the loss of an optimiser step."""

from collections.abc import Sequence
from typing import Literal

from legos.records.sample import Sample

LossNormalisation = Literal["token", "sample", "constant", "prompt"]
CONSTANT_LENGTH = 256  # tokens; Adam does not depend on the scale of the loss


def normalisation_weights(samples: Sequence[Sample], mode: LossNormalisation) -> list[float]:
    """The weight of each token of a sample in the loss of the whole optimiser step.

    The loss is the sum over samples and tokens of weight * loss, so any split into micro-batches
    gives the same gradient. Tokens are counted before the objective masks any.

        token     1 / N                          N tokens in the step (DAPO, arXiv:2503.14476)
        sample    1 / (S |y_i|)                  S rollouts, |y_i| tokens of the rollout (GRPO)
        constant  1 / (S L)                      L = 256 (Dr. GRPO, arXiv:2503.20783)
        prompt    1 / (G sum of |y| in group)    G groups (ScaleRL, arXiv:2510.13786)

    Args:
        samples: all samples of one optimiser step.
        mode: the normalisation rule.

    Returns:
        [S] one weight per sample, for each of its chosen tokens. Samples of the same rollout count
        as one rollout.
    """
    if not samples:
        return []
    if mode == "token":
        total = sum(len(sample.positions) for sample in samples)
        return [1.0 / total] * len(samples)
    keys: list[str | int] = [  # a sample without a name counts as its own rollout
        sample.group if mode == "prompt" else sample.rollout or index
        for index, sample in enumerate(samples)
    ]
    if mode == "constant":
        return [1.0 / (len(set(keys)) * CONSTANT_LENGTH)] * len(samples)
    tokens: dict[str | int, int] = {}
    for key, sample in zip(keys, samples, strict=True):
        tokens[key] = tokens.get(key, 0) + len(sample.positions)
    return [1.0 / (len(tokens) * tokens[key]) for key in keys]
