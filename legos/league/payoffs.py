"""Pay-offs between members, from which ratings, opponents and tournaments are computed."""

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from math import nan
from typing import Any

import numpy as np
from msgspec import Struct, structs

from legos.errors import ArenaError
from legos.games.exact import GameTree, Policy
from legos.games.graph import FloatArray
from legos.games.solve import reach
from legos.records.episode import Episode

__all__ = ["PayoffTable", "Tally", "exact_payoffs"]


class Tally(Struct, frozen=True):
    """Results of plays from one side; fractions where they are probabilities."""

    wins: float = 0.0  # plays with more reward than the other side
    draws: float = 0.0  # plays with the same reward
    losses: float = 0.0  # plays with less reward
    reward: float = 0.0  # sum of the rewards
    squares: float = 0.0  # sum of the squared rewards
    forfeits: float = 0.0  # plays that this side forfeited; wins, draws and losses contain them

    @property
    def plays(self) -> float:
        """Number of plays."""
        return self.wins + self.draws + self.losses

    @property
    def score(self) -> float:
        """Mean score of a play, a draw being half a win; nan without plays."""
        return (self.wins + self.draws / 2) / self.plays if self.plays else nan

    @property
    def mean(self) -> float:
        """Mean reward of a play; nan without plays."""
        return self.reward / self.plays if self.plays else nan

    def __add__(self, other: "Tally") -> "Tally":
        return Tally(
            self.wins + other.wins,
            self.draws + other.draws,
            self.losses + other.losses,
            self.reward + other.reward,
            self.squares + other.squares,
            self.forfeits + other.forfeits,
        )


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
        self._cells: dict[tuple[str, str], dict[str, Tally]] = {}

    @property
    def members(self) -> tuple[str, ...]:
        """Everybody who has met somebody, in the order of their first plays."""
        return tuple(dict.fromkeys(member for pair in self._cells for member in pair))

    def add(
        self,
        mine: str,
        theirs: str,
        role: str,
        reward: float,
        other: float,
        *,
        forfeit: bool = False,
        share: float = 1.0,
    ) -> None:
        """Count one play from one side; the caller adds the other side too, see ``sides``.

        Args:
            mine: the member that the play is counted for.
            theirs: whom it met.
            role: the role of ``mine``.
            reward: reward of ``mine``.
            other: reward of ``theirs``.
            forfeit: whether ``mine`` forfeited the play.
            share: part of a play that it counts as.
        """
        won, lost = share * (reward > other), share * (reward < other)
        earned = share * reward, share * reward * reward
        self.put(mine, theirs, role, Tally(won, share - won - lost, lost, *earned, share * forfeit))

    def count(
        self,
        mine: str,
        theirs: str,
        episode: Episode,
        roles: Sequence[str],
        returns: tuple[float, float],
    ) -> None:
        """Count a play from the side of a member.

        Args:
            mine: the member that the play is counted for.
            theirs: whom it met.
            episode: the play, which ended.
            roles: the roles of ``mine``, each of which gets an equal part of the play.
            returns: the mean return of these roles, and that of the roles of ``theirs``.
        """
        for role in roles:
            gave_up, share = episode.forfeited(role), 1 / len(roles)
            self.add(mine, theirs, role, *returns, forfeit=gave_up, share=share)

    def put(self, mine: str, theirs: str, role: str, plays: Tally) -> None:
        """Count plays whose results are known together, from the side of ``mine``."""
        cell = self._cells.setdefault((mine, theirs), {})
        before = cell.get(role)
        cell[role] = plays if before is None else before + plays

    def tally(self, mine: str, theirs: str, role: str | None = None) -> Tally:
        """Results of a member against another, in one role or in all; empty if they never met."""
        cell = self._cells.get((mine, theirs), {})
        return sum(cell.values(), Tally()) if role is None else cell.get(role, Tally())

    def roles(self, member: str) -> tuple[str, ...]:
        """The roles in which a member has played."""
        cells = (cell for (mine, _), cell in self._cells.items() if mine == member)
        return tuple(dict.fromkeys(role for cell in cells for role in cell))

    def connected(self, member: str, among: Sequence[str]) -> list[str]:
        """Those of ``among`` whom plays connect with a member, over others; itself first."""
        found, left = [member], [name for name in among if name != member]
        for name in found:
            near = [other for other in left if self.tally(name, other).plays]
            found += near
            left = [other for other in left if other not in near]
        return found

    def forget(self, member: str) -> None:
        """Drop all plays of a member."""
        self._cells = {pair: cell for pair, cell in self._cells.items() if member not in pair}

    def scores(self, members: Sequence[str]) -> FloatArray:
        """[M, M] mean score of each member (row) against each (column); nan: they never met."""
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
        members = {each: at for at, each in enumerate(self.members if among is None else among)}
        cells = {
            pair: self._cells[pair]
            for pair in (self._cells if among is None else product(among, among))
            if pair in self._cells
        }
        roles = list(dict.fromkeys(role for cell in cells.values() for role in cell))
        rows = [
            [
                members[mine],
                members[theirs],
                roles.index(role),
                *structs.astuple(t),
            ]
            for (mine, theirs), cell in cells.items()
            for role, t in cell.items()
        ]
        return {"exact": self.exact, "members": list(members), "roles": roles, "rows": rows}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take back what ``state`` returned."""
        self.exact = state["exact"]
        self._cells = {}
        for mine, theirs, role, *numbers in state["rows"]:
            names = state["members"][mine], state["members"][theirs], state["roles"][role]
            self.put(*names, Tally(*map(float, numbers)))


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
    close_NR = np.isclose(mine_NR, theirs_NR, rtol=0.0, atol=1e-9)
    won_NR, lost_NR = (mine_NR > theirs_NR) & ~close_NR, (mine_NR < theirs_NR) & ~close_NR
    counts = np.stack([won_NR, close_NR, lost_NR, mine_NR, mine_NR**2])  # [5, ends, R]
    flat = {member: tree.everywhere(policy) for member, policy in policies.items()}
    table = PayoffTable(exact=True)
    for mine, mine_P in flat.items():
        for theirs, theirs_P in flat.items():
            for seat, role in enumerate(graph.roles):
                chances = np.where(graph.role_of_slot == seat, mine_P, theirs_P)
                sums = counts[:, :, seat] @ reach(graph, chances)[end]
                table.put(mine, theirs, role, Tally(*sums.tolist()))
    return table
