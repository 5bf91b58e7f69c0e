"""Where a policy stands among its own snapshots, and the alarms on what goes wrong in a league."""

import math
from collections.abc import Iterator, Sequence

import numpy as np
from msgspec import Struct, structs

from legos.league.payoffs import PayoffTable, Tally
from legos.league.pool import Pool, Snapshot
from legos.league.ratings import Rating, pool_ratings, ratings
from legos.losses.alarms import PAGE, Alarm, Level

__all__ = ["Standing", "guard_alarms", "standing"]

SURE = 1.96  # standard errors between a score and 1/2
FALLEN = 0.995  # level of the interval of a fall, whose best snapshot is the best of several
ENOUGH = 50.0  # plays from which shares of them say something
ALL_DRAWS, ONE_SEAT = 0.95, 0.8
LONGER, LESS_ENTROPY = 2.0, 0.1  # times those of the best snapshot
AGREED = 0.5  # of the largest reward
PAST = "--play.opponents hard=0.5 --play.opponents self=0.5"


class Standing(Struct, frozen=True, kw_only=True):
    """The newest snapshot, with the plays of the policy since it was taken, among all members."""

    rating: Rating | None = None  # None: it has met nobody yet
    best: Snapshot | None = None  # the snapshot with the highest rating
    fall: float = 0.0  # Elo below the best, see ``standing``; 0 where chance explains it
    forgotten: tuple[str, ...] = ()  # members that an earlier snapshot beat, and that beat it now
    draws: float = 0.0  # share of its plays
    seat_gap: float = 0.0  # largest difference of its score between two roles
    plays: float = 0.0
    length: float = 1.0  # tokens of a seat, over those at the best snapshot
    entropy: float = 1.0  # entropy, over that at the best snapshot
    collusion: float = 0.0  # reward of a seat with the newest policies alone, above that with older

    def metrics(self) -> dict[str, float]:
        """The numbers under flat names."""
        found = {"fall": self.fall, "forgotten": float(len(self.forgotten))}
        if self.plays:
            found |= {"draw_share": self.draws, "seat_gap": self.seat_gap}
            found |= {"length": self.length, "entropy": self.entropy, "collusion": self.collusion}
        if self.rating is not None:
            found |= {"elo": self.rating.elo}
            found |= {"elo_low": self.rating.low, "elo_high": self.rating.high}
        return found


def standing(
    table: PayoffTable,
    pool: Pool,
    policy: str,
    *,
    unit: float | None = None,
    length: float = 0.0,
    entropy: float = 0.0,
) -> Standing:
    """Compare the newest snapshot with the others, and with the bots that it has met.

    Where rewards differ in size, most are far below the unit, and differences of ratings are small
    at any strength. So the fall is that of plays for the usual reward, its root mean square.

    Args:
        table: the plays.
        pool: the snapshots.
        policy: whose newest snapshot it is.
        unit: the largest reward, as for ``ratings``.
        length: tokens of a seat in a play of the newest step; 0: not known.
        entropy: entropy of the policy in that step, nats.
    """
    snapshots = pool.of(policy)
    if not snapshots:
        return Standing()
    newest = snapshots[-1]
    own = {each.name: each for each in snapshots}
    together = Standing(collusion=_collusion(table, pool, newest) / (unit or 1.0))
    rated = {each.member: each for each in pool_ratings(table, pool, policy, unit=unit)}
    if (now := rated.get(newest.name)) is None:
        return together
    top = next(each for each in rated.values() if each.member in own)  # the strongest are first
    best, met = own[top.member], [*rated]
    below = ratings(table, met, anchor=top.member, level=FALLEN, unit=unit)
    [lost] = [each for each in below if each.member == newest.name]
    others = [name for name in met if name != newest.name]
    total = sum((table.tally(newest.name, name) for name in others), Tally())
    apart = 1 - np.eye(len(met))
    every = Tally(*np.einsum("ij,ijk->k", apart, table.sums(met)).tolist())
    usual = math.sqrt(every.squares / every.plays) or 1.0
    return structs.replace(
        together,
        rating=now,
        best=best,
        fall=-lost.elo * (unit or usual) / usual if lost.high < 0 else 0.0,
        forgotten=tuple(
            name
            for name in others
            if _sure(table, newest.name, name) < 0
            and any(_sure(table, other.name, name) > 0 for other in snapshots[:-1])
        ),
        draws=total.draws / total.plays if total.plays else 0.0,
        seat_gap=_seat_gap(table, newest.name, others),
        plays=total.plays,
        length=length / best.length if best is not newest and best.length else 1.0,
        entropy=entropy / best.entropy if best is not newest and best.entropy else 1.0,
    )


