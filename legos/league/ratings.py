"""Ratings of members with intervals, and what one number per member does not tell: cycles.

Letters: M members. ``docs/reference/ratings.md`` has the formulas and their measured coverage.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from statistics import NormalDist
from typing import Any

import numpy as np

from legos.errors import ArenaError
from legos.games.graph import FloatArray
from legos.league.payoffs import PayoffTable
from legos.league.pool import Pool, Snapshot

ELO = 400 / math.log(10)
"""Elo points of one unit of log odds."""

EXACT_PLAYS = 1000.0
"""Plays that an exact probability weighs as, beside the virtual plays."""

TINY = 1e-12
SURE = 1.96  # standard errors between a score and an end of its interval


@dataclass(frozen=True, slots=True, kw_only=True)
class Rating:
    """Strength of a member; a difference of 400 means odds of 10 to 1 in the expected score."""

    member: str
    elo: float
    low: float  # interval of the difference from the anchor; elo itself in an exact table
    high: float
    plays: float  # against other members


def ratings(
    table: PayoffTable,
    members: Sequence[str] | None = None,
    *,
    anchor: str = "random",
    level: float = 0.95,
    unit: float | None = None,
) -> list[Rating]:
    """Rate members by the Bradley-Terry model: log odds of the score = theta_i - theta_j.

    A draw is half a win, so a difference predicts the score at any rate of draws. M - 1 virtual
    plays, half won and half lost, keep the rating of who won everything finite. Intervals come from
    the sandwich variance, which assumes no rate of draws either; those of an exact table have no
    width.

    Where wins differ in size, as in poker, who wins most plays may lose most: with ``unit``, the
    score of a play is 1/2 + gain / (2 unit), the gain being half the difference of the rewards.

    Args:
        table: the plays.
        members: whom to rate; by default all members of the table.
        anchor: the member whose rating is 0; if it is not among them, their mean is 0.
        level: probability that an interval contains the true difference from the anchor.
        unit: the largest gain, which counts as a whole win; by default all wins count the same.

    Returns:
        Ratings, the strongest first.

    Raises:
        ArenaError: plays do not connect the members, or gains exceed the unit.

    Source: Bradley and Terry, Rank analysis of incomplete block designs, 1952; White, Maximum
    likelihood estimation of misspecified models, 1982.
    """
    names = list(table.members if members is None else members)
    plays, tasks, points, squares = _results(table, names, unit)
    weight = EXACT_PLAYS if table.exact else 1.0
    theta, covariance = _fit(names, weight * tasks, weight * points, weight * squares)
    origin = np.full(len(names), 1 / len(names))
    if anchor in names:
        origin = np.eye(len(names))[names.index(anchor)]
    contrast = np.eye(len(names)) - origin
    elo = ELO * (theta - origin @ theta)
    variance = np.einsum("ij,jk,ik->i", contrast, covariance, contrast)
    half = ELO * NormalDist().inv_cdf((1 + level) / 2) * np.sqrt(np.maximum(variance, 0.0))
    if table.exact:
        half = np.zeros_like(half)
    columns = (elo, elo - half, elo + half, plays.sum(axis=1))
    rows = zip(names, *(column.tolist() for column in columns), strict=True)
    found = [Rating(member=m, elo=e, low=a, high=b, plays=n) for m, e, a, b, n in rows]
    return sorted(found, key=lambda rating: -rating.elo)


def pool_ratings(
    table: PayoffTable,
    pool: Pool,
    policy: str | None = None,
    *,
    unit: float | None = None,
    also: Sequence[str] = (),
) -> list[Rating]:
    """Rate the snapshots of a league, and whom plays connect with the newest that has met anybody.

    The member ``random`` has 0; where it is not among them, the oldest snapshot, which stays in the
    pool. So ratings of different steps of a run can be compared.

    Args:
        table: the plays.
        pool: the snapshots.
        policy: whose newest snapshot counts; None: that of the last policy.
        unit: as for ``ratings``.
        also: snapshots that have left the pool and are rated nevertheless.

    Returns:
        Ratings, the strongest first; none: nobody has met.
    """
    among = [*dict.fromkeys([*pool.present(table.members), *also])]
    snapshots = pool.members if policy is None else pool.of(policy)
    newest = next((each.name for each in reversed(snapshots) if each.name in among), None)
    met = [] if newest is None else table.connected(newest, among)
    if len(met) < 2:
        return []
    anchor = next(name for name in ("random", *(one.name for one in pool.members)) if name in met)
    return ratings(table, met, anchor=anchor, unit=unit)


def predicted_scores(
    table: PayoffTable,
    snapshots: Sequence[Snapshot],
    mine: Sequence[Snapshot],
    *,
    unit: float | None = None,
) -> list[float]:
    """The score of a policy against snapshots, as their ratings by all plays so far predict it.

    Plays against one snapshot tell about the others too, also about one that was not met for long.

    Args:
        table: the plays; those of the policy count for its newest snapshot.
        snapshots: of this policy or of another one.
        mine: those of the policy, the oldest first.
        unit: as for ``ratings``.

    Returns:
        Scores in (0, 1); 1/2 where no plays connect a snapshot with the newest that has met any.
    """
    own = [snapshot.name for snapshot in mine]
    names = [*dict.fromkeys([*(snapshot.name for snapshot in snapshots), *own])]
    policy = next((name for name in reversed(own) if name in table.members), own[-1])
    met = table.connected(policy, names)
    rated = ratings(table, met, anchor=policy, unit=unit) if len(met) > 1 else []
    elo = {each.member: each.elo for each in rated}
    theta = np.array([elo.get(name, 0.0) / ELO for name in names])
    return _expected(theta)[names.index(policy), : len(snapshots)].tolist()


def cyclic_share(scores: FloatArray) -> float:
    """How much of the scores no rating explains: 0 a ladder, 1 rock, paper, scissors.

    The sum over pairs of KL(score, score by the ratings) / KL(score, 1/2). For small differences it
    is the cyclic part of the Hodge decomposition of the log odds. Noise of few plays adds to it.

    Args:
        scores: [M, M] mean scores, nan for pairs that never met; 0 if all are even.

    Raises:
        ArenaError: plays do not connect the members.

    Source: Cameron and Windmeijer, An R-squared measure of goodness of fit for some common
    nonlinear regression models, 1997; Balduzzi et al., Re-evaluating evaluation, 2018,
    arXiv:1806.02643 (Hodge decomposition of evaluation matrices).
    """
    score = _both_sides(scores)
    met = ~np.isnan(score) & ~np.eye(len(score), dtype=bool)
    names = [f"row {index}" for index in range(len(score))]
    points = EXACT_PLAYS * np.where(met, score, 0.0)
    theta, _ = _fit(names, np.where(met, EXACT_PLAYS, 0.0), points, points)
    total = _divergence(score[met], np.full_like(score[met], 0.5))
    return min(_divergence(score[met], _expected(theta)[met]) / total, 1.0) if total > TINY else 0.0


def strongest_cycle(
    table: PayoffTable, members: Sequence[str], *, unit: float | None = None
) -> list[str]:
    """Three members of whom each beats the next, and the last the first; [] where there are none.

    Where plays were sampled, a score counts by the lower end of its interval of 95 %, so that
    chance makes few cycles. Of several cycles, the one whose smallest score is largest is meant.

    Args:
        table: the plays.
        members: who is looked at.
        unit: as for ``ratings``.
    """
    _, plays, points, squares = _results(table, members, unit)
    noise = np.zeros_like(plays)
    if not table.exact:  # four plays are added, as for ``mean_interval``
        plays, points, squares = plays + 4, points + 2, squares + 2
        mean = points / plays
        noise = SURE * np.sqrt(np.maximum(squares / plays - mean**2, 0.0) / plays)
    score = points / np.maximum(plays, TINY) - noise
    weakest = np.minimum(np.minimum(score[:, :, None], score), score.T[:, None, :])
    if not weakest.size or weakest.max() <= 0.5 + TINY:
        return []
    return [members[int(index)] for index in np.unravel_index(np.argmax(weakest), weakest.shape)]


def nash_mixture(rewards: FloatArray) -> FloatArray:
    """Which mixture of members no member beats: the Nash equilibrium with the most entropy.

    It is that of the zero-sum game in which two sides choose a member each and get
    (rewards - rewards^T) / 2. Where it is the only equilibrium, copies of a member share its part,
    and change no other.

    Args:
        rewards: [M, M] mean reward of each member (row) against each (column).

    Returns:
        [M] probabilities.

    Raises:
        ArenaError: a pair never met, or the solver fails.

    Source: Balduzzi et al., Re-evaluating evaluation, 2018, arXiv:1806.02643.
    """
    gain = np.asarray((rewards - rewards.T) / 2)
    np.fill_diagonal(gain, 0.0)
    if unmet := int(np.isnan(gain).sum()) // 2:
        raise ArenaError(
            f"a Nash mixture needs the rewards of all pairs; {unmet} pairs of {len(gain)} members "
            "never met: let them play, or leave members out"
        )
    gain = gain / (np.abs(gain).max() or 1.0)
    scipy: Any = import_module("scipy.optimize")  # takes a second

    def negative_entropy(mixture: FloatArray) -> tuple[float, FloatArray]:
        logs = np.log(np.maximum(mixture, TINY))
        return float(mixture @ logs), logs + 1.0

    found = scipy.minimize(
        negative_entropy,
        np.full(len(gain), 1 / len(gain)),
        jac=True,
        bounds=[(0.0, 1.0)] * len(gain),
        constraints=[
            scipy.LinearConstraint(np.ones_like(gain[0]), 1.0, 1.0),
            scipy.LinearConstraint(gain, -np.inf, 0.0),  # no member gains against the mixture
        ],
        method="SLSQP",
        options={"maxiter": 1000, "ftol": 1e-9},
    )
    mixture = np.maximum(found.x, 0.0) / np.maximum(found.x, 0.0).sum()
    if (gain @ mixture).max() > 1e-6:
        raise ArenaError(f"the Nash mixture was not found: {found.message}")
    return mixture


def _results(
    table: PayoffTable, members: Sequence[str], unit: float | None
) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """[M, M] plays of each pair and their tasks, and sums of the row's scores and their squares.

    Plays of one task share the deal, so each task is one result: the sums are over tasks, of the
    mean score of their plays, and of the mean of its square.
    """
    sums = table.sums(members) * (1 - np.eye(len(members)))[..., None]
    wins, draws, losses, gain, _, _, squares, again = np.moveaxis(sums, -1, 0)
    plays = wins + draws + losses
    if unit is None:
        unit, gain, squares = 1.0, wins - losses, wins + losses
    plays, squares = (plays + plays.T) / table.sides, (squares + squares.T) / table.sides
    if (squares > plays * unit**2 * (1 + 1e-9)).any():
        largest = math.sqrt((squares / np.maximum(plays, TINY)).max())
        raise ArenaError(f"gains reach {largest:g} and more, but unit is {unit:g}; raise it")
    half_gain = (gain - gain.T) / (2 * unit * table.sides)
    tasks = plays - (again + again.T) / table.sides
    share = tasks / np.maximum(plays, TINY)
    points, squares = plays / 2 + half_gain, plays / 4 + half_gain + squares / (4 * unit**2)
    return plays, tasks, share * points, share * squares


def _fit(
    members: Sequence[str], plays: FloatArray, points: FloatArray, squares: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Strengths [M] in log odds, and [M, M] the covariance of their differences.

    The virtual plays are spread over the pairs by leverage: the share of a pair in what the plays
    tell about the strengths, which sums to M - 1. A step of Newton's method changes the difference
    of no pair that met by more than 1, within which the likelihood is certain to rise (Bach,
    Self-concordant analysis for logistic regression, 2010, arXiv:0910.4627).

    Args:
        members: their names, for messages.
        plays: [M, M] number of plays of each pair.
        points: [M, M] sum of the scores of each (row) against each (column).
        squares: [M, M] sum of their squares.
    """
    _check_connected(members, plays)
    inverse = np.linalg.inv(_laplacian(plays))
    spread = np.diag(inverse)
    virtual = plays * (spread[:, None] + spread - 2 * inverse)
    plays, points, squares = plays + virtual, points + virtual / 2, squares + virtual / 2
    rate = points.sum(axis=1) / plays.sum(axis=1)
    theta = np.log(rate / (1 - rate))  # exact against opponents of the same strength
    for _ in range(1000):
        expected = _expected(theta)
        inverse = np.linalg.inv(_laplacian(plays * expected * (1 - expected)))
        step = inverse @ (points - plays * expected).sum(axis=1)
        change = np.abs(step - step[:, None])[plays > 0].max()
        theta += step / max(1.0, change)
        if change < 1e-9:
            break
    expected = _expected(theta)
    deviations = squares - expected * (2 * points - plays * expected)  # (score - expected)^2
    return theta, inverse @ _laplacian(deviations) @ inverse


