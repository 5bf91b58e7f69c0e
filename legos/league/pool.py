"""The pool of a league: snapshots of the trained policies, bounded by a rule, never changed."""

from bisect import bisect_right, insort
from collections.abc import Container, Iterable, Mapping
from math import inf
from typing import Any

from msgspec import Struct, structs

from legos.records.names import adapter_name
from legos.weights.adapter import Adapter


class Snapshot(Struct, frozen=True, kw_only=True):
    """The adapter of a policy after one step, which training no longer changes."""

    policy: str
    step: int
    version: int
    digest: str
    length: float = 0.0  # tokens of a seat in a play of that step; 0: not known
    entropy: float = 0.0  # of the policy in that step, nats

    @property
    def name(self) -> str:
        """Its name as a member: ``policy@120``."""
        return f"{self.policy}@{self.step}"

    @property
    def live(self) -> str:
        """Its name in the engines, by its weights."""
        return f"{self.policy}-{self.digest[:12]}"


class Pool:
    """Snapshots of each policy, oldest first.

    A snapshot that leaves is drawn no more, but stays in the engines for the plays that have begun.

    Attributes:
        size: maximum number of snapshots of each policy.
        leaving: those that have left and are still in the engines, with the step at which they did.
        added: number of snapshots added since it was made.
        taken: digest of every snapshot that was ever added -> its name; of equal ones the last.
    """

    def __init__(self, size: int) -> None:
        """Make an empty pool."""
        self.size = size
        self._of: dict[str, list[Snapshot]] = {}
        self.leaving: list[tuple[Snapshot, int]] = []
        self.added = 0
        self.taken: dict[str, str] = {}

    def of(self, policy: str) -> list[Snapshot]:
        """The snapshots of a policy, oldest first."""
        return self._of.get(policy, [])

    @property
    def members(self) -> list[Snapshot]:
        """All snapshots that can be drawn."""
        return [snapshot for found in self._of.values() for snapshot in found]

    def present(self, names: Iterable[str]) -> list[str]:
        """Names of members without those of snapshots that have left."""
        here = {snapshot.name for snapshot in self.members}
        return [name for name in names if name in here or adapter_name(name) not in self._of]

    @property
    def in_engines(self) -> list[Snapshot]:
        """All snapshots that must be live, those included that are leaving."""
        return [*self.members, *(snapshot for snapshot, _ in self.leaving)]

    def new(self, adapter: Adapter, step: int, **figures: float) -> Snapshot | None:
        """A snapshot of the adapter of a policy as it is now, which is not in the pool yet.

        Args:
            adapter: the adapter.
            step: number of optimiser steps done.
            figures: length and entropy, as a snapshot has them; of weights that the pool has
                already, as after a rollback, those of their snapshot hold.

        Returns:
            The snapshot; None: the one before has the same weights, or that step has one.
        """
        found = self.of(adapter.name)
        place = bisect_right(found, step, key=lambda one: one.step)  # an evaluation may come later
        before = found[place - 1] if place else None
        if before and (before.step == step or before.digest == adapter.digest):
            return None
        for same in (one for one in found if one.digest == adapter.digest):
            figures = {"length": same.length, "entropy": same.entropy}
        return Snapshot(
            policy=adapter.name,
            step=step,
            version=adapter.version,
            digest=adapter.digest,
            **figures,
        )

    def add(self, snapshot: Snapshot, elo: Mapping[str, float]) -> None:
        """Add a snapshot, which is live in the engines; those that are too many leave.

        Args:
            snapshot: what ``new`` has returned.
            elo: name -> rating of those that have met anybody; the best of them stays.
        """
        found = self._of.setdefault(snapshot.policy, [])
        insort(found, snapshot, key=lambda one: one.step)
        self.added += 1
        self.taken[snapshot.digest] = snapshot.name
        while len(found) > self.size:  # several, where a resumed run keeps fewer
            gone = found.pop(_least_missed(found, elo))
            self.leaving.append((gone, found[-1].step))

    def forget(self, *, before: int, but: Container[str] = ()) -> list[Snapshot]:
        """Take out what left before a step, and return it.

        Args:
            before: a step.
            but: names in the engines of those that stay.
        """
        gone = [(one, at) for one, at in self.leaving if at < before and one.live not in but]
        self.leaving = [each for each in self.leaving if each not in gone]
        return [snapshot for snapshot, _ in gone]

    def state(self) -> dict[str, Any]:
        """The snapshots without their arrays, as JSON values."""
        return {
            "members": [structs.asdict(each) for each in self.members],
            "leaving": [[structs.asdict(each), at] for each, at in self.leaving],
            "taken": self.taken,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take back what ``state`` returned."""
        self._of = {}
        for each in state["members"]:
            self._of.setdefault(each["policy"], []).append(Snapshot(**each))
        self.leaving = [(Snapshot(**each), at) for each, at in state["leaving"]]
        self.taken = dict(state["taken"])


def _least_missed(found: list[Snapshot], elo: Mapping[str, float]) -> int:
    """Index of the snapshot whose absence leaves the smallest gap between its neighbours.

    The oldest and the newest stay, and of three or more the one with the highest rating. So ages
    stay evenly spread as the run goes on.
    """
    best = max(found, key=lambda one: elo.get(one.name, -inf))
    inner = range(1, len(found) - 1)
    return min(
        [index for index in inner if found[index] is not best] or inner,
        key=lambda index: found[index + 1].step - found[index - 1].step,
    )