def guard_alarms(found: Standing, collapse_elo: float, prefix: str) -> Iterator[Alarm]:
    """The alarms of a standing.

    Args:
        found: the standing.
        collapse_elo: fall of the rating that counts as a collapse.
        prefix: what the names of its metrics begin with.
    """

    def alarm(metric: str, text: str, level: Level = "warning") -> Alarm:
        return Alarm(level=level, metric=f"{prefix}{metric}", text=f"{text} ({PAGE})")

    best = "" if found.best is None else found.best.name
    if best and found.fall >= collapse_elo:
        text = (
            f"the rating is {found.fall:.0f} Elo below that of {best}, which chance does not "
            f"explain; lower learning_rate, raise ema_kl_coef, or meet more of the past ({PAST})"
        )
        yield alarm("fall", text, "error")
    if found.forgotten:
        yield alarm(
            "forgotten",
            f"the policy loses to {', '.join(found.forgotten)}, which an earlier snapshot beat; "
            f"meet more of the past ({PAST})",
        )
    if found.collusion >= AGREED:
        yield alarm(
            "collusion",
            f"seats of the newest weights earn {found.collusion:.2f} of the largest reward more "
            "with each other than with earlier versions: they may have agreed on what only they "
            "understand; look at the plays (legos watch), and meet more of the past",
        )
    if found.plays < ENOUGH:
        return
    if best and found.length >= LONGER:
        yield alarm(
            "length",
            f"a seat takes {found.length:.1f} times the tokens that it took at {best}, which is "
            "no weaker; lower generation.max_tokens, or charge for length",
        )
    if best and found.entropy <= LESS_ENTROPY:
        yield alarm(
            "entropy",
            f"the entropy is {found.entropy:.2g} of that at {best}, which is no weaker: unless the "
            "game is solved, raise entropy_coef or ema_kl_coef",
        )
    if found.draws >= ALL_DRAWS:
        yield alarm(
            "draw_share",
            f"{found.draws:.0%} of the plays against others are draws, from which little can be "
            "learned; vary the starts, or meet other opponents",
        )
    if found.seat_gap >= ONE_SEAT:
        yield alarm(
            "seat_gap",
            f"the score differs by {found.seat_gap:.2f} between two roles: the seat decides the "
            "play, and not who sits there",
        )


def _sure(table: PayoffTable, member: str, other: str) -> float:
    """1 where a member gains from another beyond the noise, -1 where it loses, 0 otherwise."""
    mine, theirs = table.tally(member, other), table.tally(other, member)
    gain, noise = mine.reward - theirs.reward, SURE * math.sqrt(2 * (mine.squares + theirs.squares))
    return math.copysign(1.0, gain) if abs(gain) > noise else 0.0


def _collusion(table: PayoffTable, pool: Pool, newest: Snapshot) -> float:
    """Mean reward of a seat with the newest policies, above that with earlier versions of them.

    0 where there are few plays of either, and in every game of constant sum.
    """
    together = Tally()
    apart = Tally()
    for other in pool.in_engines:
        sides = table.tally(newest.name, other.name) + table.tally(other.name, newest.name)
        if other.step == newest.step:
            together += sides
        else:
            apart += sides
    enough = min(together.plays, apart.plays) >= 2 * ENOUGH  # counted from both sides
    return max(together.mean - apart.mean, 0.0) if enough else 0.0


def _seat_gap(table: PayoffTable, member: str, others: Sequence[str]) -> float:
    """The largest difference of a member's score between two of its roles."""
    scores = [
        tally.score
        for role in table.roles(member, others)
        if (tally := sum((table.tally(member, o, role) for o in others), Tally())).plays >= ENOUGH
    ]
    return max(scores) - min(scores) if scores else 0.0
