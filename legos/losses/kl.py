"""KL divergence from another policy, estimated on the chosen tokens; d = log pi - log other.

Where each estimator is correct (its gradient matters, not its value):

    estimator     value             in the loss                        in the reward
    k1            d                 no: its expected gradient is 0     yes
    k1_onesided   max(d, 0)         no                                 yes: rewards no rarer token
    k2            d^2 / 2           yes: gradient d grad log pi        no: biased
    k3            r (e^-d - 1 + d)  yes, with its ratio r = pi / mu    no: biased
    exact         sum p log(p / q)  yes                                no: the same for every action

The metrics report the value of exact; for the others they report e^-d - 1 + d, which is never < 0.

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
MAX_K3 = 10.0  # upper bound of one token's value in the metrics, nats


def loss_kl(
    xp: Any, estimator: KlEstimator, logprob: Any, other: Any, log_ratio: Any
) -> tuple[Any, Any]:
    """The KL term of each token in the loss, and its value for the metrics.

    The gradient of k3 is r d grad log pi, which is the gradient of the divergence for tokens of any
    sampling policy. It is computed in this form and not through the exponential, which loses digits
    where the reference is much likelier. The term is not capped like the metric: beyond a cap, the
    gradient of the ratio alone would push the policy away from the reference.

    Args:
        xp: array namespace.
        estimator: "k2" or "k3".
        logprob: [S, A] log-probabilities (nats) under the policy being trained.
        other: [S, A] log-probabilities (nats) under the other policy, without gradient.
        log_ratio: [S, A] log r = log pi - log mu of the token, with its gradient.

    Returns:
        [S, A] terms, and [S, A] values for the metrics, nats.
    """
    d = logprob - other
    if estimator == "k2":
        return 0.5 * d * d, _reported(xp, d)
    d = xp.clip(d, -MAX_LOG_RATIO, MAX_LOG_RATIO)
    k3 = _k3(xp, d)
    ratio = xp.exp(log_ratio)
    term = ratio * detach(xp, d)  # has the gradient; the detached part corrects its value to k3
    return term + detach(xp, ratio * k3 - term), _reported(xp, d)


def reward_kl(xp: Any, estimator: KlEstimator, frozen: Any, other: Any) -> tuple[Any, Any]:
    """The KL penalty that is subtracted from each token's advantage, and its value for the metrics.

    Args:
        xp: array namespace.
        estimator: "k1" or "k1_onesided".
        frozen: [S, A] log-probabilities (nats) under the policy being trained, without gradient.
        other: [S, A] log-probabilities (nats) under the other policy.

    Returns:
        [S, A] penalties, and [S, A] values for the metrics, nats.
    """
    d = frozen - other
    return (xp.maximum(d, 0.0) if estimator == "k1_onesided" else d), _reported(xp, d)


def _k3(xp: Any, d: Any) -> Any:
    """e^-d - 1 + d: never negative; its mean over the policy's own tokens is the divergence."""
    return xp.exp(-d) - 1.0 + d


def _reported(xp: Any, d: Any) -> Any:
    """The value of each token in the metrics, for every estimator but exact."""
    return xp.minimum(_k3(xp, xp.clip(d, -MAX_LOG_RATIO, MAX_LOG_RATIO)), MAX_K3)
