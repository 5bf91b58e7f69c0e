"""Snapshots of the policies for leagues: taken, live in the engines before a play, and dropped."""

from collections.abc import Container, Mapping, Sequence
from dataclasses import replace

from legos.arena.arena import Arena
from legos.league.guards import metric_prefix
from legos.league.matchmaker import LeagueSeats
from legos.league.pool import Snapshot
from legos.loop.trainer import Metrics, PolicyTrainer
from legos.protocols import Publisher
from legos.weights.adapter import Adapter

LEAD = 2  # steps from the start of a play elsewhere to its training, besides its staleness


class Snapshots:
    """Fills the pools of the leagues of some arenas, and keeps what they hold in the engines.

    Attributes:
        leagues: arena -> its league; empty without opponents.
        policies: arena -> its policies.
        prefixes: arena -> what the names of its league's metrics begin with.
    """

    def __init__(self, arenas: Mapping[str, Arena], trainer: PolicyTrainer) -> None:
        """Find the leagues; ``trainer`` trains the policies."""
        several = len(arenas) > 1
        self.leagues: dict[str, LeagueSeats] = {
            name: arena.matchmaker
            for name, arena in arenas.items()
            if isinstance(arena.matchmaker, LeagueSeats)
        }
        self.policies = {name: arena.policies for name, arena in arenas.items()}
        self.prefixes = {name: metric_prefix(name, several=several) for name in arenas}
        self._trainer = trainer

    @property
    def in_engines(self) -> list[Snapshot]:
        """The snapshots that must be live, each once."""
        found = [each for league in self.leagues.values() for each in league.pool.in_engines]
        return [*{snapshot.live: snapshot for snapshot in found}.values()]

    async def begin(self, publisher: Publisher) -> None:
        """Load the adapters that opponents name, and take the first snapshots.

        Raises:
            LegosError: as ``PolicyTrainer.opponents``.
        """
        trainer = self._trainer
        for name, league in self.leagues.items():
            for key, adapter in trainer.opponents(league, self.policies[name]).items():
                await publisher.publish(adapter)
                league.cast.live[key] = adapter.name
        empty = [name for name, league in self.leagues.items() if not league.pool.members]
        await self.take(publisher, trainer.step, trainer.adapters, among=empty)

    async def after_step(self, publisher: Publisher, metrics: Metrics) -> dict[str, float]:
        """Take the snapshots that are due; returns the metrics of the leagues."""
        trainer, own = self._trainer, self.counted()
        due = [name for name, each in self.leagues.items() if trainer.step % each.every == 0]
        await self.take(publisher, trainer.step, trainer.adapters, metrics, among=due)
        return own

    def counted(self) -> dict[str, float]:
        """The metrics of the leagues' plays since the step before; tells them where the run is."""
        trainer, own = self._trainer, dict[str, float]()
        for name, league in self.leagues.items():
            league.progress = trainer.step / trainer.num_steps
            own |= {f"{self.prefixes[name]}{key}": v for key, v in league.metrics().items()}
        return own

    def figures(self, name: str, metrics: Metrics, policy: str) -> dict[str, float]:
        """Length and entropy of a policy in a step."""
        prefix = "" if policy == self._trainer.policies[0] else f"{policy}/"
        found = {"length": f"batches/{name}/seat_tokens/{policy}", "entropy": f"{prefix}entropy"}
        return {key: float(metrics.get(metric) or 0.0) for key, metric in found.items()}

    async def take(
        self,
        publisher: Publisher,
        step: int,
        adapters: Sequence[Adapter],
        metrics: Metrics | None = None,
        *,
        among: Container[str],
    ) -> None:
        """Add the adapters of a step to the pools of some arenas; drop what plays no more."""
        for name, league in self.leagues.items():
            for adapter in adapters if name in among else ():
                if adapter.name not in self.policies[name] or not league.pools(adapter.name):
                    continue  # nobody of this arena meets it
                figures = self.figures(name, metrics or {}, adapter.name)
                snapshot = league.pool.new(adapter, step, **figures)
                if snapshot is None:
                    continue
                try:  # live first, and only then drawn
                    await publisher.publish(replace(adapter, name=snapshot.live))
                finally:  # where that fails the run ends, and publishes it when it is resumed
                    league.add(snapshot)
        patience = self._trainer.settings.staleness_limit + LEAD
        left = {
            snapshot.live
            for league in self.leagues.values()
            for snapshot in league.pool.forget(before=step - patience, but=league.playing)
        }
        for name in left.difference(snapshot.live for snapshot in self.in_engines):
            await publisher.drop(name)
