"""Where a policy stands among its own snapshots, and the alarms on what goes wrong in a league."""

import math
from collections.abc import Iterator, Sequence

from msgspec import Struct

from legos.league.payoffs import PayoffTable, Tally
from legos.league.pool import Snapshot
from legos.league.ratings import Rating, ratings
from legos.losses.alarms import PAGE, Alarm

__all__ = ["Standing", "guard_alarms", "standing"]

SURE = 1.96  # standard errors between a score and 1/2
ENOUGH = 50.0  # plays from which shares of them say something
ALL_DRAWS, ONE_SEAT = 0.95, 0.8


class Standing(Struct, frozen=True, kw_only=True):
    """The newest snapshot, with the plays of the policy since it was taken, among all members."""

    rating: Rating | None = None  # None: it has met nobody yet
    best: Snapshot | None = None  # the snapshot with the highest rating
    fall: float = 0.0  # Elo below the best; 0 where the intervals of both overlap
    forgotten: tuple[str, ...] = ()  # members that an earlier snapshot beat, and that beat it now
    draws: float = 0.0  # share of its plays
    seat_gap: float = 0.0  # largest difference of its score between two roles
    plays: float = 0.0

    def metrics(self) -> dict[str, float]:
        """The numbers under flat names."""
        found = {"fall": self.fall, "forgotten": float(len(self.forgotten))}
        if self.plays:
            found |= {"draw_share": self.draws, "seat_gap": self.seat_gap}
        if self.rating is not None:
            found |= {"elo": self.rating.elo}
            found |= {"elo_low": self.rating.low, "elo_high": self.rating.high}
        return found


def standing(table: PayoffTable, snapshots: Sequence[Snapshot]) -> Standing:
    """Compare the newest snapshot with the others, and with the bots that it has met.

    Args:
        table: the plays.
        snapshots: those of one policy, oldest first.
    """
    if not snapshots:
        return Standing()
    newest = snapshots[-1]
    own = {each.name: each for each in snapshots}
    members = [name for name in table.members if name in own or "@" not in name]
    met = _met(table, newest.name, members)
    if len(met) < 2:
        return Standing()
    rated = {each.member: each for each in ratings(table, members=met)}
    now = rated[newest.name]
    best = max((own[name] for name in met if name in own), key=lambda one: rated[one.name].elo)
    top = rated[best.name]
    of_newest = [(name, table.tally(newest.name, name)) for name in met if name != newest.name]
    total = sum((tally for _, tally in of_newest), Tally())
    return Standing(
        rating=now,
        best=best,
        fall=top.elo - now.elo if top.low > now.high else 0.0,
        forgotten=tuple(
            name
            for name, tally in of_newest
            if _sure(tally) < 0
            and any(_sure(table.tally(other.name, name)) > 0 for other in snapshots[:-1])
        ),
        draws=total.draws / total.plays if total.plays else 0.0,
        seat_gap=_seat_gap(table, newest.name, [name for name, _ in of_newest]),
        plays=total.plays,
    )


def guard_alarms(found: Standing, collapse_elo: float, prefix: str) -> Iterator[Alarm]:
    """The alarms of a standing.

    Args:
        found: the standing.
        collapse_elo: fall of the rating that counts as a collapse.
        prefix: what the names of its metrics begin with.
    """
    if found.fall >= collapse_elo and found.best is not None:
        yield _alarm(
            "error",
            f"{prefix}fall",
            f"the rating is {found.fall:.0f} Elo below that of {found.best.name}, and their "
            "intervals are apart; lower learning_rate, raise ema_kl_coef, or meet more of the past "
            "(--play.opponents past=0.5)",
        )
    if found.forgotten:
        yield _alarm(
            "warning",
            f"{prefix}forgotten",
            f"the policy loses to {', '.join(found.forgotten)}, which an earlier snapshot beat; "
            "meet more of the past (--play.opponents hard=0.5)",
        )
    if found.plays < ENOUGH:
        return
    if found.draws >= ALL_DRAWS:
        yield _alarm(
            "warning",
            f"{prefix}draw_share",
            f"{found.draws:.0%} of the plays against others are draws, from which little can be "
            "learned; vary the starts, or meet other opponents",
        )
    if found.seat_gap >= ONE_SEAT:
        yield _alarm(
            "warning",
            f"{prefix}seat_gap",
            f"the score differs by {found.seat_gap:.2f} between two roles: the seat decides the "
            "play, and not who sits there",
        )


def _alarm(level: str, metric: str, text: str) -> Alarm:
    return Alarm(
        level="error" if level == "error" else "warning", metric=metric, text=f"{text} ({PAGE})"
    )


def _met(table: PayoffTable, start: str, members: Sequence[str]) -> list[str]:
    """The members that plays connect with one, over others; itself included."""
    found, left = [start], [name for name in members if name != start]
    for name in found:
        near = [other for other in left if table.tally(name, other).plays]
        found += near
        left = [other for other in left if other not in near]
    return found


def _sure(tally: Tally) -> float:
    """1 where a score is above 1/2 beyond its noise, -1 where it is below, 0 otherwise."""
    if not tally.plays:
        return 0.0
    noise = SURE * math.sqrt((tally.wins + tally.losses) / 4.0) / tally.plays
    return math.copysign(1.0, tally.score - 0.5) if abs(tally.score - 0.5) > noise else 0.0


def _seat_gap(table: PayoffTable, member: str, others: Sequence[str]) -> float:
    """The largest difference of a member's score between two of its roles."""
    scores = [
        tally.score
        for role in table.roles(member)
        if (tally := sum((table.tally(member, o, role) for o in others), Tally())).plays >= ENOUGH
    ]
    return max(scores) - min(scores) if scores else 0.0
