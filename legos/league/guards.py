"""Where a policy stands among its own snapshots, and the alarms on what goes wrong in a league."""

import math
from collections.abc import Iterable, Sequence

import numpy as np
from msgspec import Struct, structs

from legos.league.payoffs import PayoffTable, Tally
from legos.league.pool import Pool, Snapshot
from legos.league.ratings import Rating, pool_ratings, ratings
from legos.losses.alarms import Alarm, Rule, alarms

SURE = 1.96  # standard errors between a score and 1/2
FALLEN = 0.995  # level of the interval of a fall, whose best snapshot is the best of several
ENOUGH = 50.0  # plays from which shares of them say something
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
    collusion: float = 0.0  # share of the usual reward, see ``_collusion``

    def metrics(self) -> dict[str, float]:
        """The numbers under flat names, without those that few plays do not show."""
        found = {"fall": self.fall, "forgotten": float(len(self.forgotten))}
        found |= {"collusion": self.collusion}
        if self.plays >= ENOUGH:
            found |= {"draw_share": self.draws, "seat_gap": self.seat_gap}
            found |= {"length": self.length, "entropy": self.entropy}
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

    Where gains differ in size, most are far below the unit, and differences of ratings are small at
    any strength. So the fall is that of plays for the usual gain, the root mean square.

    Args:
        table: the plays.
        pool: the snapshots.
        policy: whose newest snapshot it is.
        unit: as for ``ratings``.
        length: tokens of a seat in a play of the newest step; 0: not known.
        entropy: entropy of the policy in that step, nats.
    """
    snapshots = pool.of(policy)
    if not snapshots:
        return Standing()
    newest = snapshots[-1]
    own = {each.name: each for each in snapshots}
    together = Standing(collusion=_collusion(table, pool, newest))
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
    usual = math.sqrt(every.gains / every.plays) or 1.0
    return structs.replace(
        together,
        rating=now,
        best=best,
        fall=-lost.elo * (unit or usual) / usual if lost.high < 0 else 0.0,
        forgotten=forgotten(table, [each.name for each in snapshots], others),
        draws=total.draws / total.plays if total.plays else 0.0,
        seat_gap=_seat_gap(table, newest.name, others),
        plays=total.plays,
        length=length / best.length if length and best is not newest and best.length else 1.0,
        entropy=entropy / best.entropy if best is not newest and best.entropy else 1.0,
    )


def forgotten(
    table: PayoffTable, snapshots: Sequence[str], others: Iterable[str]
) -> tuple[str, ...]:
    """Those of some members that an earlier snapshot of a policy beat, and that beat the last one.

    Args:
        table: the plays.
        snapshots: names of the policy's snapshots, oldest first.
        others: the members.
    """
    *earlier, newest = snapshots
    return tuple(
        name
        for name in others
        if _sure(table, newest, name) < 0 and any(_sure(table, one, name) > 0 for one in earlier)
    )


def guard_rules(
    collapse_elo: float, *, best: str = "the best snapshot", lost_to: Sequence[str] = ()
) -> tuple[Rule, ...]:
    """The levels of the metrics of a standing.

    Args:
        collapse_elo: fall of the rating that counts as a collapse.
        best: name of the best snapshot.
        lost_to: names of the forgotten members; none: they are not known.
    """
    fall = (
        f"the rating is that many Elo below that of {best}, which chance does not explain; lower "
        f"learning_rate, raise ema_kl_coef, or meet more of the past ({PAST})"
    )
    lost = (
        f"the policy loses to {', '.join(lost_to) or 'members'}, which an earlier snapshot beat; "
        f"meet more of the past ({PAST})"
    )
    agreed = (
        "seats of the newest weights earn that share of the usual reward more with each other than "
        "with earlier versions: they may have agreed on what only they understand; look at the "
        "plays (legos watch), and meet more of the past"
    )
    longer = (
        f"a seat takes that many times the tokens that it took at {best}, which is no weaker; "
        "lower generation.max_tokens, or charge for length"
    )
    certain = (
        f"the entropy is that part of the entropy at {best}, which is no weaker: unless the game "
        "is solved, raise entropy_coef or ema_kl_coef"
    )
    even = (
        "that share of the plays against others are draws, from which little can be learned; vary "
        "the starts, or meet other opponents"
    )
    seat = (
        "the score differs by that much between two roles: the seat decides the play, and not who "
        "sits there"
    )
    return (
        Rule("fall", collapse_elo, collapse_elo, fall),
        Rule("forgotten", 1.0, math.inf, lost),
        Rule("draw_share", 0.95, math.inf, even),
        Rule("seat_gap", 0.8, math.inf, seat),
        Rule("length", 2.0, math.inf, longer),
        Rule("entropy", 0.1, -math.inf, certain, below=True),
        Rule("collusion", 0.5, math.inf, agreed),
    )


def guard_alarms(found: Standing, collapse_elo: float, prefix: str) -> list[Alarm]:
    """The alarms of a standing, with the names of the members that they are about.

    Args:
        found: the standing.
        collapse_elo: fall of the rating that counts as a collapse.
        prefix: what the names of its metrics begin with.
    """
    best = {} if found.best is None else {"best": found.best.name}
    rules = guard_rules(collapse_elo, lost_to=found.forgotten, **best)
    return alarms({f"{prefix}{k}": v for k, v in found.metrics().items()}, [prefix], rules)


def metric_prefix(arena: str, *, several: bool) -> str:
    """What the names of the metrics of an arena's league begin with.

    Args:
        arena: the arena.
        several: whether the run has others too.
    """
    return f"league/{arena}/" if several else "league/"


def guard_prefixes(metrics: Iterable[str]) -> list[str]:
    """What the names of the metrics of each standing among some metrics begin with."""
    prefixes = (name.removesuffix("forgotten") for name in metrics if name.endswith("/forgotten"))
    return [prefix for prefix in prefixes if prefix.startswith("league/")]


def _sure(table: PayoffTable, member: str, other: str) -> float:
    """1 where a member gains from another beyond the noise, -1 where it loses, 0 otherwise."""
    mine, theirs = table.tally(member, other), table.tally(other, member)
    both, gain = mine + theirs, mine.reward - theirs.reward
    noise = SURE * math.sqrt(2 * both.gains * both.plays / (both.tasks or 1.0))
    return math.copysign(1.0, gain) if abs(gain) > noise else 0.0


def _collusion(table: PayoffTable, pool: Pool, newest: Snapshot) -> float:
    """Mean reward of a seat with the newest policies, above that with earlier versions of them.

    It is a share of the usual reward, the root mean square. 0 where there are few plays of either,
    and in every game of constant sum.
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
    if not enough or together.mean <= apart.mean:
        return 0.0
    usual = math.sqrt((together.squares / together.plays + apart.squares / apart.plays) / 2)
    return (together.mean - apart.mean) / usual


def _seat_gap(table: PayoffTable, member: str, others: Sequence[str]) -> float:
    """The largest difference of a member's score between two of its roles."""
    scores = [
        tally.score
        for role in table.roles(member, others)
        if (tally := sum((table.tally(member, o, role) for o in others), Tally())).plays >= ENOUGH
    ]
    return max(scores) - min(scores) if scores else 0.0
