"""The leagues of a run, as its newest checkpoint has them, and the people who play against it."""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

from legos.config.schema import RunConfig
from legos.league.cast import PERSON
from legos.league.payoffs import PayoffTable
from legos.league.pool import Pool
from legos.league.ratings import pool_ratings
from legos.records.names import BASE, adapter_name, frozen_name
from legos.run.checkpoint import newest_whole, read_state
from legos.run.folder import RunFolder
from legos.run.people import lasting_base, personal_plays

__all__ = ["StoredLeague", "stored_leagues"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredLeague:
    """The snapshots that an arena's plays meet, and what was earned in them."""

    arena: str
    step: int  # of the checkpoint
    pool: Pool
    table: PayoffTable
    unit: float | None = None  # reward that counts as a whole win; None: every win does
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
        members, table = self._by_lasting_name(model), deepcopy(self.table)
        unit, people, met = self.unit, dict[str, None](), dict[str, None]()
        for kept in personal_plays(self.arena, options):
            sides, episode = kept.sides, kept.result
            names = {who: members.get(who, who) for who in sides}
            persons = [who for who in sides if who.startswith(PERSON)]
            if len(sides) != 2 or not persons or not {*sides} <= {*members, *persons}:
                continue
            (mine, played), (theirs, others) = sides.items()
            returns = episode.mean_return(played), episode.mean_return(others)
            account = table.account(names[mine], names[theirs], played, others)
            account.count(*returns, episode.gave_up)
            unit = unit and max(unit, *map(abs, returns))
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

    def figures(self) -> dict[str, Any]:
        """Ratings and pay-offs as JSON values.

        Returns:
            ``arena``; ``step``; ``ratings``: member -> ``rating`` (Elo), ``low`` and ``high`` (its
            interval of 95 %), ``plays``, and ``step`` of a snapshot, the strongest first;
            ``matrix``: member -> member -> ``score``, ``reward`` and ``plays`` of the first against
            the second, where they have met; ``alone``: snapshots that have met nobody yet, and
            people who have met none of the members.
        """
        snapshots = [each.name for each in self.pool.members]
        taken = {name: _step(name) for name in self.pool.taken.values()}
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
                    "plays": each.plays,
                    "step": taken.get(each.member),
                }
                for each in rated
            },
            "matrix": {
                mine: {
                    theirs: {"score": found.score, "reward": found.mean, "plays": found.plays}
                    for theirs in order
                    if (found := self.table.tally(mine, theirs)).plays
                }
                for mine in order
            },
            "alone": [name for name in (*snapshots, *self.people) if name not in order],
        }


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
    place = newest_whole(run.checkpoints)
    state = read_state(place)
    found: list[StoredLeague] = []
    arenas = zip(state["arenas"].items(), config.arenas.values(), strict=False)
    for (arena, parts), settings in arenas:
        if "pool" not in (stored := parts["matchmaker"]):
            continue
        pool, table = Pool(0), PayoffTable()
        pool.restore(stored["pool"])
        table.restore(stored["table"])
        league = StoredLeague(
            arena=arena,
            step=state["trainer"]["step"],
            pool=pool,
            table=table,
            unit=stored["unit"] or None,
        )
        found.append(league.with_people(settings.play.options, config.model))
    return found
