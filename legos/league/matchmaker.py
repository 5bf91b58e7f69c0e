"""The matchmaker of a league: opponents by shares, from the policy's own past and from outside."""

from bisect import bisect
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, permutations
from typing import Any

import numpy as np

from legos.arena.matchmaker import ArenaSeats
from legos.credit.means import with_children
from legos.errors import ArenaError
from legos.league.cast import Cast, is_adapter
from legos.league.payoffs import Account, PayoffTable, result
from legos.league.pool import Pool, Snapshot
from legos.league.ratings import pool_ratings, predicted_scores
from legos.protocols import Matchmaker, Seat, Seating
from legos.records.episode import Episode, Rollout, Task, mean_of
from legos.records.seeds import mix, uniforms

SELF, EXPLOITER, EXPLOITERS = "self", "exploiter", "exploiters"
BY_SCORE = ("hard", "even", "matched")
DRAWS = (SELF, "past", "recent", *BY_SCORE, EXPLOITER, EXPLOITERS)
"""Opponents that the league finds itself; any other name is that of a member (``Cast``)."""
_STREAM = 0x1EA6E  # random stream of a task from which its seats are drawn
AHEAD, MOST_AHEAD = 2048, 4  # tasks whose draws are made together, and blocks that are kept


def with_adapters(opponents: Iterable[str]) -> list[str]:
    """The opponents whose adapters have to be loaded: no draws of the league, bots or servers."""
    return [name for name in opponents if name not in DRAWS and is_adapter(name)]


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
    matched     a snapshot, by x (1 - x), where x is the score that the ratings at this step predict
    exploiter   a second policy, which only learns to beat the first; both learn
    exploiters  a snapshot of that policy, each equally often
    others      a bot, the base model, an adapter or a server, by its name
    ==========  ================================================================================

    Source: prioritised fictitious self-play, Vinyals et al., Nature 575, 2019 (``hard``, ``even``).

    Attributes:
        pool: the snapshots.
        table: what members have earned against each other; the policy's own plays count for its
            newest snapshot.
        unit: the largest gain so far, without its sign; it counts as a whole win.
        cast: seats members by name.
        every: steps from one snapshot to the next.
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
        every: int = 10,
    ) -> None:
        """Make a matchmaker with an empty pool.

        Args:
            shares: opponent -> share of the tasks.
            cast: seats members by name.
            ends: the shares at the end of the run, which are approached linearly; None: the same.
            seed: seed of the draws.
            snapshots: maximum number of snapshots of each policy.
            recent: number of newest snapshots that ``recent`` is drawn from.
            every: steps from one snapshot to the next, where the training loop takes them.
        """
        self.pool, self.progress = Pool(snapshots), 0.0
        self.cast, self.every = cast, every
        self._ends = shares if ends is None else ends
        self._shares, self._recent = shares, recent
        self._stream = mix(seed, _STREAM)
        self._ahead: dict[int, list[list[float]]] = {}  # draws of blocks of tasks
        self._names = list(dict.fromkeys([*shares, *self._ends]))
        self.table, self.unit = PayoffTable(), 0.0
        self._met: dict[str, list[float]] = {}  # opponent -> plays, sum of scores, of a step
        self._tokens = 0  # that opponents sampled since the step before
        self._step: object = None  # progress and pool for which the following are made
        self._shares_up_to: list[float] = []  # of the opponents
        self._rivals: dict[tuple[str, str, str], _Rivals] = {}  # by what ``_rivals_of`` takes
        self._mirror = _Company({})  # the arena's seats, for which the following are made
        self._trained: list[str] = []  # roles
        self._policies: list[str] = []  # that they have
        self._companies: dict[object, _Company] = {}  # by the learner and its rivals
        self._seated: dict[int | None, _Company] = {}  # by first_play, of plays under way
        self._recorded: tuple[int | None, _Company | None] = (None, None)  # newest: first_play
        self._counted: int | None = None  # the newest in the table: first_play

    @property
    def named(self) -> list[str]:
        """The members among the opponents whose adapters have to be loaded."""
        return with_adapters(self._names)

    def pools(self, policy: str) -> bool:
        """Whether a policy of the arena may be met as a snapshot."""
        return policy != EXPLOITER or EXPLOITERS in self._names

    def add(self, snapshot: Snapshot) -> None:
        """Add a snapshot, which is live in the engines, to the pool; the best by rating stays."""
        rated = pool_ratings(self.table, self.pool, snapshot.policy, unit=self.unit or None)
        self.pool.add(snapshot, {each.member: each.elo for each in rated})
        self._companies = {}  # some are with snapshots that have left

    @property
    def playing(self) -> set[str]:
        """The adapters, by their names in the engines, that answer in the plays under way."""
        seats = (seat for each in self._seated.values() for seat in each.seats.values())
        return {seat.adapter for seat in seats}

    def seats(self, arena: Seating, task: Task, seed: int) -> Mapping[str, Seat]:
        """The seats of one play: those of its task, or by its seed where no run has drawn it."""
        number = task.first_play
        if number is None:  # a spawned play
            [which], [learns], [draw] = self._draws(seed, 1)
            return self._drawn(arena.seats(task), which, learns, draw).seats
        company = self._seated.get(number)
        if company is None:
            block, place = divmod(number, AHEAD)
            which, learns, draw = self._ahead.get(block) or self._drawn_ahead(block)
            seats = arena.seats(task)
            company = self._drawn(seats, which[place], learns[place], draw[place])
            self._seated[number] = company
        return company.seats

    def evaluation(self) -> Matchmaker:
        """The seats of the arena, so that all evaluations of a run play the same."""
        return ArenaSeats()

    def _drawn(
        self, seats: Mapping[str, Seat], which: float, learns: float, draw: float
    ) -> "_Company":
        """Who plays a task, in place of the policies in some of the arena's seats.

        Args:
            seats: the arena's.
            which: draws the opponent, in [0, 1).
            learns: draws the role that learns.
            draw: draws a snapshot.
        """
        if self._step != (at := (self.progress, self.pool.added)):
            self._step, self._rivals = at, {}
            self._shares_up_to = _bounds(self._shares_now())
        if self._mirror.seats != seats:  # rarely
            self._begin(seats)
        if len(seats) < 2 or not self._trained:
            return self._mirror
        opponent = self._names[bisect(self._shares_up_to, which)]
        if opponent == SELF:
            return self._mirror
        learner = self._trained[int(learns * len(self._trained))]
        mine = seats[learner].policy or ""
        rivals = tuple([self._rival(opponent, mine, policy, draw) for policy in self._policies])
        company = self._companies.get((learner, rivals))
        if company is None:
            made = dict(seats)
            for role in self._trained:
                if role != learner:
                    place = self._policies.index(seats[role].policy or "")
                    made[role] = self._seat(seats[role], *rivals[place])
            company = self._companies[learner, rivals] = _Company(made)
        return company

    def _begin(self, seats: Mapping[str, Seat]) -> None:
        """Forget who was seated where the arena's seats were others."""
        self._mirror, self._companies = _Company(seats), {}
        policies = {role: seat.policy for role, seat in seats.items() if seat.policy is not None}
        self._trained, self._policies = [*policies], [*dict.fromkeys(policies.values())]

    def _drawn_ahead(self, block: int) -> list[list[float]]:
        """The draws of a block of tasks; those of few blocks are kept."""
        if len(self._ahead) == MOST_AHEAD:
            self._ahead.clear()
        found = self._ahead[block] = self._draws(block * AHEAD, AHEAD)
        return found

    def _draws(self, first: int, count: int) -> list[list[float]]:
        """Three random numbers in [0, 1) of each task, as three lists."""
        seeds = np.arange(count, dtype=np.uint64) + np.uint64(first) ^ np.uint64(self._stream)
        counters = np.arange(3, dtype=np.uint64)
        return uniforms(seeds, counters[:, None]).astype(float).tolist()

    def _shares_now(self) -> list[float]:
        """The share of each opponent at this time of the run."""
        pairs = ((self._shares.get(n, 0.0), self._ends.get(n, 0.0)) for n in self._names)
        return [start + self.progress * (end - start) for start, end in pairs]

    def _rival(self, opponent: str, mine: str, policy: str, draw: float) -> tuple[str, str]:
        """Who sits in the place of a policy: a name, and of a snapshot that in the engines."""
        if (key := (opponent, mine, policy)) not in self._rivals:
            self._rivals[key] = self._rivals_of(*key)
        bounds, rivals = self._rivals[key]
        return rivals[bisect(bounds, draw)]

    def _rivals_of(self, opponent: str, mine: str, policy: str) -> "_Rivals":
        """Who sits in a policy's place against ``mine``, and how often; ``ArenaError``: nobody."""
        if opponent == EXPLOITER or opponent not in DRAWS:
            return [1.0], [(opponent, "")]
        snapshots = self.pool.of(EXPLOITER if opponent == EXPLOITERS else policy)
        if opponent == "recent":
            snapshots = snapshots[-self._recent :]
        if not self.pool.members:
            raise ArenaError(
                f"opponent {opponent!r} is a snapshot of the policy, and nothing takes any here: "
                "play through legos.training_loop or `legos train`, which do"
            )
        if not snapshots:
            return [1.0], [("", "")]  # the policy itself
        weights = self._weights(opponent, mine, snapshots)
        return _bounds(weights), [(s.name, s.live) for s in snapshots]

    def _seat(self, seat: Seat, name: str, adapter: str) -> Seat:
        """The seat of a rival in the place of a policy."""
        if adapter:
            return replace(seat, name=name, adapter=adapter, trainable=False)
        if name == EXPLOITER:
            return replace(seat, name=EXPLOITER, adapter=EXPLOITER)
        return self.cast.seat(name, seat) if name else seat

    def _weights(self, opponent: str, mine: str, snapshots: Sequence[Snapshot]) -> list[float]:
        """How often each snapshot is drawn against a policy."""
        if opponent not in BY_SCORE or not (own := self.pool.of(mine)):
            return [1.0] * len(snapshots)
        if opponent == "matched":
            scores = predicted_scores(self.table, snapshots, own, unit=self.unit or None)
        else:
            scores = [self.score(mine, snapshot) for snapshot in snapshots]
        found = [(1 - x) ** 2 if opponent == "hard" else x * (1 - x) for x in scores]
        return found if sum(found) > 0 else [1.0] * len(snapshots)

    def score(self, policy: str, against: Snapshot) -> float:
        """A policy's score against a snapshot: 1/2 + gain / (2 unit); 1/2 at first.

        The gain is half the difference of the rewards, as in ratings. The score is the mean over
        the plays since the newest two snapshots, and over one win and one loss, which decide until
        there are plays.
        """
        gain, plays = 0.0, 2.0
        for newest in self.pool.of(policy)[-2:]:
            if newest != against:
                more, gained = self.table.gain(newest.name, against.name)
                plays, gain = plays + more, gain + gained
        return 0.5 + gain / (2 * (self.unit or 1.0) * plays)

    def record(self, episode: Episode) -> None:
        """Count a play that ended, once for each two players of whom one is trained."""
        number, rollouts = episode.task.first_play, episode.rollouts
        before = self._recorded[1] if self._recorded[0] == number else None  # of the same task
        company = self._seated.pop(number, before)
        self._recorded = number, company
        if company is None:  # it was drawn in another process
            seats = [(each.role, each.seat, each.policy) for each in rollouts]
            company = self._companies.setdefault(tuple(seats), _Company({}))
        others = [each for each in rollouts if each.policy is None]
        if others and company.fixed is None:
            company.fixed = self.cast.brought_by_arena(episode.task)
        fixed = company.fixed or ()
        spawned = [r for e in with_children(episode.children) for r in e.rollouts if not r.policy]
        others += [r for r in spawned if self._kind(r.seat) in {"past", *self._names} - {EXPLOITER}]
        self._tokens += sum(each.num_tokens for each in others if each.role not in fixed)
        if episode.error or episode.void:
            return
        if company.counted != self.pool.added:
            company.counted, company.accounts = self.pool.added, self._accounts(rollouts, fixed)
        if not company.accounts:  # nobody to compare the policy with
            return
        again, self._counted = number is not None and self._counted == number, number
        returns, gave_up = episode.returns, episode.gave_up
        for mine, other, met, account in company.accounts:
            earned, lost = mean_of(returns, mine), mean_of(returns, other)
            met[0] += 1
            met[1] += 1 - result(earned, lost) / 2
            if account is not None:
                self.unit = max(self.unit, abs(account.count(earned, lost, gave_up, again=again)))

    def _accounts(self, rollouts: Sequence[Rollout], fixed: Container[str]) -> "list[_Counted]":
        """Where a play counts: once for each two players of whom one is trained."""
        sides: dict[tuple[str, bool], list[str]] = {}  # player, whether it is trained -> its roles
        for each in rollouts:
            if each.role not in fixed:
                sides.setdefault((each.seat, each.policy is not None), []).append(each.role)
        found: list[_Counted] = []
        apart = [pair for pair in permutations(sides, 2) if pair[0][1]]
        itself = [(one, one) for one in sides if self.cast.arena.utility != "zero_sum"]
        for mine, other in apart or itself:
            kind = self._kind(other[0])
            met = [0.0, 0.0] if mine == other else self._met.setdefault(kind, [0.0, 0.0])
            a, b, account = self._member(mine[0]), self._member(other[0]), None
            if self.pool.of(mine[0]) and self.pool.of(other[0]) if other[1] else a != b:
                others = () if other[1] else sides[other]  # where the other is ``mine`` too
                account = self.table.account(a, b, sides[mine], others)
            found.append((sides[mine], sides[other], met, account))
        return found

    def _member(self, seat: str) -> str:
        """Who a seat counts as in the table: a trained policy as its newest snapshot."""
        snapshots = self.pool.of(seat)
        return snapshots[-1].name if snapshots else seat

    def _kind(self, seat: str) -> str:
        """What an opponent is called in metrics: all snapshots of a policy have one name."""
        policy, at, _ = seat.partition("@")
        if at and self.pool.of(policy):
            return EXPLOITERS if policy == EXPLOITER else "past"
        return seat

    def metrics(self) -> dict[str, float]:
        """Since the last call: plays against each opponent, the policy's score, their tokens."""
        met = {name: both for name, both in self._met.items() if both[0]}
        found = {f"plays_{name}": plays for name, (plays, _) in met.items()}
        found |= {f"score_{name}": points / plays for name, (plays, points) in met.items()}
        found["opponent_tokens"] = float(self._tokens)
        self._tokens = 0
        for both in met.values():
            both[:] = 0.0, 0.0  # in place, as accounts refer to them
        return found

    def seating(self) -> dict[str, Any]:
        """The state, without plays that decide no draw: the table grows as long as the run."""
        among = self.pool.members if {*BY_SCORE} & {*self._names} else []
        state = self.state([each.name for each in among])
        return {**state, "pool": {**state["pool"], "taken": {}}, "met": {}, "tokens": 0}

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
            "met": {name: [*both] for name, both in self._met.items() if both[0]},
            "tokens": self._tokens,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take back what ``state`` returned; of a run without opponents, an empty pool."""
        if not state:
            return
        self.pool.restore(state["pool"])
        self.table.restore(state["table"])
        self.unit, self.progress = state["unit"], state["progress"]
        self._met = {name: [*map(float, both)] for name, both in state["met"].items()}
        self._tokens = state["tokens"]
        self._step = self._counted = None
        self._begin({})  # what was made before counts in tables that are replaced


_Rivals = tuple[Sequence[float], Sequence[tuple[str, str]]]
"""Bounds of each in [0, 1); its name, and that of a snapshot in the engines."""
_Counted = tuple[Sequence[str], Sequence[str], list[float], Account | None]
"""Roles of a trained player and of another one, plays and scores of the step, and in the table."""


class _Company:
    """Who plays together, and where their plays count.

    Attributes:
        seats: their seats.
        fixed: roles of players that the arena brings, which are no opponents; None: not known yet.
        counted: number of snapshots that had been added when the accounts were made.
        accounts: where a play counts.
    """

    def __init__(self, seats: Mapping[str, Seat]) -> None:
        self.seats = seats
        self.fixed: set[str] | None = None
        self.counted = -1
        self.accounts: list[_Counted] = []


def _bounds(weights: Sequence[float]) -> list[float]:
    """The ends of parts of [0, 1) with these weights; ``bisect`` finds that of a draw."""
    ends = list(accumulate(weights))
    return [*(end / ends[-1] for end in ends[:-1]), 1.0]
