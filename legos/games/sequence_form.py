"""Solve a two-player zero-sum game exactly, by linear programs over its sequence form.

A plan of a role has a weight for each sequence of its own moves: the product of their
probabilities. Payoffs are linear in the plan of each role, so a linear program finds the plan that
guarantees most. A sequence is named by its last slot. Where a state is reached after several
sequences of one role, their weights add up. Where it is reached after several sequences of both
roles, a subgame begins: its value does not depend on the past, so it is solved before the rest.

Letters as in ``graph``; K subgames, the first of which is the whole game; S = P + K sequences, one
for each slot, and one for each subgame, in which the role has not moved yet.

Source: Koller, Megiddo and von Stengel, Fast algorithms for finding randomized strategies in game
trees, 1994.
"""

from importlib import import_module
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from legos.errors import ArenaError
from legos.games.graph import FloatArray, GameGraph
from legos.games.solve import normalised

SLACK = 1e-9
"""Part of the largest payoff that the guarantee may lose in the choice between optimal plans."""

OPTIONS = {
    "primal_feasibility_tolerance": 1e-10,
    "dual_feasibility_tolerance": 1e-10,
    "time_limit": 300.0,  # seconds
}

sparse: Any = import_module("scipy.sparse")  # without types
linprog: Any = import_module("scipy.optimize").linprog

Flow = dict[tuple[int, int], float]
"""Sequences of both roles -> probability that chance leads from them to a node."""


def equilibrium(graph: GameGraph) -> FloatArray:
    """The optimal policies of both roles of a two-player zero-sum game.

    Of the policies that guarantee most, each is one that gains most against uniform moves, so that
    it also gains from mistakes.

    Returns:
        [P] policy; uniform at decision points that the role's own earlier moves exclude.

    Raises:
        ArenaError: the solver does not solve a linear program; the message has its reason.
    """
    form = _Form(graph)
    value = graph.payoffs[:, 0] / (np.abs(graph.payoffs[:, 0]).max() or 1.0)
    plan = np.zeros_like(form.even)
    for depth in range(form.depth.max() + 1):
        subgames = np.flatnonzero(form.depth == depth)
        one, two = form.sequences(0, depth), form.sequences(1, depth)
        payoff = form.payoff(value)[one][:, two]
        first, second = form.flow(0, depth)[:, one], form.flow(1, depth)[:, two]
        plan[one], found = _best_plan(first, second, payoff, form.even[two], len(subgames))
        plan[two] = _best_plan(second, first, -payoff.T, form.even[one], len(subgames))[0]
        value[form.roots[subgames]] = found
    return normalised(graph, np.maximum(plan[: len(graph.point_of_slot)], 0.0))


def _best_plan(
    own: Any, other: Any, payoff: Any, rival: FloatArray, num_subgames: int
) -> tuple[FloatArray, FloatArray]:
    """The plan that guarantees most in each subgame, and among these gains most against a rival.

    The program has the plan and, for each point and subgame of the other role, the payoff that the
    plan guarantees from there on.

    Args:
        own: the role's flow; its plan has ``own @ plan = 0`` at points, 1 at subgames (last).
        other: the other role's flow.
        payoff: payoff to the role for each pair of its sequences and the other's.
        rival: plan of the rival.
        num_subgames: number of subgames.

    Returns:
        The plan, and the guaranteed value of each subgame.
    """
    num_moves, num_points = own.shape[1], other.shape[0]
    subgames = slice(num_moves + num_points - num_subgames, None)
    total = np.append(np.zeros(own.shape[0] - num_subgames), np.ones(num_subgames))
    lowest = np.append(np.zeros(num_moves), np.full(num_points, -np.inf))

    def solved(worth: FloatArray) -> FloatArray:
        result = linprog(
            -worth,
            A_ub=sparse.hstack([-payoff.T, other.T], format="csc"),
            b_ub=np.zeros(other.shape[1]),
            A_eq=sparse.hstack([own, sparse.csr_array((len(total), num_points))], format="csc"),
            b_eq=total,
            bounds=np.stack([lowest, np.full_like(lowest, np.inf)], axis=1),
            method="highs",
            options=OPTIONS,
        )
        if not result.success:
            raise ArenaError(f"its linear program was not solved: {result.message}")
        return result.x

    guarantee = np.zeros_like(lowest)
    guarantee[subgames] = 1.0
    value = solved(guarantee)[subgames]
    lowest[subgames] = value - SLACK
    return solved(np.append(payoff @ rival, np.zeros(num_points)))[:num_moves], value


