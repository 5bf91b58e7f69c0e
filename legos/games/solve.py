"""Solve an enumerated game: reach probabilities, values, best responses and optimal policies.

A policy is one probability per slot, [P]. The shape letters are those of ``graph``.
"""

import itertools
import math

import numpy as np
from numpy.typing import NDArray

from legos.games.graph import FloatArray, GameGraph
from legos.games.layers import IntArray

SAME = 1e-9
"""Payoffs that differ by less are equal: rounding, not a better move."""

NEVER = 1e-6
"""Chance, in parts of the largest, below which a policy counts as never coming to a point."""


def normalised(graph: GameGraph, weights: FloatArray) -> FloatArray:
    """Scale weights to probabilities at every decision point; uniform where all weights are 0.

    Args:
        graph: the game.
        weights: [P] non-negative weights.
    """
    total = _per_point(graph, weights)
    even = 1.0 / _per_point(graph, np.ones_like(weights))
    share = weights / np.where(total > 0, total, 1.0)[graph.point_of_slot]
    return np.where(total[graph.point_of_slot] > 0, share, even[graph.point_of_slot])


def reach(graph: GameGraph, chances: FloatArray) -> FloatArray:
    """Probability that a play reaches each state.

    Args:
        graph: the game.
        chances: [P] probability of each move; if all moves of a role are 1, the result does not
            depend on its own choices (the counterfactual reach).

    Returns:
        [N] probabilities.
    """
    reached, taken = graph.start.copy(), _edge_chances(graph, chances)
    for edges in graph.layers[0]:
        flow = reached[graph.parent[edges]] * taken[edges]
        np.add.at(reached, graph.child[edges], flow)
    return reached


def expected(graph: GameGraph, policy: FloatArray) -> FloatArray:
    """[R] expected payoff of each role if all roles follow the policy."""
    return reach(graph, policy) @ graph.payoffs


def best_response(graph: GameGraph, policy: FloatArray, role: int) -> tuple[float, FloatArray]:
    """The best response of one role to the policy of all others, and its expected payoff.

    At each decision point, from the last to the first, the role takes the move with the largest
    ``sum over states s of the point of w(s) * value(after the move in s)``, where w(s) is the
    probability that the others and chance reach s; w is uniform if they never reach the point.

    Args:
        graph: the game.
        policy: [P] policy of the others; the role's own part is not used.
        role: index of the role that responds.

    Returns:
        The role's expected payoff, and [P] the policy with the role's part replaced by its best
        response (equally good moves get equal probability).
    """
    mine = graph.role_of_slot == role
    weight = _point_weight(graph, reach(graph, np.where(mine, 1.0, policy)))
    value = graph.payoffs[:, role].copy()
    answer = np.where(mine, 0.0, policy)
    for edges in reversed(graph.layers[role]):
        own = edges[graph.edge_role[edges] == role]
        _choose(graph, own, weight[graph.parent[own]] * value[graph.child[own]], answer, 0.0)
        _carry_up(graph, edges, answer, value)
    return float(graph.start @ value), answer


def completed(graph: GameGraph, policy: FloatArray) -> FloatArray:
    """[P] An optimal policy that is also a best response where it never comes by its own moves.

    There its value does not depend on its moves, so that a solver leaves them open.

    Args:
        graph: the game.
        policy: [P] an optimal policy.
    """
    found = policy.copy()
    any_moves = _at_points(graph, reach(graph, np.ones_like(policy)))
    for role in range(len(graph.roles)):
        mine = graph.role_of_slot == role
        own = _at_points(graph, reach(graph, np.where(mine, policy, 1.0)))
        never = mine & (own <= NEVER * any_moves)[graph.point_of_slot]
        found[never] = best_response(graph, policy, role)[1][never]
    return found


def nash_conv_of(graph: GameGraph, policy: FloatArray) -> float:
    """NashConv: the sum over roles of the gain from a best response of that role alone.

    It is 0 at an equilibrium.

    Source: Lanctot et al., A unified game-theoretic approach, 2017, arXiv:1711.00832.
    """
    have = expected(graph, policy)
    could = [best_response(graph, policy, role)[0] for role in range(len(graph.roles))]
    return float(sum(max(0.0, most - now) for most, now in zip(could, have, strict=True)))


def minimax(graph: GameGraph) -> tuple[FloatArray, FloatArray]:
    """Backward induction in a game with perfect information, a duel or a cooperative one.

    Returns:
        [P] policy that is uniform over the optimal moves of every decision point, and [P] value of
        each move to the role that makes it, if all play optimally afterwards.
    """
    sign = np.where(graph.cooperative | (graph.edge_role == 0), 1.0, -1.0)
    value = graph.payoffs[:, 0].copy()
    policy, worth = np.zeros(len(graph.point_of_slot)), np.zeros(len(graph.point_of_slot))
    for edges in reversed(graph.layers[0]):
        own = edges[graph.edge_role[edges] >= 0]
        gain = sign[own] * value[graph.child[own]]
        worth[graph.slot[own]] = gain
        _choose(graph, own, gain, policy, SAME)
        _carry_up(graph, edges, policy, value)
    return policy, worth


