"""The batcher: it decides when each arena may play, and fills optimiser steps from the buffers.

Admission control. A group of n tasks is admitted if it will be trained on at most L optimiser steps
after the newest policy, where L is the staleness limit. With one arena that is

    playing + waiting + training + n <= (L + 1) * r * tasks_per_step      (tasks)

where r = ceil(min_samples / samples of tasks_per_step tasks) rounds of tasks fill one step. With a
token budget, where an arena has a share s of the B tokens of a step, and the deficit d,

    playing * tokens_per_task + waiting < (L + 1) * s * B + d             (tokens)

Play therefore waits instead of producing samples that are too old. ``take`` checks the oldest token
of every sample again, because training can overtake a slow play. Groups whose plays began under a
policy beyond the limit are not counted as playing, so that a slow play delays no other group.

A step also takes the groups that would be too old for the next one. If D of the P tasks that are
being played would be too old for the next one, the trainer waits for them, at most

    min(8 D / P, 1/2)      of the time between the last two steps

because P is about two steps of tasks, and the plays that last longest take most of the time.

The size of a step. One arena: the groups of ``tasks_per_step`` tasks, and more until they have
``min_samples`` samples. With a token budget, deficit round-robin (``legos/loop/deficits.py``).
"""

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from msgspec.structs import replace

from legos.errors import Stopped
from legos.loop.buffer import Buffer
from legos.loop.deficits import Deficits
from legos.loop.trainer import References
from legos.play.step import warn_of
from legos.records.count import Count
from legos.records.group import Group

PATIENCE = 8.0
SPARE = 1.2  # tokens of a group, of those that a step lacks, so that it seldom needs a second one


