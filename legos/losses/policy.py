"""The policy losses of the chosen tokens, in one table: a loss is a function, a name and a line.

``xp`` is ``numpy``, ``mlx.core`` or a module with the same functions; arrays are float32 (float64
in the finite-difference tests). S samples, A chosen tokens of the longest sample.

With x_t = pi_theta / anchor, the ratio of a token, and A_t, its advantage, a loss returns the loss
[S, A] of each token, and [S, A] True where it clipped the token. A sample is one sequence in every
batch, so no loss depends on how an optimiser step was split. A loss of a group gets all samples of
a step that have one group and one role, however the step is split (``legos.device.groups``).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from legos.losses.ratio import log_ratio, sequence_log_ratio

PolicyLoss = Literal[
    "reinforce", "ppo", "gspo", "cispo", "dppo_tv", "dppo_kl", "gmpo", "sapo", "online_dpo"
]

DUAL_CLIP = 3.0  # ppo, gspo: bound on the ratio where the advantage is negative
MAX_DPPO_RATIO = 20.0
SAPO_TAUS = (1.0, 1.05)  # temperatures of sapo's gates: positive advantages, others
DPO_BETA = 0.1  # factor of the log-ratios, as in the paper
SURE = 1e-7  # minimum distance of probabilities from 0 and 1 before the logarithm


@dataclass(frozen=True, slots=True)
class ChosenTokens:
    """What a loss reads of the chosen tokens of a batch; all arrays are [S, A]."""

    xp: Any
    clip_range: tuple[float, float]  # down and up, in the unit of the loss
    logprob: Any  # nats under the policy being trained
    frozen: Any  # ``logprob`` without gradient
    anchor: Any  # nats under the anchor policy
    advantage: Any
    mask: Any  # 1.0 where a token was chosen

    @property
    def log_x(self) -> Any:
        """Log-ratios, with their gradient."""
        return log_ratio(self.xp, self.logprob, self.anchor)

    @property
    def frozen_log_x(self) -> Any:
        """Log-ratios without gradient."""
        return log_ratio(self.xp, self.frozen, self.anchor)


class LossSpec(NamedTuple):
    """A policy loss, and how it is used."""

    loss: Callable[[ChosenTokens], tuple[Any, Any]]  # [S, A] loss, [S, A] True where clipped
    scope: Literal["token", "sample", "group"]  # what a token's loss depends on
    clip_range: tuple[float, float] | None = None  # default, down and up; None: it has none
    noisy: bool = False  # whether rounding of a 16-bit base moves its ratios out of the range
    max_clipped: float | None = None  # share of clipped tokens above which a step is skipped; None:
    # training.clip_skip_threshold


def _reinforce(t: ChosenTokens) -> tuple[Any, Any]:
    """L = -A log pi: the plain policy gradient, which treats all samples as on-policy.

    Source: Williams 1992, doi:10.1007/BF00992696.
    """
    return -t.advantage * t.logprob, t.xp.zeros_like(t.advantage) > 0


def linear(t: ChosenTokens) -> tuple[Any, Any]:
    """REINFORCE with the value 0: A is minus the slope of a loss that is computed elsewhere."""
    return t.advantage * (t.frozen - t.logprob), t.xp.zeros_like(t.advantage) > 0


def _ppo(t: ChosenTokens) -> tuple[Any, Any]:
    """L = -min(x A, clip(x, 1 - low, 1 + high) A), bounded by -c A where A < 0 (dual clip).

    Source: PPO, arXiv:1707.06347; asymmetric range, DAPO, arXiv:2503.14476; dual clip with c = 3,
    arXiv:1912.09729.
    """
    return _clipped_surrogate(t, t.log_x)


def _gspo(t: ChosenTokens) -> tuple[Any, Any]:
    """PPO's loss of s = exp(mean_t log x_t), the ratio of the whole sample.

    All tokens of a sample whose advantages have one sign are clipped together; with one token it
    is PPO. The token-level form, s_t = sg(s) pi_theta / sg(pi_theta), has the values, clipping and
    gradient of the sample-level form where all tokens of a sample have one advantage; it is also
    correct where they differ (credit by turn, penalties in the reward).

    Source: GSPO, arXiv:2507.18071, equations 5 to 7, and 13 and 14 (GSPO-token).
    """
    frozen = t.frozen_log_x
    return _clipped_surrogate(t, sequence_log_ratio(t.xp, frozen, t.mask) + (t.log_x - frozen))


def _clipped_surrogate(t: ChosenTokens, log_x: Any) -> tuple[Any, Any]:
    """PPO's loss for the log-ratios [S, A] of tokens or of samples."""
    xp, advantage, (low, high) = t.xp, t.advantage, t.clip_range
    ratio, upper, lower = xp.exp(log_x), 1.0 + high, 1.0 - low
    loss = -xp.minimum(ratio * advantage, xp.clip(ratio, lower, upper) * advantage)
    cut = ((advantage > 0) & (ratio > upper)) | ((advantage < 0) & (ratio < lower))
    bound = -DUAL_CLIP * advantage
    cut = cut | ((advantage < 0) & (loss > bound))
    return xp.where(advantage < 0, xp.minimum(loss, bound), loss), cut


