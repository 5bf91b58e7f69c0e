"""Evaluate a policy at a game without sampling error: exploitability, win rates and others.

Win rates and self-play rewards can be high while a policy is easy to exploit; exploitability shows
it. Every function takes a ``GameTree``, which enumerates all states once and should be reused.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import isclose, isfinite

import numpy as np
from numpy.typing import NDArray

from legos.arena.game import Game
from legos.errors import ArenaError
from legos.games.graph import FloatArray, write_out
from legos.games.solve import (
    SAME,
    completed,
    expected,
    joint_optimum,
    minimax,
    nash_conv_of,
    normalised,
    reach,
)

Policy = Mapping[tuple[str, str], Mapping[str, float]]
"""(role, view) -> move -> probability; a legal move that is not listed has probability 0."""

TARGET = 1e-6
"""Exploitability, in parts of the largest payoff, below which a policy counts as optimal."""

DEFINED = "optimal play is defined for two roles whose payoffs sum to 0, and for equal payoffs"
MAX_PLANS = 10_000
"""Maximum number of plans to try for the best joint policy of a cooperative game."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Shares of plays by the sign of the payoff; they sum to 1."""

    win: float
    draw: float
    loss: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GameReport:
    """Exact values of one policy at one game; None: not defined for such a game."""

    arena: str
    optimal_move_rate: float | None  # see the function of that name
    exploitability: float | None  # payoff that each seat loses on average to a best response
    joint_value: float | None  # cooperative games: expected payoff
    optimal_joint_value: float | None  # cooperative games: expected payoff of the best policy
    illegal_probability: float  # mean over decision points, without restriction to legal moves
    vs_random: Outcome | None  # result against uniform moves
    vs_optimal: Outcome | None  # result against ``optimal_policy``


class GameTree:
    """A game with all its states: make it once, and evaluate many policies with it.

    Attributes:
        game: the game.
        graph: its states and moves as arrays.
    """

    def __init__(self, game: Game, *, max_states: int = 200_000) -> None:
        """Enumerate all states.

        Args:
            game: must list its ``starts``.
            max_states: maximum number of different states.

        Raises:
            ArenaError: the game cannot be evaluated exactly; the message says why.
        """
        self.game = game
        self.graph = write_out(game, max_states=max_states)

    @property
    def unsolved(self) -> str | None:
        """Why there is no optimal policy; None: there is one."""
        return self.solution if isinstance(self.solution, str) else None

    @cached_property
    def solution(self) -> FloatArray | str:
        """[P] an optimal policy, or why there is none."""
        graph = self.graph
        if self.inducible:
            return minimax(graph)[0]
        if graph.cooperative:
            joint = joint_optimum(graph, max_plans=MAX_PLANS)
            return f"it has more than {MAX_PLANS:,} joint plans to try" if joint is None else joint
        if not graph.duel:
            payoffs = "sum to 0" if graph.zero_sum else "neither sum to 0 nor are equal"
            return f"it has {len(graph.roles)} roles, whose payoffs {payoffs}; {DEFINED}"
        from legos.games.sequence_form import equilibrium  # imports scipy, which takes a second

        try:
            found = completed(graph, equilibrium(graph))
        except ArenaError as error:
            return str(error)
        lost = nash_conv_of(graph, found) / len(graph.roles)
        if lost > TARGET * np.abs(graph.payoffs).max():
            return f"the solution that was found has an exploitability of {lost:.1e}"
        return found

    @property
    def inducible(self) -> bool:
        """Whether backward induction finds the optimal moves of every decision point."""
        graph = self.graph
        return graph.perfect_information and (graph.duel or graph.cooperative)

    def policy(self, chances: FloatArray) -> Policy:
        """Convert a flat policy [P] to a mapping from decision points to move probabilities."""
        at = iter(chances.tolist())
        return {
            (point.role, point.view): {move: next(at) for move in point.legal}
            for point in self.graph.points
        }

    def chances(self, policies: Mapping[str, Policy]) -> FloatArray:
        """Check the policies of all roles and flatten them to one array [P].

        Raises:
            ArenaError: a role or a decision point is missing, or its probabilities do not sum to 1
                over the legal moves.
        """
        flat: list[float] = []
        for point in self.graph.points:
            if point.role not in policies:
                raise ArenaError(f"no policy for role {point.role!r}; got {sorted(policies)}")
            moves = policies[point.role].get((point.role, point.view))
            if moves is None:
                raise ArenaError(f"the policy has nothing for {point.role} at {point.view!r}")
            row = [moves.get(move, 0.0) for move in point.legal]
            legal_only = set(moves) <= set(point.legal) and all(isfinite(p) and p >= 0 for p in row)
            if not legal_only or not isclose(sum(row), 1.0, abs_tol=1e-6):
                raise ArenaError(
                    f"the policy of {point.role} at {point.view!r} is {dict(moves)}; expected"
                    f" probabilities of {point.legal} that sum to 1"
                )
            flat += row
        return np.array(flat)

    def everywhere(self, policy: Policy) -> FloatArray:
        """Check and flatten one policy that plays every role."""
        return self.chances(dict.fromkeys(self.graph.roles, policy))