class Batcher:
    """Fills optimiser steps from the buffers of one or several arenas.

    Attributes:
        buffers: name of each arena -> its groups that wait.
        training: whether the trainer has taken the groups of a step and works on it.
        stopping: whether the run was asked to end, so that a step ends between two passes. Any
            thread may set it before ``end`` is called, also while the event loop is busy.
    """

    def __init__(
        self,
        buffers: Sequence[Buffer],
        *,
        min_samples: int,
        staleness_limit: int,
        deficits: Deficits | None = None,
    ) -> None:
        """Make a batcher.

        Args:
            buffers: one for each arena.
            min_samples: minimum number of samples for one optimiser step without a token budget.
            staleness_limit: maximum staleness of a token, in optimiser steps; 0 alternates between
                play and training.
            deficits: the token budget of a step and the share of each arena; None: the only arena
                gives its tasks.
        """
        self.buffers = {buffer.arena: buffer for buffer in buffers}
        self.training = self.stopping = False
        self._min_samples = min_samples
        self._limit = staleness_limit
        self._deficits = deficits
        self._changed = asyncio.Condition()
        self._playing: Counter[tuple[str, int]] = Counter()  # tasks, by arena and version
        self._counts: dict[tuple[Any, ...], tuple[int, Count]] = {}  # group -> its tasks and plays
        self._taken: dict[str, list[Group]] = {}  # the groups that are being trained on
        self._versions: Mapping[str, int] = {}  # policy -> its newest version
        self._ending: Exception | None = None
        self._taken_at: float | None = None  # when groups were taken last, seconds
        self._step_s = 0.0  # seconds between the last two times

    @property
    def in_turns(self) -> bool:
        """Whether play must wait while the trainer trains."""
        return self._limit == 0

    @property
    def starved(self) -> bool:
        """Whether the trainer waits for groups."""
        return not self.training and self._sizes() is None

    @property
    def num_tokens(self) -> int:
        """Number of chosen tokens in the samples that wait."""
        return sum(group.num_tokens for buffer in self.buffers.values() for group in buffer.queued)

    @property
    def plays(self) -> Count:
        """The plays of the next step, as far as they are known, and all plays that run."""
        counts = [count for _, count in self._counts.values()]
        running = sum(count.begun - count.ended for count in counts)
        planned, ended = sum(count.planned for count in counts), sum(c.ended for c in counts)
        if not self.in_turns:
            planned, ended = self._plays_of_step(planned)
        return Count(planned, ended + running, ended)

    @property
    def queued(self) -> Mapping[str, Sequence[Group]]:
        """Name of each arena -> its groups that wait, oldest first."""
        return {name: buffer.queued for name, buffer in self.buffers.items()}

    async def turn(self, arena: str) -> float:
        """Wait for an arena's turn; returns how many tasks it should play then.

        Where arenas do not play in turns, or no token budget limits a step, any number at once.

        Raises:
            Stopped: the run is ending.
        """
        if not self.in_turns or self._deficits is None:
            return math.inf
        async with self._changed:
            mine = self.buffers[arena]
            await self._changed.wait_for(lambda: self._ending or self._may_play(mine, 1, 1))
            if self._ending:
                raise Stopped
            return mine.tasks_of(SPARE * self._lacks()[arena])

    async def admit(
        self, group: Group, *, at_once: Callable[[], float] = lambda: math.inf
    ) -> Group:
        """Wait until a group may be played; follow with ``put``.

        Args:
            group: the planned group.
            at_once: maximum number of the arena's tasks played at the same time, which may change.

        Returns:
            The group with the newest policy version.

        Raises:
            Stopped: the run is ending.
        """
        buffer = self.buffers[group.arena]
        async with self._changed:
            await self._changed.wait_for(
                lambda: self._ending or self._may_play(buffer, group.num_tasks, at_once())
            )
            if self._ending:
                raise Stopped
            self._playing[group.arena, self._newest] += group.num_tasks
            self._counts[group.key] = group.num_tasks, Count(len(group.plays))
            return replace(group, admitted_version=self._newest)

    def count(self, group: Group) -> Count:
        """What counts the plays of an admitted group."""
        return self._counts[group.key][1]

    async def put(self, group: Group, references: References | None = None) -> None:
        """Add a played group; it is in the buffer even if the caller is cancelled here.

        The trainer gets an error if too many groups without samples come in a row, or if too many
        plays fail. With ``references``, the group waits there for what they compute.
        """
        buffer = self.buffers[group.arena]
        error = buffer.put(group, scored=references is None)
        self._ending = self._ending or error
        try:
            if references is not None and error is None:
                await buffer.score(references)
        finally:
            self._playing[group.arena, group.admitted_version] -= group.num_tasks
            self._playing = +self._playing
            self._counts.pop(group.key, None)
            await self._wake()

    async def take(self, versions: Mapping[str, int]) -> list[Group]:
        """Wait for enough samples that are not too old; take their groups, arena by arena.

        Args:
            versions: name of each trained policy -> its version.

        Raises:
            Stopped: the run is ending.
            Exception: the error of a player that failed.
        """
        async with self._changed:
            self._versions = versions
            await self._changed.wait_for(lambda: self._ending or self._enough())
            await self._wait_for_due()
            if self._ending:
                raise self._ending
            self._enough()  # drops what came meanwhile and is too old
            self._pull(self._sizes() or {})
            now = asyncio.get_running_loop().time()
            self._step_s, self._taken_at = now - (self._taken_at or now), now
        groups = [group for taken in self._taken.values() for group in taken]
        warn_of([e for group in groups for e in group.episodes])
        return groups

    def put_back(self) -> None:
        """Return the groups taken last, as their step failed; a resumed run repeats the step."""
        for name in self._taken:
            self.buffers[name].put_back()
        if self._deficits is not None:
            self._deficits.undo()
        self._taken, self.training = {}, False

    async def release(self, versions: Mapping[str, int]) -> None:
        """Report that the step is complete; the argument is that of ``take``.

        Nothing is played for the step after it before.
        """
        self._taken, self.training = {}, False
        self._versions = versions
        await self._wake()

    async def end(self, reason: Exception) -> None:
        """Wake all waiting callers: players stop, the trainer gets ``reason``."""
        self._ending = self._ending or reason
        self.stopping = self.stopping or isinstance(reason, Stopped)
        await self._wake()

    def discard_rest(self, reason: str = "unused") -> None:
        """Record the remaining tokens as discarded for a reason; they will not be trained on."""
        for buffer in self.buffers.values():
            buffer.discard_rest(reason)

    def state(self) -> dict[str, Any]:
        """The state that makes a resumed run go on as this one would, as JSON values."""
        deficits = self._deficits.tokens if self._deficits else dict.fromkeys(self.buffers, 0.0)
        return {
            name: {"deficit_tokens": deficits[name], **buffer.state()}
            for name, buffer in self.buffers.items()
        }

    def restore(
        self,
        state: Mapping[str, Any],
        queued: Mapping[str, Sequence[Group]],
        *,
        versions: Mapping[str, int],
    ) -> None:
        """Restore what ``state`` returned; the ledger counts the groups already.

        Args:
            state: the state.
            queued: name of each arena -> its groups that waited, oldest first.
            versions: name of each trained policy -> its version in the checkpoint.
        """
        for name, buffer in self.buffers.items():
            buffer.restore(state[name], queued[name], policies=versions)
            if self._deficits is not None:
                self._deficits.tokens[name] = state[name]["deficit_tokens"]
        self._versions = versions

    def metrics(self) -> dict[str, float]:
        """What waits in each buffer, as ``replays/ARENA/…``."""
        found: dict[str, float] = {}
        for name, buffer in self.buffers.items():
            shown = buffer.metrics(self._newest)
            if self._deficits is not None:
                shown["deficit_tokens"] = self._deficits.tokens[name]
            found |= {f"replays/{name}/{key}": value for key, value in shown.items()}
        return found

    @property
    def _newest(self) -> int:
        """The newest version of any policy."""
        return max(self._versions.values(), default=0)

    async def _wait_for_due(self) -> None:
        """Wait for plays that this step would make too old, no longer than it is worth."""
        if self.in_turns:
            return
        patience = min(PATIENCE * self._due() / (self._playing.total() or 1), 0.5)
        with suppress(TimeoutError):
            async with asyncio.timeout(patience * self._step_s):
                await self._changed.wait_for(lambda: self._ending or not self._due())

    def _due(self) -> int:
        """Number of tasks being played that would be too old if they missed this step."""
        oldest = self._newest - self._limit
        return sum(tasks for (_, version), tasks in self._playing.items() if version == oldest)

    async def _wake(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    def _may_play(self, buffer: Buffer, num_tasks: int, at_once: float) -> bool:
        oldest = self._newest - self._limit
        fresh = {at: tasks for at, tasks in self._playing.items() if at[1] >= oldest}
        mine = sum(tasks for (arena, _), tasks in fresh.items() if arena == buffer.arena)
        waits = not self.training  # the trainer waits for groups
        if self.in_turns:  # one group at a time, so that a resumed run repeats it
            return waits and not fresh and buffer is self._most_lacking()
        if waits and not mine and self._lacks()[buffer.arena] > 0:
            return True
        return mine + num_tasks <= at_once and self._in_time(buffer, mine, num_tasks)

    def _in_time(self, buffer: Buffer, playing: int, num_tasks: int) -> bool:
        """Whether another group would be trained on within the staleness limit."""
        steps, deficits = self._limit + 1, self._deficits
        if deficits is None or not buffer.tokens_per_task:
            training = sum(group.num_tasks for group in self._taken.get(buffer.arena, ()))
            pending = playing + buffer.num_live_tasks + training
            return pending + num_tasks <= steps * self._tasks_of_step(buffer)
        tokens = playing * buffer.tokens_per_task + buffer.num_tokens
        steps -= self.training  # the deficits are already those after the step in training
        room = steps * deficits.part(buffer.arena) + deficits.tokens[buffer.arena]
        if deficits.borrow and not self.training and self._sizes() is None:
            room = max(room, deficits.tokens_per_step)
        return tokens < room

    def _tasks_of_step(self, buffer: Buffer) -> int:
        """Number of tasks of one step, without a token budget or before its tokens are known."""
        samples, rounds = buffer.samples_per_task * buffer.tasks_per_step, 1
        if self._deficits is None and samples:
            rounds = math.ceil(self._min_samples / samples)
        return rounds * buffer.tasks_per_step

    def _plays_of_step(self, playing: int) -> tuple[int, int]:
        """Plays of the next step, and those that have ended: of the groups that wait or end first.

        Each task counts as many plays as those that are played now have on average; 0 where none
        is played, or where tokens make a step.
        """
        if self._deficits is not None or not self._counts:
            return 0, 0
        [buffer] = self.buffers.values()
        tasks = self._tasks_of_step(buffer)
        plays_per_task = playing / sum(number for number, _ in self._counts.values())
        left, ended = tasks - buffer.num_tasks, min(tasks, buffer.num_tasks) * plays_per_task
        for number, count in sorted(self._counts.values(), key=lambda c: c[1].planned - c[1].ended):
            if left > 0:
                left, ended = left - number, ended + count.ended
        planned = round(tasks * plays_per_task)
        return planned, min(planned, round(ended))

    def _lacks(self) -> dict[str, float]:
        """Name of each arena -> what the next step still needs of it (tokens, or 1 or 0)."""
        if self._sizes() is not None:
            return dict.fromkeys(self.buffers, 0.0)
        if self._deficits is None:
            return dict.fromkeys(self.buffers, 1.0)
        return {
            name: max(0.0, quota - self.buffers[name].num_tokens)
            for name, quota in self._deficits.quotas().items()
        }

    def _most_lacking(self) -> Buffer | None:
        """The buffer that lacks most for the next step; None: the step has enough."""
        name, lacking = max(self._lacks().items(), key=lambda each: each[1])
        return self.buffers[name] if lacking > 0 else None

    def _sizes(self) -> dict[str, int] | None:
        """Number of groups that each arena gives to the next step; None: more are needed."""
        if self._deficits is None:
            [(name, buffer)] = self.buffers.items()
            number = buffer.first(tasks=buffer.tasks_per_step, samples=self._min_samples)
            return None if number is None else {name: number}
        wanted = self._deficits.wanted({name: b.num_tokens for name, b in self.buffers.items()})
        sizes: dict[str, int] = {}
        for name, quota in wanted.items():
            number = self.buffers[name].first(tokens=quota)
            if number is None:
                return None
            sizes[name] = number
        return sizes

    def _pull(self, sizes: Mapping[str, int]) -> None:
        """Take groups from the buffers, and charge their tokens to the arenas."""
        self._taken = {}
        for name, size in sizes.items():
            most = None if self._deficits is None else self._deficits.part(name)
            self._taken[name] = self.buffers[name].take(size, newest=self._newest, most=most)
        self.training = True
        if self._deficits is not None:
            taken = {n: sum(group.num_tokens for group in t) for n, t in self._taken.items()}
            self._deficits.charge(taken)

    def _enough(self) -> bool:
        """Drop samples of other versions than may be trained on; check whether a step is left."""
        for buffer in self.buffers.values():
            buffer.drop_stale(self._versions)
        enough = self._sizes() is not None
        if not enough:
            self._changed.notify_all()  # dropping samples may allow a new play
        return enough