def move_values(graph: GameGraph, policy: FloatArray) -> FloatArray:
    """[P] Payoff of each move to the role that makes it, if all follow a policy afterwards.

    The states of a decision point count with the probability that chance and the others reach them,
    and equally where they never do.
    """
    worth = np.zeros(len(policy))
    for role in range(len(graph.roles)):
        mine = graph.role_of_slot == role
        weight = _point_weight(graph, reach(graph, np.where(mine, 1.0, policy)))
        value = graph.payoffs[:, role].copy()
        for edges in reversed(graph.layers[role]):
            _carry_up(graph, edges, policy, value)
        own = np.flatnonzero(graph.edge_role == role)
        gains = weight[graph.parent[own]] * value[graph.child[own]]
        total = _at_points(graph, weight)[graph.point_of_slot]
        worth[mine] = (_sums(graph.slot[own], gains, len(policy)) / total)[mine]
    return worth


def joint_optimum(graph: GameGraph, *, max_plans: int) -> FloatArray | None:
    """The best joint policy of a cooperative game, in which roles cannot see the same.

    Tries every plan (a move for each decision point) of all roles but the one with the most plans,
    which gives its best response. Some best joint policy is deterministic.

    Args:
        graph: a cooperative game.
        max_plans: maximum number of plans to try.

    Returns:
        [P] policy, or None if there are more plans.
    """
    num_moves = np.bincount(graph.point_of_slot)
    first = np.flatnonzero(np.diff(graph.point_of_slot, prepend=-1))
    role_of_point = graph.role_of_slot[first]
    plans = [
        math.prod(num_moves[role_of_point == role].tolist()) for role in range(len(graph.roles))
    ]
    last = int(np.argmax(plans))
    if math.prod(plans) // plans[last] > max_plans:
        return None
    others = np.flatnonzero(role_of_point != last)
    best, found = -math.inf, np.zeros(len(graph.point_of_slot))
    for plan in itertools.product(*(range(num) for num in num_moves[others])):
        policy = np.zeros(len(graph.point_of_slot))
        policy[first[others] + np.array(plan, dtype=np.intp)] = 1.0
        value, answer = best_response(graph, policy, last)
        if value > best:
            best, found = value, answer
    return found


def _carry_up(graph: GameGraph, edges: IntArray, policy: FloatArray, value: FloatArray) -> None:
    """Add the expected value after the edges to the states that they leave, in place."""
    taken = _edge_chances(graph, policy, edges)
    np.add.at(value, graph.parent[edges], taken * value[graph.child[edges]])


def _edge_chances(
    graph: GameGraph, policy: FloatArray, edges: IntArray | slice = slice(None)
) -> FloatArray:
    """[edges] probability that each edge is taken at its node, by its role or by chance."""
    slots = graph.slot[edges]
    return np.where(slots >= 0, policy[slots], graph.chance[edges])


def _choose(
    graph: GameGraph, edges: IntArray, gain: FloatArray, policy: FloatArray, margin: float
) -> None:
    """Give all probability of the edges' decision points to their best moves, in place."""
    slots = np.unique(graph.slot[edges])
    worth = _sums(graph.slot[edges], gain, len(policy))[slots]
    point = graph.point_of_slot[slots]
    best = np.full(len(graph.points), -np.inf)
    np.maximum.at(best, point, worth)
    chosen: NDArray[np.bool_] = worth >= best[point] - margin
    policy[slots] = chosen / np.bincount(point[chosen])[point]


def _sums(index: IntArray, values: FloatArray, size: int) -> FloatArray:
    """[size] sum of the values that share an index."""
    return np.asarray(np.bincount(index, values, size), np.float64)


def _per_point(graph: GameGraph, values: FloatArray) -> FloatArray:
    return _sums(graph.point_of_slot, values, len(graph.points))


def _at_points(graph: GameGraph, values: FloatArray) -> FloatArray:
    """[D] sum over the states of each decision point."""
    inner = graph.point_of_node >= 0
    return _sums(graph.point_of_node[inner], values[inner], len(graph.points))


def _point_weight(graph: GameGraph, reached: FloatArray) -> FloatArray:
    """[N] reach probability, or 1 for all states of a decision point that is never reached."""
    never = _at_points(graph, reached) == 0
    return np.where((graph.point_of_node >= 0) & never[graph.point_of_node], 1.0, reached)