def uniform_policy(game: GameTree) -> Policy:
    """The policy that gives every legal move the same probability."""
    return game.policy(normalised(game.graph, np.zeros(len(game.graph.point_of_slot))))


def optimal_policy(game: GameTree) -> Policy | None:
    """An optimal policy of a game that is two-player zero-sum or cooperative.

    With perfect information it is uniform over the optimal moves of every decision point, computed
    by backward induction. Otherwise it is, in a zero-sum game, an equilibrium, by linear programs;
    in a cooperative game (equal payoffs, or one role) the best joint policy, by trying all plans.

    Returns:
        None if there is none, for the reason ``GameTree.unsolved``: the game is neither, the solver
        failed, or there are more than 10,000 plans to try.
    """
    found = game.solution
    return None if isinstance(found, str) else game.policy(found)


def expected_payoffs(game: GameTree, policies: Mapping[str, Policy]) -> Mapping[str, float]:
    """Expected payoff of every role.

    Args:
        game: the game.
        policies: role -> the policy that plays it.
    """
    payoffs = expected(game.graph, game.chances(policies))
    return dict(zip(game.graph.roles, payoffs.tolist(), strict=True))


def outcome_shares(game: GameTree, mine: Policy, theirs: Policy) -> Outcome:
    """Probabilities that ``mine`` wins (payoff > 0), draws (0) and loses, averaged over its roles.

    Args:
        game: the game.
        mine: plays each role in turn.
        theirs: plays all other roles.
    """
    graph, shares = game.graph, np.zeros(3)
    mine_P, theirs_P = game.everywhere(mine), game.everywhere(theirs)
    end = ~np.isin(np.arange(len(graph.start)), graph.parent)
    for role in range(len(graph.roles)):
        come = reach(graph, np.where(graph.role_of_slot == role, mine_P, theirs_P))[end]
        payoff = graph.payoffs[end, role]
        won: NDArray[np.bool_] = payoff > SAME
        lost: NDArray[np.bool_] = payoff < -SAME
        shares += [come[won].sum(), come[~won & ~lost].sum(), come[lost].sum()]
    win, draw, loss = (shares / len(graph.roles)).tolist()
    return Outcome(win=win, draw=draw, loss=loss)


def exploitability(game: GameTree, policy: Policy) -> float:
    """NashConv divided by the number of roles: the mean payoff lost to a best response."""
    return nash_conv_of(game.graph, game.everywhere(policy)) / len(game.graph.roles)


def optimal_move_rate(game: GameTree, policy: Policy) -> float | None:
    """Mean probability of an optimal move, over the decisions that matter.

    Each decision point whose moves differ in minimax value counts once, with the probability that
    the policy gives to the moves with the largest value.

    Returns:
        None if the game is not one with perfect information that is two-player zero-sum or
        cooperative, or if no decision matters.
    """
    graph = game.graph
    if not game.inducible:
        return None
    best_P, worth_P = minimax(graph)
    first = np.flatnonzero(np.diff(graph.point_of_slot, prepend=-1))
    difference = np.maximum.reduceat(worth_P, first) - np.minimum.reduceat(worth_P, first)
    matters = difference > SAME
    if not matters.any():
        return None
    right = np.add.reduceat(np.where(best_P > 0, game.everywhere(policy), 0.0), first)
    return float(right[matters].mean())


def evaluate(
    game: GameTree, policy: Policy, illegal_probability: Mapping[tuple[str, str], float]
) -> GameReport:
    """Compute all exact values of a policy that plays every role.

    Args:
        game: the game.
        policy: probabilities over legal moves.
        illegal_probability: (role, view) -> probability that the model gives to anything but a
            legal move, which ``policy`` does not contain.

    Raises:
        ArenaError: a decision point is missing in the policy, or is not a distribution.
    """
    keys = [(point.role, point.view) for point in game.graph.points]
    best = optimal_policy(game)
    random = uniform_policy(game) if game.graph.zero_sum else None
    team = game.graph.cooperative

    def value(policy: Policy) -> float:
        return float(expected(game.graph, game.everywhere(policy))[0])

    return GameReport(
        arena=game.game.name,
        optimal_move_rate=optimal_move_rate(game, policy),
        exploitability=exploitability(game, policy),
        joint_value=value(policy) if team else None,
        optimal_joint_value=value(best) if team and best else None,
        illegal_probability=sum(illegal_probability[key] for key in keys) / len(keys),
        vs_random=outcome_shares(game, policy, random) if random else None,
        vs_optimal=outcome_shares(game, policy, best) if best and random else None,
    )
