"""How good a policy is at a game, without sampling error: the numbers that curves show.

Win rates and self-play rewards can look fine while a policy is easy to exploit; exploitability
cannot. Every function takes a ``GameTree``, which writes the game out once and is meant to be kept.
"""

import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from math import isclose, isfinite

import numpy as np

from legos.arena.game import Game
from legos.errors import ArenaError
from legos.exact.graph import DecisionPoint, FloatArray, write_out
from legos.exact.solve import SAME, cfr_plus, expected, minimax, nash_conv_of, normalised, reach

__all__ = [
    "DecisionPoint",
    "GameReport",
    "GameTree",
    "Outcome",
    "Policy",
    "decision_points",
    "evaluate",
    "expected_payoffs",
    "exploitability",
    "nash_conv",
    "optimal_move_rate",
    "optimal_policy",
    "outcome_shares",
    "uniform_policy",
]

logger = logging.getLogger(__name__)

Policy = Mapping[tuple[str, str], Mapping[str, float]]
"""(role, view) -> move -> probability; a legal move that is not listed has probability 0."""

TARGET = 1e-4
"""Exploitability, in the unit of payoffs, below which a policy counts as optimal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Shares of plays by the sign of the payoff; they sum to 1."""

    win: float
    draw: float
    loss: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GameReport:
    """One policy at one game; None: not defined for such a game."""

    arena: str
    optimal_move_rate: float | None  # see the function of that name
    exploitability: float | None  # payoff that each seat loses on average to a best response
    illegal_probability: float  # mean over decision points, before moves are restricted to legal
    vs_random: Outcome | None  # against uniform moves
    vs_optimal: Outcome | None  # against ``optimal_policy``

    def as_dict(self) -> dict[str, str | float | dict[str, float] | None]:
        """JSON values: an outcome becomes an object of win, draw and loss."""
        return asdict(self)


