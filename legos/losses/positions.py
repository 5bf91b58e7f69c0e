"""Log-probabilities, entropy and KL divergence from next-token logits.

P logit positions, V vocabulary, K maximum number of legal tokens at a position, S samples, A chosen
tokens. All arrays are float32 and at the sampling temperature, as in the engine.
"""

from typing import Any

from legos.losses.softmax import logsumexp
from legos.records.batch import Batch

IMPOSSIBLE = -1e9  # log-probability outside the support; finite, so that gradients are finite


class Positions:
    """The fields of a batch's logit positions as arrays of one namespace.

    Attributes:
        temperature: [P, 1] sampling temperature.
        tempered: whether any temperature is not 1.
        legal: [P, K] legal token ids, padded with 0.
        is_legal: [P, K] True where ``legal`` holds a token, False in the padding.
        has_legal: [P] True where the legal tokens are known.
        restricted: [P] True where only legal tokens could be sampled.
        any_legal, all_legal, any_restricted: ``any`` and ``all`` of these as Python booleans.
    """

    def __init__(self, xp: Any, batch: Batch) -> None:
        known = (batch.logit_legal >= 0).any(axis=1)
        self.any_legal, self.all_legal = bool(known.any()), bool(known.all())
        self.any_restricted = bool(batch.logit_restricted.any())
        self.temperature = xp.array(batch.logit_temperature[:, None])
        self.tempered = bool((batch.logit_temperature != 1.0).any())
        self.is_legal = xp.array(batch.logit_legal >= 0)
        self.legal = xp.array(batch.logit_legal.clip(0))
        self.has_legal = xp.array(known)
        self.restricted = xp.array(batch.logit_restricted)


def position_logprobs(xp: Any, logits: Any, positions: Positions) -> tuple[Any, Any]:
    """Log-probabilities of the distribution from which each position was sampled.

    Args:
        xp: array namespace.
        logits: [P, V] float32 logits at temperature 1.
        positions: temperatures and legal tokens.

    Returns:
        [P, V] log-probabilities over the support (the vocabulary, or the legal tokens where
        sampling was restricted to them; values outside the support must not be read), and [P, K]
        log-probabilities of the legal tokens, ``IMPOSSIBLE`` in the padding; None where no legal
        token is known.
    """
    if positions.tempered:
        logits = logits / positions.temperature
    normaliser = logsumexp(xp, logits)
    if not positions.any_legal:
        return logits - normaliser, None
    legal = xp.where(
        positions.is_legal, xp.take_along_axis(logits, positions.legal, axis=1), IMPOSSIBLE
    )
    if positions.any_restricted:
        normaliser = xp.where(positions.restricted[:, None], logsumexp(xp, legal), normaliser)
    return logits - normaliser, xp.where(positions.is_legal, legal - normaliser, IMPOSSIBLE)


def entropy(xp: Any, position_logprob: Any, legal_logprob: Any, positions: Positions) -> Any:
    """H = -sum p log p at each position, over the legal tokens where they are known.

    Legal probabilities are renormalised, so an entropy bonus never favours illegal tokens.

    Args:
        xp: array namespace.
        position_logprob: [P, V] from ``position_logprobs``.
        legal_logprob: [P, K] from ``position_logprobs``, or None.
        positions: legal tokens.

    Returns:
        [P] nats.
    """
    if not positions.any_legal:
        return -xp.sum(xp.exp(position_logprob) * position_logprob, axis=1)
    weights = xp.where(positions.has_legal[:, None], legal_logprob, 0.0)
    log_p = weights - logsumexp(xp, weights)
    over_legal = -xp.sum(xp.where(positions.is_legal, xp.exp(log_p) * log_p, 0.0), axis=1)
    if positions.all_legal:
        return over_legal
    log_q = xp.where(positions.has_legal[:, None], 0.0, position_logprob)
    over_all = -xp.sum(xp.exp(log_q) * log_q, axis=1)
    return xp.where(positions.has_legal, over_legal, over_all)


def exact_kl(xp: Any, policy: tuple[Any, Any], other: tuple[Any, Any], positions: Positions) -> Any:
    """KL(policy || other) = sum p (log p - log q) at each position, over the support of sampling.

    Args:
        xp: array namespace.
        policy: result of ``position_logprobs`` for the policy.
        other: result of ``position_logprobs`` for the other policy, without gradient.
        positions: legal tokens and restriction.

    Returns:
        [P] nats, >= 0 up to rounding. Values outside the support are replaced by 0 before any
        product, which keeps gradients finite.
    """
    gap = policy[0] - other[0]
    if not positions.any_restricted:
        return xp.sum(xp.exp(policy[0]) * gap, axis=1)
    log_p, gap = (xp.where(positions.restricted[:, None], 0.0, each) for each in (policy[0], gap))
    over_all = xp.sum(xp.exp(log_p) * gap, axis=1)
    legal = positions.is_legal
    log_p, gap = (xp.where(legal, each, 0.0) for each in (policy[1], policy[1] - other[1]))
    over_legal = xp.sum(xp.where(legal, xp.exp(log_p) * gap, 0.0), axis=1)
    return xp.where(positions.restricted, over_legal, over_all)