class _Form:
    """The sequence form of a game as sparse matrices.

    Attributes:
        roots: [K] node at which each subgame begins; of the whole game, one without a meaning.
        depth: [K] number of subgames that follow each other in it, at most.
        even: [S] plans of uniform moves.
    """

    def __init__(self, graph: GameGraph) -> None:
        roots, pairs, inflow = _followed(graph)
        num_slots, num_points, num_subgames = (
            len(graph.point_of_slot),
            len(graph.points),
            len(roots),
        )
        num_sequences = num_slots + num_subgames
        self.roots = np.array(roots)
        self.even = np.ones(num_sequences)
        self._subgame = np.maximum(np.arange(num_sequences) - num_slots, 0)  # [S]
        rows = [*graph.point_of_slot.tolist(), *range(num_points, num_points + num_subgames)]
        columns, weights = [*range(num_sequences)], [1.0] * num_sequences
        first = np.searchsorted(graph.point_of_slot, np.arange(num_points + 1)).tolist()
        for point, shares in inflow.items():
            slots = slice(first[point], first[point + 1])
            coming = sum(share * self.even[before] for before, share in shares.items())
            self.even[slots] = coming / (slots.stop - slots.start)
            self._subgame[slots] = self._subgame[next(iter(shares))]
            rows += [point] * len(shares)
            columns += shares
            weights += [-share for share in shares.values()]
        shape = (num_points + num_subgames, num_sequences)
        self._flow = sparse.csr_array((weights, (rows, columns)), shape=shape)
        self._role = np.append(graph.role_of_slot, np.full(num_subgames, -1))  # [S]; -1: both
        self._first = np.append(first[:-1], np.arange(num_slots, num_sequences))  # of each row
        self._one, self._two, self._share, self._node = map(np.array, zip(*pairs, strict=True))
        self.depth = self._depths()

    def _depths(self) -> NDArray[np.intp]:
        depth = np.zeros_like(self.roots)
        subgame_at = {node: index for index, node in enumerate(self.roots.tolist()) if index}
        held = zip(self._subgame[self._one].tolist(), self._node.tolist(), strict=True)
        inside = {(outer, subgame_at[node]) for outer, node in held if node in subgame_at}
        for outer, inner in sorted(inside, reverse=True):  # inner ones have larger numbers
            depth[outer] = max(depth[outer], depth[inner] + 1)
        return depth

    def _of(self, role: int, depth: int) -> NDArray[np.bool_]:
        both = self._role == -1
        return ((self._role == role) | both) & (self.depth[self._subgame] == depth)

    def sequences(self, role: int, depth: int) -> NDArray[np.intp]:
        """The sequences of a role in the subgames of a depth."""
        return np.flatnonzero(self._of(role, depth))

    def flow(self, role: int, depth: int) -> Any:
        """[points and subgames, S] what leaves each less what enters it, by a role's plan."""
        return self._flow[self._of(role, depth)[self._first]]

    def payoff(self, value: FloatArray) -> Any:
        """[S, S] payoff to the first role for each pair of sequences.

        Args:
            value: [N] its payoff at ends, and the values of subgames that are solved.
        """
        payoffs = self._share * value[self._node]
        return sparse.csr_array((payoffs, (self._one, self._two)), shape=(len(self.even),) * 2)


def _followed(
    graph: GameGraph,
) -> tuple[list[int], list[tuple[int, int, float, int]], dict[int, dict[int, float]]]:
    """Follow the sequences of both roles from the starts down.

    Returns:
        The first node of each subgame, outer ones first; for each end and each subgame, the pairs
        of sequences that lead there with the probability of chance, and its node; and for each
        point, in playing order, the sequences before it and their shares of its weight.
    """
    num_slots = len(graph.point_of_slot)
    roots = [-1]
    pairs: list[tuple[int, int, float, int]] = []
    inflow: dict[int, dict[int, float]] = {}
    flows: list[Flow] = [{} for _ in graph.start]
    for node in np.flatnonzero(graph.start).tolist():
        flows[node] = {(num_slots, num_slots): float(graph.start[node])}
    parent: list[int] = graph.parent.tolist()
    mover: list[int] = graph.edge_role.tolist()
    child: list[int] = graph.child.tolist()
    slot, chance = graph.slot.tolist(), graph.chance.tolist()
    order: list[int] = np.concatenate(graph.layers[0]).tolist()
    for node, group in groupby(order, key=lambda edge: parent[edge]):
        edges = tuple(group)
        role = mover[edges[0]]
        flow = flows[node]
        flows[node] = {}
        if role >= 0:
            own, other = ({pair[seat] for pair in flow} for seat in (role, 1 - role))
            if len(own) > 1 and len(other) > 1:
                pairs += [(*pair, share, node) for pair, share in flow.items()]
                begun = num_slots + len(roots)
                roots.append(node)
                flow, own = {(begun, begun): 1.0}, {begun}
            point = int(graph.point_of_slot[slot[edges[0]]])
            if len(own) == 1:
                inflow.setdefault(point, dict.fromkeys(own, 1.0))
            else:
                inflow.setdefault(point, {pair[role]: share for pair, share in flow.items()})
                flow = {(next(iter(other)),) * 2: 1.0}  # the own one is replaced below
        for edge in edges:
            after = flows[child[edge]]
            for (one, two), share in flow.items():
                pair = (slot[edge] if role == 0 else one, slot[edge] if role == 1 else two)
                after[pair] = after.get(pair, 0.0) + share * chance[edge]
    pairs += [
        (*pair, share, node) for node, flow in enumerate(flows) for pair, share in flow.items()
    ]
    return roots, pairs, inflow