class GameTree:
    """A game that is written out: make it once, evaluate many policies with it.

    Attributes:
        game: the game.
        graph: its states and moves as arrays.
    """

    def __init__(self, game: Game, *, max_states: int = 200_000) -> None:
        """Visit every state.

        Args:
            game: must list its ``starts``.
            max_states: refuse a game with more different states.

        Raises:
            ArenaError: the game cannot be evaluated exactly; the message says why.
        """
        self.game = game
        self.graph = write_out(game, max_states=max_states)

    @cached_property
    def optimal(self) -> Policy | None:
        """What ``optimal_policy`` returns, solved at the first use."""
        graph = self.graph
        if len(graph.roles) != 2 or not graph.zero_sum:
            return None
        if graph.perfect_information:
            return self.policy(minimax(graph)[0])
        max_rounds = min(20_000, 50_000_000 // len(graph.parent))
        found = cfr_plus(graph, target=TARGET, max_rounds=max_rounds)
        if found is None:
            logger.warning("%s: no optimal policy in %d rounds of CFR+", self.game.name, max_rounds)
            return None
        return self.policy(found)

    def policy(self, chances: FloatArray) -> Policy:
        """Name the probabilities of a flat policy, [P]."""
        at = iter(chances.tolist())
        return {
            (point.role, point.view): {move: next(at) for move in point.legal}
            for point in self.graph.points
        }

    def chances(self, policies: Mapping[str, Policy]) -> FloatArray:
        """Flatten policies, checked: role -> the policy that sits there becomes [P].

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
        """Flatten one policy that sits in every seat, checked like ``chances``."""
        return self.chances(dict.fromkeys(self.graph.roles, policy))


def decision_points(game: GameTree) -> tuple[DecisionPoint, ...]:
    """Everything that a policy can be asked: one entry per role and view, in playing order."""
    return game.graph.points


def uniform_policy(game: GameTree) -> Policy:
    """Every legal move equally likely."""
    return game.policy(normalised(game.graph, np.zeros(len(game.graph.point_of_slot))))


def optimal_policy(game: GameTree) -> Policy | None:
    """An optimal policy of a two-player zero-sum game.

    With perfect information: uniform over the optimal moves of every decision point, by reasoning
    back from the ends. Otherwise: an equilibrium of exploitability below 1e-4, by CFR+.

    Returns:
        None where the game is not two-player zero-sum, or (logged) where CFR+ did not get there.
    """
    return game.optimal


def expected_payoffs(game: GameTree, policies: Mapping[str, Policy]) -> Mapping[str, float]:
    """Mean payoff of every role.

    Args:
        game: the game.
        policies: role -> the policy that sits there.
    """
    payoffs = expected(game.graph, game.chances(policies))
    return dict(zip(game.graph.roles, payoffs.tolist(), strict=True))


def outcome_shares(game: GameTree, mine: Policy, theirs: Policy) -> Outcome:
    """How often ``mine`` wins (payoff > 0), draws (0) and loses, averaged over where it sits.

    Args:
        game: the game.
        mine: sits in each role in turn.
        theirs: sits in all the others.
    """
    graph, shares = game.graph, np.zeros(3)
    mine_P, theirs_P = game.everywhere(mine), game.everywhere(theirs)
    end = graph.point_of_node < 0
    for role in range(len(graph.roles)):
        come = reach(graph, np.where(graph.role_of_slot == role, mine_P, theirs_P))[end]
        payoff = graph.payoffs[end, role]
        shares += [come[payoff > 0].sum(), come[payoff == 0].sum(), come[payoff < 0].sum()]
    win, draw, loss = (shares / len(graph.roles)).tolist()
    return Outcome(win=win, draw=draw, loss=loss)


def nash_conv(game: GameTree, policy: Policy) -> float:
    """What all roles together could gain by each responding alone: 0 only at an equilibrium.

    Source: Lanctot et al., A unified game-theoretic approach, 2017, arXiv:1711.00832.
    """
    return nash_conv_of(game.graph, game.everywhere(policy))


def exploitability(game: GameTree, policy: Policy) -> float:
    """NashConv over the number of seats; the payoff that a seat loses to a best response."""
    return nash_conv(game, policy) / len(game.graph.roles)


def optimal_move_rate(game: GameTree, policy: Policy) -> float | None:
    """How likely a policy makes an optimal move where it matters.

    Each decision point whose moves differ in minimax value counts once, with the probability that
    the policy gives to the moves of the largest value.

    Returns:
        None where the game is not two-player zero-sum with perfect information, or where no
        decision matters.
    """
    graph = game.graph
    if len(graph.roles) != 2 or not graph.zero_sum or not graph.perfect_information:
        return None
    best_P, worth_P = minimax(graph)
    first = np.flatnonzero(np.diff(graph.point_of_slot, prepend=-1))
    spread = np.maximum.reduceat(worth_P, first) - np.minimum.reduceat(worth_P, first)
    matters = spread > SAME
    if not matters.any():
        return None
    right = np.add.reduceat(np.where(best_P > 0, game.everywhere(policy), 0.0), first)
    return float(right[matters].mean())


def evaluate(
    game: GameTree, policy: Policy, illegal_probability: Mapping[tuple[str, str], float]
) -> GameReport:
    """Everything that can be said about a policy that sits in every seat.

    Args:
        game: the game.
        policy: probabilities over legal moves.
        illegal_probability: (role, view) -> what the model puts on anything but a legal move; a
            policy restricted to legal moves would hide it.

    Raises:
        ArenaError: a decision point is missing in either, or is not a distribution.
    """
    keys = [(point.role, point.view) for point in game.graph.points]
    missing = [key for key in keys if key not in illegal_probability]
    if missing:
        raise ArenaError(f"no illegal probability for {missing[0][0]} at {missing[0][1]!r}")
    best = game.optimal
    random = uniform_policy(game) if game.graph.zero_sum else None
    return GameReport(
        arena=game.game.name,
        optimal_move_rate=optimal_move_rate(game, policy),
        exploitability=exploitability(game, policy),
        illegal_probability=sum(illegal_probability[key] for key in keys) / len(keys),
        vs_random=outcome_shares(game, policy, random) if random else None,
        vs_optimal=outcome_shares(game, policy, best) if best else None,
    )
