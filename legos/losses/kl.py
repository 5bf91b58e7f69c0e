"""KL divergence from another policy, estimated on the chosen tokens; d = log pi - log other.

    k2      d^2 / 2          gradient d grad log pi: right on the policy's own samples
    k3      r (e^-d - 1 + d) with its ratio r = pi / mu: right on anybody's samples
    exact   sum p log(p / q) over the whole distribution

The gradient matters, not the value: k1 = d has none in the mean, so it is not offered.
The metrics report the value of exact; for the others they report e^-d - 1 + d, which is never < 0.

Sources: Schulman 2020, "Approximating KL divergence"; for the gradients arXiv:2506.09477; k3 with
the importance ratio, DeepSeek-V3.2, arXiv:2512.02556.
"""

from typing import Any, Literal

from legos.losses.ratio import MAX_LOG_RATIO, detach

KlEstimator = Literal["k2", "k3", "exact"]

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


def _k3(xp: Any, d: Any) -> Any:
    """e^-d - 1 + d: never negative; its mean over the policy's own tokens is the divergence."""
    return xp.exp(-d) - 1.0 + d


def _reported(xp: Any, d: Any) -> Any:
    """The value of each token in the metrics, for every estimator but exact."""
    return xp.clip(_k3(xp, xp.clip(d, -MAX_LOG_RATIO, MAX_LOG_RATIO)), None, MAX_K3)
