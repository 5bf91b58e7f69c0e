"""The leagues of a run, as its newest checkpoint has them, and the people who play against it."""

from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from legos.config.schema import RunConfig
from legos.league.cast import PERSON
from legos.league.guards import forgotten, guard_prefixes, guard_rules, metric_prefix
from legos.league.payoffs import PayoffTable, Tally
from legos.league.pool import Pool
from legos.league.ratings import pool_ratings, strongest_cycle
from legos.losses.alarms import alarms
from legos.records.names import BASE, adapter_name, frozen_name
from legos.run.checkpoint import MANIFEST, STATE, newest_whole, read_state
from legos.run.folder import RunFolder
from legos.run.metrics import MetricTable
from legos.run.people import lasting_base, personal_plays


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredLeague:
    """The snapshots that an arena's plays meet, and what was earned in them."""

    arena: str
    step: int  # of the checkpoint
    pool: Pool
    table: PayoffTable
    prefix: str  # of the names of its metrics
    collapse_elo: float  # fall of the rating that counts as a collapse
    shares: Mapping[str, float]  # opponent -> its share of the plays, by the settings
    unit: float | None = None  # gain that counts as a whole win; None: every win does
    people: Sequence[str] = ()  # ``person:NAME`` of those whose plays count
    met: Sequence[str] = ()  # snapshots that people have played against

    def with_people(self, options: Mapping[str, Any], model: str) -> "StoredLeague":
        """The same with the kept plays of people against snapshots, bots and the base model.

        They count where the arena, its options and the weights are the same. A snapshot that has
        met nobody yet, as the last one of a run, cannot be rated: what people have played against
        it counts for the one before, as do the plays of the policy before the snapshot was taken.

        Args:
            options: options of the arena.
            model: the base model.

        Raises:
            CheckpointError: the file of the plays is damaged.
        """
        members, table = self._by_lasting_name(model), self.table
        unit, people, met = self.unit, dict[str, None](), dict[str, None]()
        for kept in personal_plays(self.arena, options):
            sides, episode = kept.sides, kept.result
            names = {who: members.get(who, who) for who in sides}
            persons = [who for who in sides if who.startswith(PERSON)]
            if len(sides) != 2 or not persons or not {*sides} <= {*members, *persons}:
                continue
            table = deepcopy(table) if table is self.table else table
            (mine, played), (theirs, others) = sides.items()
            returns = episode.mean_return(played), episode.mean_return(others)
            account = table.account(names[mine], names[theirs], played, others)
            gain = account.count(*returns, episode.gave_up)
            unit = unit and max(unit, abs(gain))
            people |= dict.fromkeys(persons)
            met |= {name: None for name in names.values() if name in self.pool.taken.values()}
        return replace(self, table=table, unit=unit, people=[*people], met=[*met])

    def _by_lasting_name(self, model: str) -> dict[str, str]:
        """The members whom people can have met, by their names in the plays of people."""
        met = self.table.members
        found = {lasting_base(model) if name == BASE else name: name for name in met}
        newest = {self.pool.of(each.policy)[-1].name for each in self.pool.members}
        for digest, name in self.pool.taken.items():
            counted = [name] if name in met else []
            if name in newest and not counted:
                of = adapter_name(name)
                counted = [one for one in self.pool.taken.values() if adapter_name(one) == of]
                counted = sorted((one for one in counted if one in met), key=_step)
            if counted:
                found[frozen_name(digest)] = counted[-1]
        return found

    def figures(self, metrics: MetricTable) -> dict[str, Any]:
        """Ratings, pay-offs and guards as JSON values.

        Args:
            metrics: those of the run's steps.

        Returns:
            ``arena``; ``step``; ``ratings``: member -> ``rating`` (Elo), ``low`` and ``high`` (its
            interval of 95 %), ``plays``, ``forfeits``, and of a snapshot its ``step`` and ``until``
            which step the policy's plays count for it (None: it is the newest), the strongest
            first; ``matrix``: member -> member -> ``score``, ``reward``, ``plays``, ``wins``,
            ``draws``, ``losses`` and ``forfeits`` of the first against the second, and the same of
            each of its ``roles``, where they have met; ``cycle``: the members of the strongest
            cycle; ``alone``: snapshots that have met nobody yet, and people who have met none of
            the members; ``guards``: metric -> ``value`` at the ``step`` that was judged last (None:
            there are too few plays), ``limit``, whether values ``below`` it are bad, ``alarm``
            ("warning", "error" or None), and ``members`` that are forgotten.
        """
        snapshots = [each.name for each in self.pool.members]
        rated = pool_ratings(self.table, self.pool, unit=self.unit, also=self.met)
        order = [each.member for each in rated]
        return {
            "arena": self.arena,
            "step": self.step,
            "ratings": {
                each.member: {
                    "rating": each.elo,
                    "low": each.low,
                    "high": each.high,
                    "plays": round(each.plays, 6),  # several seats have parts of a play each
                    "forfeits": self.table.forfeits(each.member, order),
                    **self._steps_of(each.member),
                }
                for each in rated
            },
            "matrix": {
                mine: {
                    theirs: self._cell(mine, theirs)
                    for theirs in order
                    if theirs != mine and self.table.tally(mine, theirs).plays
                }
                for mine in order
            },
            "cycle": strongest_cycle(self.table, order, unit=self.unit),
            "alone": [name for name in (*snapshots, *self.people) if name not in order],
            "guards": dict(self._guards(metrics, order)),
        }

    def _cell(self, mine: str, theirs: str) -> dict[str, Any]:
        """What a member has from another, in all roles and in each of them."""
        table = self.table
        tallies = {role: table.tally(mine, theirs, role) for role in table.roles(mine, [theirs])}
        roles = {role: _numbers(tally) for role, tally in tallies.items() if tally.plays}
        return {**_numbers(table.tally(mine, theirs)), "roles": roles}

    def _steps_of(self, member: str) -> dict[str, int | None]:
        """When a snapshot was taken, and the next one; None of other members."""
        taken = {*self.pool.taken.values(), *(each.name for each in self.pool.members)}
        step = _step(member) if member in taken else None
        of = (_step(name) for name in taken if adapter_name(name) == adapter_name(member))
        later = (other for other in of if step is not None and other > step)
        return {"step": step, "until": min(later, default=None)}

    def _guards(
        self, metrics: MetricTable, order: Sequence[str]
    ) -> Iterator[tuple[str, dict[str, Any]]]:
        """What the policies' newest standings are judged by, in the order of the rules."""
        rules = guard_rules(self.collapse_elo)
        for prefix in guard_prefixes(metrics):
            if not prefix.startswith(self.prefix):
                continue
            step = max((step for step, _ in metrics.points(f"{prefix}forgotten")), default=0)
            names = [f"{prefix}{rule.metric}" for rule in rules]
            values = {name: dict(metrics.points(name)).get(step) for name in names}
            sounding = {alarm.metric: alarm.level for alarm in alarms(values, [prefix], rules)}
            for name, rule in zip(names, rules, strict=True):
                lost = self._forgotten(prefix, order) if rule.metric == "forgotten" else []
                yield (
                    name.removeprefix(self.prefix),
                    {
                        "value": values[name],
                        "limit": rule.warning,
                        "below": rule.below,
                        "step": step,
                        "alarm": sounding.get(name),
                        "members": lost if sounding.get(name) else [],
                    },
                )

    def _forgotten(self, prefix: str, order: Sequence[str]) -> list[str]:
        """The members that a policy has forgotten, by the plays up to the checkpoint."""
        policy = prefix.removeprefix(self.prefix).rstrip("/") or self.pool.members[0].policy
        own = [each.name for each in self.pool.of(policy) if each.name in order]
        return [*forgotten(self.table, own, order)] if own else []


