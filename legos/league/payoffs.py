"""Pay-offs between members, from which ratings, opponents and tournaments are computed."""

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from itertools import chain, product
from math import nan
from operator import add
from typing import Any

import numpy as np
from msgspec import Struct, structs

from legos.errors import ArenaError
from legos.games.exact import GameTree, Policy
from legos.games.graph import FloatArray
from legos.games.solve import SAME, reach

NUM_SUMS = 8  # fields of a tally


class Tally(Struct, frozen=True):
    """Results of plays from one side; fractions where they are probabilities."""

    wins: float = 0.0  # plays with more reward than the other side
    draws: float = 0.0  # plays with the same reward
    losses: float = 0.0  # plays with less reward
    reward: float = 0.0  # sum of the rewards
    squares: float = 0.0  # sum of the squared rewards
    forfeits: float = 0.0  # plays that this side forfeited; wins, draws and losses contain them
    gains: float = 0.0  # sum of the squared gains, see ``Account.count``
    again: float = 0.0  # plays of a task of which another play was counted before

    @property
    def plays(self) -> float:
        """Number of plays."""
        return self.wins + self.draws + self.losses

    @property
    def tasks(self) -> float:
        """Number of tasks of the plays, which is that of independent results."""
        return self.plays - self.again

    @property
    def score(self) -> float:
        """Mean score of a play, a draw being half a win; nan without plays."""
        return (self.wins + self.draws / 2) / self.plays if self.plays else nan

    @property
    def mean(self) -> float:
        """Mean reward of a play; nan without plays."""
        return self.reward / self.plays if self.plays else nan

    def __add__(self, other: "Tally") -> "Tally":
        return Tally(*map(add, structs.astuple(self), structs.astuple(other)))


