"""Log-probabilities, entropy and KL divergence from next-token logits.

P logit positions, V vocabulary, K maximum number of legal tokens at a position, S samples, A chosen
tokens. All arrays are float32 and at the sampling temperature, as in the engine.
"""

from typing import Any

from legos.data.batch import Batch

__all__ = [
    "IMPOSSIBLE",
    "Places",
    "chosen_logprobs",
    "entropy",
    "exact_kl",
    "place_logprobs",
    "support_entropy",
]

IMPOSSIBLE = -1e9  # log-probability outside the support; finite, so that gradients are finite


class Places:
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
        known = (batch.place_legal >= 0).any(axis=1)
        self.any_legal, self.all_legal = bool(known.any()), bool(known.all())
        self.any_restricted = bool(batch.place_restricted.any())
        self.temperature = xp.array(batch.place_temperature[:, None])
        self.tempered = bool((batch.place_temperature != 1.0).any())
        self.is_legal = xp.array(batch.place_legal >= 0)
        self.legal = xp.array(batch.place_legal.clip(0))
        self.has_legal = xp.array(known)
        self.restricted = xp.array(batch.place_restricted)


def place_logprobs(xp: Any, logits: Any, places: Places) -> tuple[Any, Any]:
    """Log-probabilities of the distribution from which each position was sampled.

    Args:
        xp: array namespace.
        logits: [P, V] float32 logits at temperature 1.
        places: temperatures and legal tokens.

    Returns:
        [P, V] log-probabilities over the support (the vocabulary, or the legal tokens where
        sampling was restricted to them; values outside the support must not be read), and [P, K]
        log-probabilities of the legal tokens, ``IMPOSSIBLE`` in the padding; None where no legal
        token is known.
    """
    if places.tempered:
        logits = logits / places.temperature
    normaliser = _logsumexp(xp, logits)
    if not places.any_legal:
        return logits - normaliser, None
    legal = xp.where(places.is_legal, xp.take_along_axis(logits, places.legal, axis=1), IMPOSSIBLE)
    if places.any_restricted:
        normaliser = xp.where(places.restricted[:, None], _logsumexp(xp, legal), normaliser)
    return logits - normaliser, xp.where(places.is_legal, legal - normaliser, IMPOSSIBLE)


def chosen_logprobs(place_logprob: Any, sample_place: Any, target: Any) -> Any:
    """[S, A] log-probability of each chosen token from [P, V] ``place_logprob``."""
    return place_logprob[sample_place, target]


def entropy(xp: Any, place_logprob: Any, legal_logprob: Any, places: Places) -> Any:
    """H = -sum p log p at each position, over the legal tokens where they are known.

    Legal probabilities are renormalised, so an entropy bonus never favours illegal tokens.

    Args:
        xp: array namespace.
        place_logprob: [P, V] from ``place_logprobs``.
        legal_logprob: [P, K] from ``place_logprobs``, or None.
        places: legal tokens.

    Returns:
        [P] nats.
    """
    if not places.any_legal:
        return -xp.sum(xp.exp(place_logprob) * place_logprob, axis=1)
    weights = xp.where(places.has_legal[:, None], legal_logprob, 0.0)
    log_p = weights - _logsumexp(xp, weights)
    over_legal = -xp.sum(xp.where(places.is_legal, xp.exp(log_p) * log_p, 0.0), axis=1)
    if places.all_legal:
        return over_legal
    log_q = xp.where(places.has_legal[:, None], 0.0, place_logprob)
    over_all = -xp.sum(xp.exp(log_q) * log_q, axis=1)
    return xp.where(places.has_legal, over_legal, over_all)


def support_entropy(xp: Any, place_logprob: Any, legal_logprob: Any, places: Places) -> Any:
    """H = -sum p log p at each position, over the support of sampling.

    The support is the vocabulary, or the legal tokens where sampling was restricted to them.

    Args:
        xp: array namespace.
        place_logprob: [P, V] from ``place_logprobs``.
        legal_logprob: [P, K] from ``place_logprobs``, or None.
        places: legal tokens and restriction.

    Returns:
        [P] nats.
    """
    policy = place_logprob, legal_logprob
    return -_mean_over_support(xp, policy, policy, places)


def exact_kl(xp: Any, policy: tuple[Any, Any], other: tuple[Any, Any], places: Places) -> Any:
    """KL(policy || other) = sum p (log p - log q) at each position, over the support of sampling.

    Args:
        xp: array namespace.
        policy: result of ``place_logprobs`` for the policy.
        other: result of ``place_logprobs`` for the other policy, without gradient.
        places: legal tokens and restriction.

    Returns:
        [P] nats, >= 0 up to rounding.
    """
    legal_gap = None if policy[1] is None else policy[1] - other[1]
    return _mean_over_support(xp, policy, (policy[0] - other[0], legal_gap), places)


def _mean_over_support(
    xp: Any, policy: tuple[Any, Any], values: tuple[Any, Any], places: Places
) -> Any:
    """[P] mean of values under the policy: over [P, V] values, or [P, K] where it is restricted.

    Values outside the support are replaced by 0 before any product, which keeps gradients finite.
    """
    if not places.any_restricted:
        return xp.sum(xp.exp(policy[0]) * values[0], axis=1)
    closed = places.restricted[:, None]
    log_p, open_values = (xp.where(closed, 0.0, each) for each in (policy[0], values[0]))
    over_all = xp.sum(xp.exp(log_p) * open_values, axis=1)
    log_p, legal_values = (xp.where(places.is_legal, x, 0.0) for x in (policy[1], values[1]))
    over_legal = xp.sum(xp.where(places.is_legal, xp.exp(log_p) * legal_values, 0.0), axis=1)
    return xp.where(places.restricted, over_legal, over_all)


def _logsumexp(xp: Any, x: Any) -> Any:
    """[..., 1] log of the sum of exponentials over the last axis."""
    top = xp.max(x, axis=-1, keepdims=True)
    return top + xp.log(xp.sum(xp.exp(x - top), axis=-1, keepdims=True))
