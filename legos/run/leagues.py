"""The leagues of a run, as its newest checkpoint has them."""

from dataclasses import dataclass
from typing import Any

from legos.league.payoffs import PayoffTable
from legos.league.pool import Pool
from legos.league.ratings import ratings
from legos.run.checkpoint import newest_whole, read_state
from legos.run.folder import RunFolder

__all__ = ["StoredLeague", "stored_leagues"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredLeague:
    """The snapshots that an arena's plays meet, and what was earned in them."""

    arena: str
    step: int  # of the checkpoint
    pool: Pool
    table: PayoffTable
    unit: float | None = None  # reward that counts as a whole win; None: every win does

    def figures(self) -> dict[str, Any]:
        """Ratings and pay-offs as JSON values.

        Returns:
            ``arena``; ``step``; ``ratings``: member -> ``rating`` (Elo), ``low`` and ``high`` (its
            interval of 95 %), ``plays``, and ``step`` of a snapshot, the strongest first;
            ``matrix``: member -> member -> ``score``, ``reward`` and ``plays`` of the first against
            the second, where they have met; ``alone``: snapshots that have met nobody yet.
        """
        steps = {each.name: each.step for each in self.pool.members}
        among = self.pool.present(self.table.members)
        newest = next((name for name in reversed(steps) if name in among), None)
        met = [] if newest is None else self.table.connected(newest, among)
        rated = ratings(self.table, met, unit=self.unit) if len(met) > 1 else []
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
                    "step": steps.get(each.member),
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
            "alone": [name for name in steps if name not in order],
        }


def stored_leagues(run: RunFolder) -> list[StoredLeague]:
    """The leagues of a run's arenas; none where it has no opponents.

    Raises:
        CheckpointError: it has no intact checkpoint.
    """
    place = newest_whole(run.checkpoints)
    state = read_state(place)
    found: list[StoredLeague] = []
    for arena, parts in state["arenas"].items():
        if "pool" not in (stored := parts["matchmaker"]):
            continue
        pool, table = Pool(0), PayoffTable()
        pool.restore(stored["pool"])
        table.restore(stored["table"])
        found.append(
            StoredLeague(
                arena=arena,
                step=state["trainer"]["step"],
                pool=pool,
                table=table,
                unit=stored["unit"] or None,
            )
        )
    return found