class PayoffTable:
    """Counts plays of members against each other, by the role of the side that counts.

    Attributes:
        exact: whether the counts are probabilities of one play and not sampled plays.
        sides: how often a play is counted: from both sides, or, where a member has one role and the
            other all others, from the side of the first (1).
    """

    def __init__(self, *, exact: bool = False, sides: int = 2) -> None:
        """Make an empty table."""
        self.exact, self.sides = exact, sides
        # Of each pair, by the role of the first: the fields of ``Tally``, which change in place.
        self._cells: dict[tuple[str, str], dict[str, list[float]]] = {}
        self._members: dict[str, None] = {}

    @property
    def members(self) -> tuple[str, ...]:
        """Everybody who has met somebody, in the order of their first plays."""
        return tuple(self._members)

    def account(
        self, mine: str, theirs: str, roles: Sequence[str], others: Sequence[str] = ()
    ) -> "Account":
        """What counts plays of two members, of which there must be at least one.

        Args:
            mine: the member that plays are counted for.
            theirs: whom it meets.
            roles: the roles of ``mine``, each of which gets an equal part of a play.
            others: those of ``theirs``, for which plays are counted too; none: they are not.
        """
        sides = ((mine, theirs, roles, True), (theirs, mine, others, False))
        return Account(
            [
                (self._sums(one, two, role), role, 1 / len(played), own)
                for one, two, played, own in sides
                for role in played
            ],
            self.sides,
        )

    def put(self, mine: str, theirs: str, role: str, plays: Tally) -> None:
        """Count plays whose results are known together, from the side of ``mine``."""
        sums = self._sums(mine, theirs, role)
        sums[:] = map(add, sums, structs.astuple(plays))

    def _sums(self, mine: str, theirs: str, role: str) -> list[float]:
        """What is summed up of a member in a role, against another."""
        cell = self._cells.get((mine, theirs))
        if cell is None:
            cell = self._cells[mine, theirs] = {}
            if mine != theirs:
                self._members |= {mine: None, theirs: None}
        return cell.setdefault(role, [0.0] * NUM_SUMS)

    def tally(self, mine: str, theirs: str, role: str | None = None) -> Tally:
        """Results of a member against another, in one role or in all; empty if they never met."""
        cell = self._cells.get((mine, theirs), {})
        if role is not None:
            return Tally(*cell.get(role, ()))
        return Tally(*(sum(column, 0.0) for column in zip(*cell.values(), strict=True)))

    def gain(self, mine: str, theirs: str) -> tuple[float, float]:
        """Number of plays of a member against another, and the sum of its gains in them.

        A gain is half the difference of the rewards.
        """
        plays = gain = 0.0
        for pair, sign in (((mine, theirs), 0.5), ((theirs, mine), -0.5)):
            for wins, draws, losses, reward, *_ in self._cells.get(pair, {}).values():
                gain += sign * reward
                plays += (wins + draws + losses) * (sign > 0)
        return plays, gain

    def sums(self, members: Sequence[str]) -> FloatArray:
        """[M, M, 8] the fields of the tally of each member (row) against each (column)."""
        cells = [self._cells.get(pair) for pair in product(members, members)]
        nothing = [0.0] * NUM_SUMS
        found = [
            [*map(sum, zip(*cell.values(), strict=True))] if cell else nothing for cell in cells
        ]
        return np.array(found).reshape(len(members), len(members), NUM_SUMS)

    def roles(self, member: str, others: Sequence[str]) -> tuple[str, ...]:
        """The roles in which a member has met others."""
        cells = (self._cells.get((member, other), {}) for other in others)
        return tuple(dict.fromkeys(role for cell in cells for role in cell))

    def forfeits(self, member: str, others: Iterable[str]) -> float:
        """Plays against others that a member has forfeited."""
        return sum(self.tally(member, other).forfeits for other in others)

    def connected(self, member: str, among: Sequence[str]) -> list[str]:
        """Those of ``among`` whom plays connect with a member, over others; itself first."""
        found, left = [member], [name for name in among if name != member]
        for name in found:
            near = [other for other in left if (name, other) in self._cells]
            found += near
            left = [other for other in left if other not in near]
        return found

    def scores(self, members: Sequence[str], unit: float | None = None) -> FloatArray:
        """[M, M] mean score of each member (row) against each (column); nan: they never met.

        Args:
            members: the members.
            unit: the gain that counts as a whole win, as for ``ratings``; None: every win does.
        """
        if unit is not None:
            return 0.5 + self.rewards(members) / (2 * unit)
        return self._matrix(members, lambda tally: tally.score)

    def rewards(self, members: Sequence[str]) -> FloatArray:
        """[M, M] mean reward of each member (row) against each (column); nan: they never met."""
        return self._matrix(members, lambda tally: tally.mean)

    def _matrix(self, members: Sequence[str], value: Callable[[Tally], float]) -> FloatArray:
        found = [value(self.tally(mine, theirs)) for mine in members for theirs in members]
        return np.array(found).reshape(len(members), len(members))

    def state(self, among: Sequence[str] | None = None) -> dict[str, Any]:
        """The table as JSON values: names once, and a row of numbers for each cell.

        Args:
            among: the members whose plays with each other it contains; None: all.
        """
        cells = {
            pair: self._cells[pair]
            for pair in (self._cells if among is None else product(among, among))
            if pair in self._cells
        }
        members = {name: at for at, name in enumerate(dict.fromkeys(chain(*cells)))}
        roles = list(dict.fromkeys(role for cell in cells.values() for role in cell))
        rows = [
            [
                members[mine],
                members[theirs],
                roles.index(role),
                *sums,
            ]
            for (mine, theirs), cell in cells.items()
            for role, sums in cell.items()
        ]
        return {"exact": self.exact, "members": list(members), "roles": roles, "rows": rows}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take back what ``state`` returned."""
        self.exact = state["exact"]
        self._cells, self._members = {}, {}
        for mine, theirs, role, *numbers in state["rows"]:
            names = state["members"][mine], state["members"][theirs], state["roles"][role]
            if len(numbers) == 6:  # of an earlier version; too large but in zero-sum games
                numbers.append(numbers[4])
            self.put(*names, Tally(*map(float, numbers)))


class Account:
    """Counts plays of two members, in roles that are always the same; a table makes it."""

    __slots__ = ("_cells", "_sides")

    def __init__(self, cells: Sequence[tuple[list[float], str, float, bool]], sides: int) -> None:
        """Take what is summed up of each role.

        Args:
            cells: the sums, the role, its part of a play, and whether it is the first member's.
            sides: those of the table.
        """
        self._cells, self._sides = cells, sides

    def count(
        self, mine: float, theirs: float, gave_up: Container[str] = (), *, again: bool = False
    ) -> float:
        """Count a play, and return the gain of the first member.

        A gain is half the difference of the rewards, or the reward, where plays are counted from
        one side.

        Args:
            mine: mean return of the roles of the first member.
            theirs: that of the roles of the other.
            gave_up: roles that forfeited the play.
            again: whether the play before was one of the same task.
        """
        outcome = result(mine, theirs)
        gain = mine if self._sides == 1 else 0.0 if outcome == 1 else (mine - theirs) / 2
        for sums, role, share, own in self._cells:
            reward = mine if own else theirs
            sums[outcome if own else 2 - outcome] += share
            sums[3] += share * reward
            sums[4] += share * reward * reward
            if role in gave_up:
                sums[5] += share
            sums[6] += share * gain * gain
            sums[7] += share * again
        return gain


def result(mine: float, theirs: float) -> int:
    """What a play is to the side with the first reward: 0 a win, 1 a draw, 2 a loss."""
    return 1 if abs(mine - theirs) <= SAME else 0 if mine > theirs else 2


def exact_payoffs(tree: GameTree, policies: Mapping[str, Policy]) -> PayoffTable:
    """The table of every member against every member, itself too, without a play.

    Each cell has the probabilities of the results of one play. In games of more than two roles the
    other member has all other roles, and its reward is the mean of theirs.

    Args:
        tree: the game.
        policies: member -> its policy, which plays every role.

    Raises:
        ArenaError: the game has one role alone, or a policy does not fit the game.
    """
    graph = tree.graph
    if len(graph.roles) < 2:
        raise ArenaError(
            f"members of game {tree.game.name!r} cannot meet: it has one role; compare their "
            "expected payoffs instead"
        )
    end = np.setdiff1d(np.arange(len(graph.start)), graph.parent)
    mine_NR = graph.payoffs[end]
    theirs_NR = (mine_NR.sum(axis=1, keepdims=True) - mine_NR) / (len(graph.roles) - 1)
    gap_NR = mine_NR - theirs_NR
    results = [gap_NR > SAME, np.abs(gap_NR) <= SAME, gap_NR < -SAME]  # as ``result`` says
    nobody_NR = np.zeros_like(mine_NR)  # forfeits
    gain_NR = gap_NR / 2 if len(graph.roles) == 2 else mine_NR
    counts = np.stack([*results, mine_NR, mine_NR**2, nobody_NR, gain_NR**2])  # [7, ends, R]
    flat = {member: tree.everywhere(policy) for member, policy in policies.items()}
    table = PayoffTable(exact=True)
    for mine, mine_P in flat.items():
        for theirs, theirs_P in flat.items():
            for seat, role in enumerate(graph.roles):
                chances = np.where(graph.role_of_slot == seat, mine_P, theirs_P)
                sums = counts[:, :, seat] @ reach(graph, chances)[end]
                table.put(mine, theirs, role, Tally(*sums.tolist()))
    return table