def _numbers(tally: Tally) -> dict[str, float]:
    """Results of plays from one side."""
    names = ("plays", "wins", "draws", "losses", "forfeits")
    counts = {name: round(getattr(tally, name), 6) for name in names}
    return {"score": tally.score, "reward": tally.mean, **counts}


def _step(snapshot: str) -> int:
    """The step of a snapshot, from its name."""
    return int(snapshot.rpartition("@")[2])


def stored_leagues(run: RunFolder, config: RunConfig) -> list[StoredLeague]:
    """The leagues of a run's arenas, with people; none where it has no opponents.

    Args:
        run: the run.
        config: its settings.

    Raises:
        CheckpointError: it has no intact checkpoint, or the file of people's plays is damaged.
    """
    place = newest_whole(run.checkpoints, only=STATE)
    step, leagues = _leagues(place, (place / MANIFEST).read_text())
    found: list[StoredLeague] = []
    arenas = zip(leagues.items(), config.arenas.values(), strict=False)
    for (arena, stored), settings in arenas:
        if stored is None:
            continue
        pool, table, unit = stored
        league = StoredLeague(
            arena=arena,
            step=step,
            prefix=metric_prefix(arena, several=len(config.arenas) > 1),
            collapse_elo=config.league.collapse_elo,
            pool=pool,
            table=table,
            unit=unit,
            shares=settings.play.opponents,
        )
        found.append(league.with_people(settings.play.options, config.model))
    return found


@lru_cache(maxsize=2)  # the page asks every few seconds, and the table grows as long as the run
def _leagues(
    place: Path, manifest: str
) -> tuple[int, Mapping[str, tuple[Pool, PayoffTable, float | None] | None]]:
    """The step of a checkpoint; and arena -> pool, table and unit of its league, not to change.

    Args:
        place: the checkpoint.
        manifest: the text of its manifest, which differs where a file does.
    """
    del manifest
    state = read_state(place)
    return state["trainer"]["step"], {
        arena: _league(parts["matchmaker"]) for arena, parts in state["arenas"].items()
    }


def _league(stored: Mapping[str, Any]) -> tuple[Pool, PayoffTable, float | None] | None:
    """What a matchmaker has stored; None: it is that of no league."""
    if "pool" not in stored:
        return None
    pool, table = Pool(0), PayoffTable()
    pool.restore(stored["pool"])
    table.restore(stored["table"])
    return pool, table, stored["unit"] or None
