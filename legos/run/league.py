"""The league of a run: takes snapshots, keeps them in the engines, and handles a collapse."""

import asyncio
import logging
import shutil
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from legos.config.league import LeagueConfig
from legos.errors import AdapterError, CheckpointError
from legos.files.atomic import refusals_named
from legos.league.guards import Standing, guard_alarms, standing
from legos.league.matchmaker import EXPLOITER, LeagueSeats
from legos.league.pool import Snapshot
from legos.loop.mix import Mix
from legos.loop.snapshots import Snapshots
from legos.loop.trainer import Metrics, PolicyTrainer
from legos.losses.alarms import Alarm
from legos.protocols import Publisher
from legos.run.folder import RunFolder
from legos.run.metrics import newest_metrics
from legos.weights.adapter import Adapter
from legos.weights.folder import read_adapter

logger = logging.getLogger(__name__)


class RunLeague:
    """The leagues of a run's arenas; none without ``play.opponents``, and then nothing to do."""

    def __init__(
        self,
        mix: Mix,
        folder: RunFolder,
        trainer: PolicyTrainer,
        settings: LeagueConfig,
        *,
        adapters: Callable[[], Sequence[Adapter]],
        stop: Callable[[], Awaitable[None]],
        discard: Callable[[str], None],
        on_writer: Callable[[Callable[[], object]], Awaitable[None]],
    ) -> None:
        """Find the leagues.

        Args:
            mix: the arenas.
            folder: its adapters contain every snapshot.
            trainer: the trainer of the policies.
            settings: when snapshots are taken, and what follows a collapse.
            adapters: returns the newest adapter of each policy, as the folder keeps it.
            stop: ends the run with a checkpoint.
            discard: discards the groups that wait, for a reason.
            on_writer: calls a function in the thread that writes files.
        """
        self._snapshots = Snapshots(mix.arenas, trainer)
        self._leagues = self._snapshots.leagues
        self._folder, self._trainer, self._settings = folder, trainer, settings
        self._adapters, self._stop, self._on_writer = adapters, stop, on_writer
        self._discard = discard
        self._prefixes = self._snapshots.prefixes
        # Arena and policy -> where the policy stands.
        self._standings: dict[tuple[str, str], Standing] = {}
        self._taking = asyncio.Lock()  # an evaluation takes snapshots too

    def fork(self, run: Path) -> None:
        """Take over the files of all snapshots from the run that this one is forked from.

        Raises:
            CheckpointError: they cannot be written.
        """
        for snapshot in self._snapshots.in_engines:
            place = self._place(snapshot)
            source = run / place.relative_to(self._folder.path)
            if source.exists() and not place.exists():
                with refusals_named(place):
                    shutil.copytree(source, place)

    async def begin(self, publisher: Publisher) -> None:
        """Make the snapshots of a resumed run live, or take the first ones.

        Raises:
            CheckpointError: the files of a snapshot are gone or damaged, or cannot be written.
        """
        for snapshot in self._snapshots.in_engines:
            await publisher.publish(replace(self._read(snapshot), name=snapshot.live))
        if any(not league.pool.members for league in self._leagues.values()):
            await self._take(publisher)

    async def after_step(self, publisher: Publisher, metrics: Metrics) -> dict[str, float]:
        """Judge the policy and take a snapshot, if one is due; returns metrics of the league.

        Args:
            publisher: loads adapters into the engines.
            metrics: those of the step.

        Raises:
            CheckpointError: the files of a snapshot cannot be written, or are damaged.
        """
        asked = bool(self._leagues) and self._folder.take_request()
        due = asked or self._trainer.step % self._settings.snapshot_every == 0
        own = self._snapshots.counted()
        if due and self._leagues:
            for name, league in self._leagues.items():
                own |= self._judged(name, league, metrics)
            if fallen := self._fallen_from():
                await self._handle_collapse(fallen, publisher)
            await self._take(publisher, metrics)
        return own

    def _judged(self, name: str, league: LeagueSeats, metrics: Metrics) -> dict[str, float]:
        """The metrics of the policies' ratings; their alarms are logged when they begin."""
        found: list[Alarm] = []
        own: dict[str, float] = {}
        unit, (first, *_) = league.unit or None, self._snapshots.policies[name]
        for policy in self._snapshots.policies[name]:
            if policy == EXPLOITER:  # it is to beat the policy of this step, and no other
                continue
            figures = self._snapshots.figures(name, metrics, policy)
            now = standing(league.table, league.pool, policy, unit=unit, **figures)
            self._standings[name, policy] = now
            prefix = self._prefixes[name] + ("" if policy == first else f"{policy}/")
            found += guard_alarms(now, self._settings.collapse_elo, prefix)
            own |= {f"{prefix}{key}": value for key, value in now.metrics().items()}
        self._trainer.alarms.sound(found, step=self._trainer.step, league=name)
        return own

    def _fallen_from(self) -> list[Snapshot]:
        """The best snapshot of each policy that has fallen far below it, in one of the arenas."""
        found: dict[str, Snapshot] = {}
        for one in self._standings.values():
            if one.best is not None and one.fall >= self._settings.collapse_elo:
                found[one.best.policy] = one.best
        return [*found.values()]

    async def _handle_collapse(self, fallen: Sequence[Snapshot], publisher: Publisher) -> None:
        """What ``on_collapse`` says, for policies with these best snapshots."""
        trainer, step = self._trainer, self._trainer.step
        names = ", ".join(best.name for best in fallen)
        if self._settings.on_collapse == "stop":
            logger.error("step %d: the run ends; its best snapshot is %s", step, names)
            await self._stop()
        elif self._settings.on_collapse == "rollback":
            for best in fallen:
                taken = trainer.backend.take(self._read(best), policy=best.policy)
                await asyncio.wrap_future(taken)
            self._discard("rolled_back")  # which the weak policy has played
            await trainer.publish_to(publisher)
            logger.warning("step %d: the policy goes on from %s", step, names)

    async def take_best(self, step: int, adapters: Sequence[Adapter], publisher: Publisher) -> None:
        """Add the adapters of the best evaluation so far to every pool.

        Raises:
            CheckpointError: their files cannot be written.
        """
        await self._take(publisher, at=(step, adapters))

    async def _take(
        self,
        publisher: Publisher,
        metrics: Metrics | None = None,
        at: tuple[int, Sequence[Adapter]] | None = None,
    ) -> None:
        """Add the policies to every pool, and drop what has left; one call after the other.

        Args:
            publisher: loads adapters into the engines.
            metrics: those of the step; None: those that the folder has of it.
            at: the step and the adapters; None: those of now.
        """
        step, adapters = at or (self._trainer.step, self._adapters())
        if not self._leagues:
            return
        if metrics is None:
            metrics = newest_metrics(self._folder.metrics, step=step)
        async with self._taking:
            await self._on_writer(partial(self._folder.write_adapters, adapters))
            await self._snapshots.take(publisher, step, adapters, metrics, among=self._leagues)

    def _place(self, snapshot: Snapshot) -> Path:
        """The folder of its adapter."""
        parent = "" if snapshot.policy == self._trainer.policies[0] else snapshot.policy
        return self._folder.adapters / parent / f"v{snapshot.version}"

    def _read(self, snapshot: Snapshot) -> Adapter:
        """The adapter of a snapshot, as it was taken.

        Raises:
            CheckpointError: its files are gone or damaged.
        """
        place = self._place(snapshot)
        what = f"snapshot {snapshot.name} of the league"
        advice = "bring it back, or start a new run with --adapter"
        try:
            adapter = read_adapter(place)
        except AdapterError as error:
            raise CheckpointError(f"{what} cannot be read: {error}; {advice}") from error
        if adapter.digest != snapshot.digest:
            raise CheckpointError(
                f"{what} had digest {snapshot.digest}, but {place} holds {adapter.digest}; {advice}"
            )
        return adapter
