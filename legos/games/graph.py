"""Enumerate a game: every state that play can reach, as flat arrays for exact evaluation.

A node is a state in which chance decides or one role moves, or an end. Where several roles move at
once, they move one after another, through nodes that contain the moves made so far, which their
views do not show.

Letters: N nodes, E edges (a node and one of its legal moves, or of the outcomes of chance), D
decision points, P slots (a decision point and one of its moves; a policy is one probability per
slot), R roles.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isclose

import numpy as np
from numpy.typing import NDArray

from legos.arena.checks import check_names, checked_choices, checked_rewards
from legos.arena.game import Game, State, movers
from legos.errors import ArenaError, GameSizeError, LegosError, story_of
from legos.games.layers import IntArray, layered, node_on_cycle
from legos.records.numbers import shown

FloatArray = NDArray[np.float64]
DUEL = 2  # roles of a duel
PAIR = 2  # a state and its probability


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionPoint:
    """An information set: all states that a role cannot distinguish when it has to move."""

    role: str
    view: str  # what the role knows; (role, view) is unique in a game
    prompt: str  # the prompt for the role
    legal: tuple[str, ...]  # legal moves


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GameGraph:
    """A game as a directed acyclic graph; equal states of different plays are one node."""

    roles: tuple[str, ...]
    points: tuple[DecisionPoint, ...]  # [D] in the order in which plays reach them
    start: FloatArray  # [N] probability that a play starts at this node
    payoffs: FloatArray  # [N, R] payoff of each role; 0 at nodes that are not ends
    point_of_node: IntArray  # [N] decision point of each node; -1 where no role moves
    parent: IntArray  # [E] node that the edge leaves
    child: IntArray  # [E] node that the edge enters
    slot: IntArray  # [E] slot of the move; -1 where chance decides
    chance: FloatArray  # [E] probability of the outcome of chance; 1 for moves
    edge_role: IntArray  # [E] index of the role that moves; -1 where chance decides
    point_of_slot: IntArray  # [P] ascending: the slots of one point are contiguous
    role_of_slot: IntArray  # [P] index of the role that moves
    layers: tuple[tuple[IntArray, ...], ...]  # [R] edges from the starts down: _layers_of_role

    @property
    def zero_sum(self) -> bool:
        """Whether there are two or more roles whose payoffs sum to 0 at every end."""
        return len(self.roles) > 1 and np.allclose(self.payoffs.sum(axis=1), 0.0, atol=1e-9)

    @property
    def duel(self) -> bool:
        """Whether the game is two-player zero-sum."""
        return len(self.roles) == DUEL and self.zero_sum

    @property
    def cooperative(self) -> bool:
        """Whether all roles have the same payoff at every end; one role alone always has."""
        return np.allclose(self.payoffs, self.payoffs[:, :1], atol=1e-9)

    @property
    def perfect_information(self) -> bool:
        """Whether every decision point is a single node."""
        return len(self.points) == int((self.point_of_node >= 0).sum())


def write_out(game: Game, *, max_states: int) -> GameGraph:
    """Enumerate all states of a game, and check that it can be evaluated exactly.

    Args:
        game: must list its ``starts``.
        max_states: maximum number of different states.

    Raises:
        GameSizeError: the game has more states.
        ArenaError: the starts are not listed, probabilities do not sum to 1, a state can repeat in
            one play, one view has different legal moves or prompts, a view lacks perfect recall, or
            the game's code fails.
    """
    try:
        walk = _Walk(game)
        starts = walk.visit_all(max_states)
    except LegosError:
        raise
    except Exception as error:  # the game's own code may raise anything
        raise ArenaError(
            f"game {game.name!r} failed while its states were written out:\n{story_of(error)}"
        ) from error
    num_nodes = len(walk.states)
    points = tuple(point for _, point in walk.points.values())
    if not points:
        raise ArenaError(f"game {game.name!r} ends before anyone moves; check turn()")
    point_of_slot = np.repeat(np.arange(len(points)), [len(point.legal) for point in points])
    role_of_point = np.array([game.roles.index(point.role) for point in points], dtype=np.intp)
    parent, child, slot, chance = map(np.array, zip(*walk.edges, strict=True))
    point_of_node = np.full(num_nodes, -1, dtype=np.intp)
    moves = slot >= 0
    point_of_node[parent[moves]] = point_of_slot[slot[moves]]
    start = np.zeros(num_nodes)
    np.add.at(start, [walk.index[state] for state, _ in starts], [share for _, share in starts])
    payoffs = np.zeros((num_nodes, len(game.roles)))
    for node, row in walk.payoffs.items():
        payoffs[node] = row
    top_down = layered(parent, child, np.arange(num_nodes))
    if sum(map(len, top_down)) < len(parent):
        at = walk.states[node_on_cycle(parent, child, top_down)]
        state = at.state if isinstance(at, _Moving) else at
        raise ArenaError(
            f"game {game.name!r}: state {state!r} can come back in the same play, so play has no"
            " last move to reason back from; count the moves in the state, or end the play"
        )
    role_of_slot = role_of_point[point_of_slot]
    graph = GameGraph(
        roles=tuple(game.roles),
        points=points,
        start=start,
        payoffs=payoffs,
        point_of_node=point_of_node,
        parent=parent,
        child=child,
        slot=slot,
        chance=chance,
        edge_role=np.where(moves, role_of_slot[slot], -1),
        point_of_slot=point_of_slot,
        role_of_slot=role_of_slot,
        layers=tuple(
            _layers_of_role(parent, child, point_of_node, role_of_point == role, top_down)
            for role in range(len(game.roles))
        ),
    )
    _check_recall(game, graph, top_down, walk.origins())
    return graph


@dataclass(frozen=True, slots=True)
class _Moving:
    """A state in which several roles move at once, and the moves of the first of them."""

    state: State
    moves: tuple[str, ...]


class _Walk:
    """The nodes found so far; breadth first, so that decision points are in playing order."""

    def __init__(self, game: Game) -> None:
        self.game = game
        self.states: list[State | _Moving] = []  # [N]
        self.index: dict[State | _Moving, int] = {}  # state -> node
        self.payoffs: dict[int, tuple[float, ...]] = {}  # end node -> [R]
        self.points: dict[tuple[str, str], tuple[int, DecisionPoint]] = {}  # -> first slot, point
        self.edges: list[tuple[int, int, int, float]] = []  # parent, child, slot, chance
        self.num_slots = 0

    def visit_all(self, max_states: int) -> Sequence[tuple[State, float]]:
        """Find all nodes; returns the starts with their probabilities."""
        check_names(self.game.roles, f"roles of game {self.game.name!r}")
        starts = self.game.starts()
        if starts is None:
            raise ArenaError(f"game {self.game.name!r} does not list its starts; write starts()")
        self._check_outcomes(starts, "starts()")
        for state, _ in starts:
            self._number(state)
        node = 0
        while node < len(self.states):
            if len(self.states) > max_states:
                raise GameSizeError(
                    f"game {self.game.name!r} has more than {max_states} states; make it smaller,"
                    " or raise max_states where memory and time allow"
                )
            self._visit(node, self.states[node])
            node += 1
        return starts

    def origins(self) -> IntArray:
        """[N] the node of the state in which a node's simultaneous moves began; mostly itself."""
        begun = [
            self.index[state.state] if isinstance(state, _Moving) else node
            for node, state in enumerate(self.states)
        ]
        return np.array(begun, dtype=np.intp)

    def _number(self, state: State | _Moving) -> int:
        node = self.index.setdefault(state, len(self.states))
        if node == len(self.states):
            self.states.append(state)
        return node

    def _check_outcomes(self, outcomes: Sequence[tuple[State, float]], source: str) -> None:
        for outcome in outcomes:
            if not isinstance(outcome, tuple) or len(outcome) != PAIR:
                raise ArenaError(
                    f"{source} of game {self.game.name!r} holds {shown(outcome)}; expected pairs "
                    "(state, probability)"
                )
        total = sum(chance for _, chance in outcomes)
        if not all(chance > 0 for _, chance in outcomes) or not isclose(total, 1.0, abs_tol=1e-9):
            raise ArenaError(
                f"game {self.game.name!r}: the {len(outcomes)} probabilities of {source} sum to"
                f" {total}; expected positive ones that sum to 1"
            )

    def _visit(self, node: int, at: State | _Moving) -> None:
        state, moves = (at.state, at.moves) if isinstance(at, _Moving) else (at, ())
        if outcomes := self.game.chance(state):
            self._check_outcomes(outcomes, f"chance({state!r})")
            for after, chance in outcomes:
                self.edges.append((node, self._number(after), -1, chance))
            return
        turn = self.game.turn(state)
        if turn is None:
            source = f"payoff({state!r}) of game {self.game.name!r}"
            rewards = checked_rewards(self.game.payoff(state), self.game.roles, source)
            self.payoffs[node] = tuple(rewards.values())
            return
        roles = movers(self.game, state, turn)
        first, point = self._point(state, roles[len(moves)])
        for slot, move in enumerate(point.legal, start=first):
            made = (*moves, move)
            if len(made) < len(roles):
                after: State | _Moving = _Moving(state, made)
            else:
                after = self.game.after_moves(state, turn, dict(zip(roles, made, strict=True)))
            self.edges.append((node, self._number(after), slot, 1.0))

    def _point(self, state: State, role: str) -> tuple[int, DecisionPoint]:
        name = self.game.name
        view = self.game.view(state, role)
        legal = checked_choices(tuple(self.game.legal(state, role)), role)
        prompt = self.game.prompt(state, role)
        point = DecisionPoint(role=role, view=view, prompt=prompt, legal=legal)
        first, known = self.points.setdefault((role, view), (self.num_slots, point))
        if first == self.num_slots:
            self.num_slots += len(legal)
        if known.legal != legal:
            raise ArenaError(
                f"game {name!r}: {role} has legal moves {known.legal} and {legal} with one view"
                f" {view!r}; a role must have the same moves where it cannot tell states apart"
            )
        if known.prompt != prompt:
            raise ArenaError(
                f"game {name!r}: {role} is asked {known.prompt!r} and {prompt!r} with one view"
                f" {view!r}; a prompt must not tell more than the view"
            )
        return first, known


