"""Divergence from another policy, estimated on the chosen tokens; d = log pi - log other.

Where each estimator is right (the gradient is what counts, not the estimated number):

    estimator     value             in the loss                        in the reward
    k1            d                 no: its expected gradient is 0     yes
    k1_onesided   max(d, 0)         no                                 yes, where rarer is no gain
    k2            d^2 / 2           yes: gradient d grad log pi        no: biased
    k3            r (e^-d - 1 + d)  yes, with its ratio r = pi / mu    no: biased
    exact         sum p log(p / q)  yes                                no: the same for every action

What is reported is the value of exact, and of the others e^-d - 1 + d, which is never negative.

Sources: Schulman 2020, "Approximating KL divergence"; for the gradients arXiv:2506.09477; k3 with
the importance ratio, DeepSeek-V3.2, arXiv:2512.02556.
"""

from typing import Any, Literal

from legos.losses.ratio import MAX_LOG_RATIO, detach

__all__ = ["KL_PLACES", "KlEstimator", "KlPlace", "loss_kl", "reward_kl"]

KlEstimator = Literal["k1", "k1_onesided", "k2", "k3", "exact"]
KlPlace = Literal["loss", "reward"]

KL_PLACES: dict[KlEstimator, KlPlace] = {
    "k1": "reward",
    "k1_onesided": "reward",
    "k2": "loss",
    "k3": "loss",
    "exact": "loss",
}
MAX_K3 = 10.0  # nats of one token, in what is reported


def loss_kl(
    xp: Any, estimator: KlEstimator, logprob: Any, other: Any, log_ratio: Any
) -> tuple[Any, Any]:
    """The term of each token in the loss, and the number that is reported for it.

    The gradient of k3 is r d grad log pi: the divergence's own, whoever sampled the token. It is
    taken as that and not through the exponential, whose digits are lost where the reference is much
    likelier; nor is the term capped as the number is, for what the ratio alone leaves beyond a cap
    pushes away from the reference.

    Args:
        xp: array namespace.
        estimator: "k2" or "k3".
        logprob: [S, A] nats under the policy being trained.
        other: [S, A] nats under the other policy, which gets no gradient.
        log_ratio: [S, A] log r = log pi - log mu of the token, with its gradient.

    Returns:
        [S, A] terms and [S, A] nats.
    """
    d = logprob - other
    if estimator == "k2":
        return 0.5 * d * d, _reported(xp, d)
    d = xp.clip(d, -MAX_LOG_RATIO, MAX_LOG_RATIO)
    k3 = _k3(xp, d)
    ratio = xp.exp(log_ratio)
    slope = ratio * detach(xp, d)
    return slope + detach(xp, ratio * k3 - slope), _reported(xp, d)


def reward_kl(xp: Any, estimator: KlEstimator, frozen: Any, other: Any) -> tuple[Any, Any]:
    """What is taken off each token's advantage, and the number that is reported for it.

    Args:
        xp: array namespace.
        estimator: "k1" or "k1_onesided".
        frozen: [S, A] nats under the policy being trained, without gradient.
        other: [S, A] nats under the other policy.

    Returns:
        [S, A] penalties and [S, A] nats.
    """
    d = frozen - other
    return (xp.maximum(d, 0.0) if estimator == "k1_onesided" else d), _reported(xp, d)


def _k3(xp: Any, d: Any) -> Any:
    """e^-d - 1 + d: never negative, and in the mean over the policy's tokens its divergence."""
    return xp.exp(-d) - 1.0 + d


def _reported(xp: Any, d: Any) -> Any:
    """The number of each token in the metrics, whichever estimator is trained on."""
    return xp.minimum(_k3(xp, xp.clip(d, -MAX_LOG_RATIO, MAX_LOG_RATIO)), MAX_K3)