def _check_connected(members: Sequence[str], plays: FloatArray) -> None:
    if len(members) < 2:
        raise ArenaError(
            f"ratings need two members that have met; got {list(members)}: let them play others"
        )
    group, size = np.arange(len(members)) == 0, 0
    while group.sum() > size:
        size = int(group.sum())
        group |= (plays[group] > 0).any(axis=0)
    if not group.all():
        known = [members[index] for index in np.flatnonzero(group).tolist()]
        apart = [name for name in members if name not in known]
        raise ArenaError(
            f"{', '.join(apart)} never met {', '.join(known)}, nor anybody who did, so ratings "
            f"cannot compare them: let {apart[0]} play {known[0]}, or rate the two groups apart"
        )


def _laplacian(weights: FloatArray) -> FloatArray:
    """[M, M] Laplacian of the graph with these weights, plus 1 / M, which makes it invertible."""
    return np.diag(weights.sum(axis=1)) - weights + 1 / len(weights)


def _expected(theta: FloatArray) -> FloatArray:
    """[M, M] expected score of each member against each."""
    return 1 / (1 + np.exp(theta - theta[:, None]))


def _both_sides(scores: FloatArray) -> FloatArray:
    """[M, M] scores as both sides report them, or the one that does; two of them sum to 1."""
    others = 1 - scores.T
    known = np.where(np.isnan(scores), others, scores), np.where(np.isnan(others), scores, others)
    return np.asarray(np.mean(known, axis=0))


def _divergence(score: FloatArray, expected: FloatArray) -> float:
    """KL divergence of two arrays of scores, summed."""
    sides = ((score, expected), (1 - score, 1 - expected))
    return float(sum((p * np.log(np.maximum(p, TINY) / q)).sum() for p, q in sides))