def _cispo(t: ChosenTokens) -> tuple[Any, Any]:
    """L = -sg(clip(x, 1 - low, 1 + high)) A log pi: the weight is capped, no token is dropped.

    With low >= 1 and high infinite it is REINFORCE with the importance weight x.

    Source: MiniMax-M1, arXiv:2506.13585, equation 4; no lower bound and a cap of 5 as in ScaleRL,
    arXiv:2510.13786.
    """
    low, high = t.clip_range
    ratio = t.xp.exp(t.frozen_log_x)
    weight = t.xp.clip(ratio, 1.0 - low, 1.0 + high)
    return -weight * t.advantage * t.logprob, weight != ratio


def _dppo_tv(t: ChosenTokens) -> tuple[Any, Any]:
    """L = -keep x A, where a token is kept if its probability has not moved too far.

    With p = pi_theta and q = anchor, a token is dropped where its advantage pushes it further
    away and the total variation is out of range: p - q > high (A > 0), or q - p > low (A < 0). So
    a rare token is never dropped only for its large ratio. x is capped at 20 in the gradient.

    Source: DPPO, arXiv:2602.04879.
    """
    low, high = t.clip_range
    p, q = (t.xp.exp(t.xp.clip(each, None, 0.0)) for each in (t.frozen, t.anchor))
    return _kept_surrogate(t, p - q > high, q - p > low)


def _dppo_kl(t: ChosenTokens) -> tuple[Any, Any]:
    """DPPO with the Bernoulli KL divergence D(q || p) in place of the total variation.

    A token is dropped where D(q || p) > high (A > 0, p > q), or > low (A < 0, p < q).
    """
    xp, (low, high) = t.xp, t.clip_range
    p, q = (xp.clip(xp.exp(each), SURE, 1.0 - SURE) for each in (t.frozen, t.anchor))
    moved = q * xp.log(q / p) + (1.0 - q) * xp.log((1.0 - q) / (1.0 - p))
    return _kept_surrogate(t, (p > q) & (moved > high), (p < q) & (moved > low))


def _kept_surrogate(t: ChosenTokens, up: Any, down: Any) -> tuple[Any, Any]:
    """DPPO's loss; ``up`` and ``down`` are [S, A] True where a probability has moved too far."""
    xp, advantage = t.xp, t.advantage
    cut = ((advantage > 0) & up) | ((advantage < 0) & down)
    ratio = xp.clip(xp.exp(t.frozen_log_x), None, MAX_DPPO_RATIO)
    surrogate = ratio * xp.exp(log_ratio(xp, t.logprob, t.frozen)) * advantage
    return -xp.where(cut, 0.0, surrogate), cut