def _layers_of_role(
    parent: IntArray,
    child: IntArray,
    point_of_node: IntArray,
    own_point: NDArray[np.bool_],
    top_down: tuple[IntArray, ...],
) -> tuple[IntArray, ...]:
    """Layers in which all states of one decision point of a role are in the same layer.

    A role decides once for all states of a point, so the values after all of them must be computed
    first, even if plays reach these states after different numbers of moves.
    """
    num_nodes = len(point_of_node)
    own_node = (point_of_node >= 0) & own_point[point_of_node]
    joined = np.where(own_node, num_nodes + point_of_node, np.arange(num_nodes))
    names, group = np.unique(joined, return_inverse=True)
    return top_down if len(names) == num_nodes else layered(parent, child, group)


def _check_recall(
    game: Game, graph: GameGraph, top_down: tuple[IntArray, ...], origin: IntArray
) -> None:
    """Check perfect recall, without which backward induction would not find the best response.

    All plays that reach a point must share the role's last move before it. A point whose nodes have
    one origin (a single state, or the simultaneous moves of others in it) need not satisfy this,
    because neither the values after it nor the probabilities of its nodes depend on the past.
    """
    seats, never, unknown = np.arange(len(graph.roles)), -1, np.iinfo(np.intp).max
    lowest = np.where(graph.start[:, None] > 0, never, np.full(graph.payoffs.shape, unknown))
    highest = np.full(graph.payoffs.shape, never)
    for edges in top_down:
        parent, child, slot = graph.parent[edges], graph.child[edges], graph.slot[edges, None]
        own = graph.edge_role[edges, None] == seats
        np.minimum.at(lowest, child, np.where(own, slot, lowest[parent]))
        np.maximum.at(highest, child, np.where(own, slot, highest[parent]))
    nodes = np.flatnonzero(graph.point_of_node >= 0)
    at = graph.point_of_node[nodes]
    mover = np.array([graph.roles.index(point.role) for point in graph.points])[at]
    first, last = np.full(len(graph.points), unknown), np.full(len(graph.points), never)
    np.minimum.at(first, at, lowest[nodes, mover])
    np.maximum.at(last, at, highest[nodes, mover])
    shared = np.bincount(np.unique(np.stack([at, origin[nodes]]), axis=1)[0]) > 1
    for forgetful in np.flatnonzero(shared & (first < last))[:1].tolist():
        point = graph.points[int(forgetful)]
        raise ArenaError(
            f"game {game.name!r}: {point.role} comes to the view {point.view!r} after different"
            " moves of its own, and the view does not tell which; put what the role has seen and"
            " done in the view, or leave the past out of the state where it no longer matters"
        )
