"""The matchmaker of a league: opponents by shares, from the policy's own past and from outside."""

from bisect import bisect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, permutations
from typing import Any

from legos.arena.matchmaker import ArenaSeats
from legos.league.cast import Cast, is_adapter
from legos.league.payoffs import PayoffTable
from legos.league.pool import Pool, Snapshot
from legos.protocols import Matchmaker, Seat, Seating
from legos.records.episode import Episode, Task
from legos.records.seeds import absorb

__all__ = ["DRAWS", "EXPLOITER", "EXPLOITERS", "LeagueSeats"]

SELF, EXPLOITER, EXPLOITERS = "self", "exploiter", "exploiters"
DRAWS = (SELF, "past", "recent", "hard", "even", EXPLOITER, EXPLOITERS)
"""Opponents that the league finds itself; any other name is that of a member (``Cast``)."""
_STREAM = 0x1EA6E  # random stream of a task from which its seats are drawn
_MASK = (1 << 21) - 1  # bits of one draw


class LeagueSeats(Matchmaker):
    """Draws an opponent for each task, and the seat that the policy takes against it.

    Everything is drawn from the number of the task, so all plays of a task that are compared with
    each other have the same players, and a resumed run draws the same. The policy takes each seat
    equally often. In an arena with several policies one of them learns in a play against another
    opponent, and in every other seat sits an earlier version of the policy of that seat.

    ==========  ================================================================================
    opponent    who sits in the other seats
    ==========  ================================================================================
    self        the policy itself; all seats learn
    past        a snapshot, each equally often
    recent      one of the newest snapshots
    hard        a snapshot, by (1 - x)^2, where x is the policy's score against it
    even        a snapshot, by x (1 - x)
    exploiter   a second policy, which only learns to beat the first; both learn
    exploiters  a snapshot of that policy, each equally often
    others      a bot, the base model, an adapter or a server, by its name
    ==========  ================================================================================

    Source: prioritised fictitious self-play, Vinyals et al., Nature 575, 2019 (``hard``, ``even``).

    Attributes:
        pool: the snapshots.
        table: what members have earned against each other; the policy's own plays count for its
            newest snapshot.
        unit: the largest reward so far, without its sign; it counts as a whole win.
        progress: share of the run that is done, for shares that change during it.
    """

    def __init__(
        self,
        shares: Mapping[str, float],
        cast: Cast,
        *,
        ends: Mapping[str, float] | None = None,
        seed: int = 0,
        snapshots: int = 8,
        recent: int = 3,
    ) -> None:
        """Make a matchmaker with an empty pool.

        Args:
            shares: opponent -> share of the tasks.
            cast: seats members by name.
            ends: the shares at the end of the run, which are approached linearly; None: the same.
            seed: seed of the draws.
            snapshots: maximum number of snapshots of each policy.
            recent: number of newest snapshots that ``recent`` is drawn from.
        """
        self.pool = Pool(snapshots)
        self.table = PayoffTable()
        self.unit = 0.0
        self.progress = 0.0
        self.cast = cast
        self._ends = shares if ends is None else ends
        self._shares, self._recent = shares, recent
        self._stream = absorb(absorb(0, seed), _STREAM)
        self._names = list(dict.fromkeys([*shares, *self._ends]))
        self._met: dict[str, tuple[int, float]] = {}  # opponent -> plays, sum of scores, of a step
        self._tokens = 0  # that opponents sampled since the step before
        self._step: object = None  # progress and pool for which the following are made
        self._bounds: dict[tuple[str, str], list[float]] = {}  # of an opponent, for a policy
        self._scores: dict[str, list[float]] = {}  # of a policy against its snapshots
        self._rivals: dict[tuple[str, str], tuple[Seat, Seat]] = {}  # by member and role
        self._seated: dict[int | None, Mapping[str, Seat]] = {}  # by first_play, of plays under way

    @property
    def named(self) -> list[str]:
        """The members among the opponents whose adapters have to be loaded."""
        return [name for name in self._names if name not in DRAWS and is_adapter(name)]

    def pools(self, policy: str) -> bool:
        """Whether a policy of the arena may be met as a snapshot."""
        return policy != EXPLOITER or EXPLOITERS in self._names

    @property
    def playing(self) -> set[str]:
        """The adapters, by their names in the engines, that answer in the plays under way."""
        return {seat.adapter for seats in self._seated.values() for seat in seats.values()}

    def seats(self, arena: Seating, task: Task, seed: int) -> Mapping[str, Seat]:
        """The seats of one play: those of its task, or by its seed where no run has drawn it."""
        if task.first_play is None:  # a spawned play
            return self._drawn(arena, task, seed)
        if task.first_play not in self._seated:
            self._seated[task.first_play] = self._drawn(arena, task, task.first_play)
        return self._seated[task.first_play]

    def evaluation(self) -> Matchmaker:
        """The seats of the arena, so that all evaluations of a run play the same."""
        return ArenaSeats()

    def _drawn(self, arena: Seating, task: Task, number: int) -> Mapping[str, Seat]:
        seats = arena.seats(task)
        trained = [role for role, seat in seats.items() if seat.policy is not None]
        if len(seats) < 2 or not trained:
            return seats
        bits = absorb(self._stream, number) >> 1  # 63 random bits, 21 for each draw
        if self._step != (at := (self.progress, self.pool.added)):
            self._step, self._bounds, self._scores, self._rivals = at, {}, {}, {}
        opponent = self._names[self._place("", "", self._weights_now, _draw(bits))]
        if opponent == SELF:
            return seats
        learner = trained[int(_draw(bits >> 21) * len(trained))]
        draw = _draw(bits >> 42)
        return {
            role: seat
            if role == learner or seat.policy is None
            else self._rival(opponent, seat, draw)
            for role, seat in seats.items()
        }

    def _weights_now(self) -> list[float]:
        """The share of each opponent at this time of the run."""
        pairs = ((self._shares.get(n, 0.0), self._ends.get(n, 0.0)) for n in self._names)
        return [start + self.progress * (end - start) for start, end in pairs]

    def _place(
        self, opponent: str, policy: str, weights: Callable[[], Sequence[float]], draw: float
    ) -> int:
        """The place of a draw in [0, 1) on a line that weights divide, which a step makes once."""
        bounds = self._bounds.get((opponent, policy))
        if bounds is None:
            bounds = self._bounds[opponent, policy] = list(accumulate(weights()))
        return min(bisect(bounds, draw * bounds[-1]), len(bounds) - 1)

    def _rival(self, opponent: str, seat: Seat, draw: float) -> Seat:
        """The seat of an opponent in the place of a policy; the draw is in [0, 1)."""
        if opponent == EXPLOITER:
            return replace(seat, name=EXPLOITER, adapter=EXPLOITER)
        if opponent not in DRAWS:
            return self.cast.seat(opponent, seat)
        policy = EXPLOITER if opponent == EXPLOITERS else seat.policy or ""
        snapshots = self.pool.of(policy)
        if not snapshots:
            return seat
        if opponent == "recent":
            snapshots = snapshots[-self._recent :]
        place = self._place(opponent, policy, lambda: self._weights(opponent, snapshots), draw)
        drawn = snapshots[place]
        instead, rival = self._rivals.get((drawn.name, seat.role), (None, seat))
        if instead is not seat:
            rival = replace(seat, name=drawn.name, adapter=drawn.live, trainable=False)
            self._rivals[drawn.name, seat.role] = seat, rival
        return rival

    def _weights(self, opponent: str, snapshots: Sequence[Snapshot]) -> list[float]:
        """How often each snapshot is drawn."""
        if opponent not in ("hard", "even"):
            return [1.0] * len(snapshots)
        policy = snapshots[0].policy
        if policy not in self._scores:
            self._scores[policy] = [self.score(snapshot) for snapshot in snapshots]
        scores = self._scores[policy]
        found = [(1 - x) ** 2 if opponent == "hard" else x * (1 - x) for x in scores]
        return found if sum(found) > 0 else [1.0] * len(snapshots)

    def score(self, against: Snapshot) -> float:
        """The policy's score against a snapshot: 1/2 + gain / (2 unit); 1/2 at first.

        The gain is half the difference of the rewards, as in ratings. The score is the mean over
        the plays since the newest two snapshots, and over one win and one loss, which decide until
        there are plays.
        """
        gain, plays = 0.0, 2.0
        for name in (each.name for each in self.pool.of(against.policy)[-2:]):
            mine, theirs = (
                self.table.tally(name, against.name),
                self.table.tally(against.name, name),
            )
            if name != against.name:
                gain, plays = gain + (mine.reward - theirs.reward) / 2, plays + mine.plays
        return 0.5 + gain / (2 * (self.unit or 1.0) * plays)

    def record(self, episode: Episode) -> None:
        """Count a play that ended, once for each two players of whom one is trained."""
        self._seated.pop(episode.task.first_play, None)
        self._tokens += sum(each.num_tokens for each in episode.rollouts if each.policy is None)
        if episode.error or episode.void:
            return
        roles: dict[tuple[str, bool], list[str]] = {}  # player, whether it is trained -> its roles
        for rollout in episode.rollouts:
            roles.setdefault((rollout.seat, rollout.policy is not None), []).append(rollout.role)
        returns = {side: episode.mean_return(played) for side, played in roles.items()}
        for mine, other in permutations(roles, 2):
            if not mine[1]:
                continue
            earned, lost = returns[mine], returns[other]
            self.unit = max(self.unit, abs(earned), abs(lost))
            self._count(other[0], earned, lost)
            a, b = self._member(mine[0]), self._member(other[0])
            if self.pool.of(mine[0]) and self.pool.of(other[0]) if other[1] else a != b:
                self.table.count(a, b, episode, roles[mine], (earned, lost))
                if not other[1]:
                    self.table.count(b, a, episode, roles[other], (lost, earned))

    def _member(self, seat: str) -> str:
        """Who a seat counts as in the table: a trained policy as its newest snapshot."""
        snapshots = self.pool.of(seat)
        return snapshots[-1].name if snapshots else seat

    def _count(self, other: str, earned: float, lost: float) -> None:
        policy, at, _ = other.partition("@")
        kind = other
        if at and self.pool.of(policy):
            kind = EXPLOITERS if policy == EXPLOITER else "past"
        plays, points = self._met.get(kind, (0, 0.0))
        self._met[kind] = plays + 1, points + (earned > lost) + (earned == lost) / 2

    def metrics(self) -> dict[str, float]:
        """Since the last call: plays against each opponent, the policy's score, their tokens."""
        (met, self._met), (tokens, self._tokens) = (self._met, {}), (self._tokens, 0)
        found = {f"plays_{name}": float(number) for name, (number, _) in met.items()}
        found |= {f"score_{name}": points / number for name, (number, points) in met.items()}
        return found | {"opponent_tokens": float(tokens)}

    def seating(self) -> dict[str, Any]:
        """The state, without plays that decide no draw: the table grows as long as the run."""
        by_score = {"hard", "even"}.intersection({**self._shares, **self._ends})
        among = [each.name for each in self.pool.members] if by_score else []
        return {**self.state(among), "met": {}, "tokens": 0}

    def state(self, among: Sequence[str] | None = None) -> dict[str, Any]:
        """Pool, table, unit, progress, and what was met since the last step.

        Args:
            among: the members whose plays it contains; None: all.
        """
        return {
            "pool": self.pool.state(),
            "table": self.table.state(among),
            "unit": self.unit,
            "progress": self.progress,
            "met": self._met,
            "tokens": self._tokens,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take back what ``state`` returned; of a run without opponents, an empty pool."""
        if not state:
            return
        self.pool.restore(state["pool"])
        self.table.restore(state["table"])
        self.unit = state["unit"]
        self.progress = state["progress"]
        self._met = {name: (plays, points) for name, (plays, points) in state["met"].items()}
        self._tokens = state["tokens"]
        self._step = None


def _draw(bits: int) -> float:
    """The lowest of some random bits as a number in [0, 1)."""
    return (bits & _MASK) / (_MASK + 1)