def _gmpo(t: ChosenTokens) -> tuple[Any, Any]:
    """L_t = -A_t exp(mean_t l_t): the geometric mean of the clipped ratios of the tokens.

        l_t = min(log x_t, high) where A > 0, max(log x_t, -low) where A < 0

    (clipped on both sides where A = 0). A clipped token gets no gradient. The range is in log
    space. With one token, GMPO is PPO without dual clip and with the range [exp(-low), exp(high)].
    It has the token-level form of GSPO.

    Source: GMPO, arXiv:2507.20673, equation 4.
    """
    xp, advantage, (low, high) = t.xp, t.advantage, t.clip_range
    frozen = t.frozen_log_x
    inside = xp.where(advantage >= 0, xp.clip(frozen, None, high), frozen)
    inside = xp.where(advantage <= 0, xp.clip(inside, -low, None), inside)
    cut = inside != frozen
    moved = xp.where(cut, 0.0, t.log_x - frozen)
    loss = -advantage * xp.exp(sequence_log_ratio(xp, inside, t.mask) + moved)
    return loss, cut & (advantage != 0)


def _sapo(t: ChosenTokens) -> tuple[Any, Any]:
    """L = -(4 / tau) sigmoid(tau (x - 1)) A: a soft gate instead of a clip.

    tau differs between positive and other advantages. The gate's derivative is 1 at x = 1. As tau
    goes to 0, the loss becomes -x A (plus a constant), the unclipped surrogate. A token counts as
    clipped where the derivative is below one half.

    Source: SAPO, arXiv:2511.20347.
    """
    tau = t.xp.where(t.advantage > 0, *SAPO_TAUS)
    gate = 1.0 / (1.0 + t.xp.exp(-tau * (t.xp.exp(t.log_x) - 1.0)))
    derivative = 4.0 * gate * (1.0 - gate)
    return -(4.0 / tau) * gate * t.advantage, (derivative < 0.5) & (t.advantage != 0)


def _online_dpo(t: ChosenTokens) -> tuple[Any, Any]:
    """L = mean over partners of -log sigmoid(beta (s_w - s_l)), where s = sum_t log x_t.

    The partners of a sample are those of its group and role that were rewarded more or less, by
    the advantage of the first token; s_w is that of the better one of the two. With beta = 0.1.
    On policy, with as many better samples as worse ones, the gradient is that of REINFORCE with the
    advantages +-beta, times the number of tokens of the sample.

    Source: online DPO, arXiv:2402.04792, with the anchor as the reference, as arXiv:2404.03715.
    """
    xp, first, s = t.xp, t.advantage[:, 0], t.xp.sum(t.log_x * t.mask, axis=1)
    ahead = first[:, None] - first
    margin = xp.where(ahead > 0, DPO_BETA, -DPO_BETA) * (s[:, None] - s)
    pairs = xp.where(ahead == 0, 0.0, xp.logaddexp(xp.zeros_like(margin), -margin))
    partners = xp.clip(xp.sum(ahead != 0, axis=1, keepdims=True), 1, None)
    loss = xp.sum(pairs, axis=1, keepdims=True) / partners
    return loss + xp.zeros_like(t.mask), t.mask < 0


# Clip ranges: of the ratio around 1 (PPO, GSPO, CISPO), of its logarithm (GMPO), of the probability
# (DPPO-TV), in nats (DPPO-KL). Sources of the functions are in their docstrings.
LOSSES: Mapping[PolicyLoss, LossSpec] = {
    "reinforce": LossSpec(_reinforce, "token", noisy=True, max_clipped=1.0),
    "ppo": LossSpec(_ppo, "token", (0.2, 0.2), noisy=True),
    # Section 5.1 of the paper; it clips whole samples, and so a larger share of the tokens.
    "gspo": LossSpec(_gspo, "sample", (3e-4, 4e-4), noisy=True, max_clipped=0.9),
    "cispo": LossSpec(_cispo, "token", (1.0, 4.0)),  # no lower bound and a cap of 5
    "dppo_tv": LossSpec(_dppo_tv, "token", (0.2, 0.2)),
    "dppo_kl": LossSpec(_dppo_kl, "token", (0.05, 0.05)),
    "gmpo": LossSpec(_gmpo, "sample", (0.4, 0.4), noisy=True),
    "sapo": LossSpec(_sapo, "token"),
    "online_dpo": LossSpec(_online_dpo, "group", max_clipped=1.0),
}
"""Name in ``training.loss`` -> the loss."""
