"""The position in an arena's tasks: the next plays, their seeds, and the unfinished groups.

Tasks are drawn in rounds of ``tasks_per_step``, the plays of one ``arena.step``. A round is split
into groups, which are played and finished one by one. After a resume, tasks that were drawn but not
finished are played again with the same seeds.

An arena with levels has one stream of tasks for each level, and its curriculum chooses the stream
of each task when a round begins.
"""

import math
import random
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, Literal, NamedTuple

from msgspec.structs import replace

from legos.arena.checks import checked_tasks
from legos.arena.playable import Playable
from legos.errors import ArenaError, did_you_mean, user_code
from legos.records.episode import Task
from legos.records.group import Group
from legos.records.numbers import shown
from legos.records.seeds import mix
from legos.records.task_ids import check_task_ids

Split = Literal["round", "id"]
"""What is played as one group: a whole round, or its tasks with one id."""

LEVELS = 1  # random stream of a round from which its levels are drawn
MAX_OTHERS = 100_000  # tasks of other levels after which a level counts as empty


class _Place(NamedTuple):
    """Where a task of a round comes from, and the seeds of its plays."""

    level: str | None  # the stream of tasks
    position: int  # number of tasks before it in this stream
    first_play: int  # number of plays planned before its own


class _Round:
    """Tasks that were drawn together; each is named by its index in the round."""

    def __init__(self, tasks: Mapping[int, Task], places: Mapping[int, _Place]) -> None:
        self.tasks = {n: replace(t, first_play=places[n].first_play) for n, t in tasks.items()}
        self.places = places
        self.unfinished = set(tasks)  # whose group has not been finished
        self.waiting = set(tasks)  # of these, the ones that are not being played


class TaskCursor:
    """Plans the groups of an arena, one after another."""

    def __init__(self, arena: Playable) -> None:
        self._arena = arena
        self._drawn: Counter[str | None] = Counter()  # level -> number of tasks drawn
        self._plays_planned = 0
        self._streams: dict[str | None, Iterator[Task]] = {}  # level -> its further tasks
        self._rounds: dict[int, _Round] = {}  # those with unfinished tasks, oldest first
        self._num_rounds = 0  # rounds that were begun, here or restored

    def next_group(self, split: Split, *, tasks: float = math.inf) -> Group:
        """The next group; call ``finish`` afterwards, or ``give_back`` to have it played again.

        Args:
            split: what is played as one group.
            tasks: number of tasks from which on the rest of a round is left for later groups.

        Raises:
            ArenaError: ``tasks`` failed, yields no tasks, or gives different tasks the same id.
        """
        waiting = (number for number, each in self._rounds.items() if each.waiting)
        at = next(waiting, None)
        if at is None:
            at = self._begin(self._drawn_round())
        current = self._rounds[at]
        alike: dict[str, list[int]] = {}
        for number in sorted(current.waiting):
            alike.setdefault(current.tasks[number].id, []).append(number)
        numbers: list[int] = []
        for same in alike.values():  # plays of one id are compared, and stay together
            if numbers and (split == "id" or len(numbers) >= tasks):
                break
            numbers += same
        numbers.sort()
        current.waiting.difference_update(numbers)
        plays = tuple(
            (current.tasks[n], mix(self._arena.seed, current.places[n].first_play + play))
            for n in numbers
            for play in range(current.tasks[n].group_size or self._arena.group_size)
        )
        return Group(
            arena=self._arena.name,
            plays=plays,
            round=at,
            numbers=tuple(numbers),
            first_play=current.places[numbers[0]].first_play,
            num_tasks=len(numbers),
        )

    def finish(self, group: Group) -> None:
        """Mark a group as finished, so that it is not played again."""
        unfinished = self._rounds[group.round].unfinished
        unfinished.difference_update(group.numbers)
        if not unfinished:
            del self._rounds[group.round]

    def give_back(self, group: Group) -> None:
        """Return an interrupted group, so that it is played next."""
        self._rounds[group.round].waiting.update(group.numbers)

    def state(self) -> dict[str, Any]:
        """The position and the unfinished tasks, as JSON values."""
        return {
            "drawn": [[level, number] for level, number in self._drawn.items()],
            "plays_planned": self._plays_planned,
            "unfinished": [
                [[n, *each.places[n]] for n in sorted(each.unfinished)]
                for each in self._rounds.values()
            ],
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take back what ``state`` returned, without tasks of levels that the arena lacks.

        Raises:
            ArenaError: ``tasks`` failed, or yields none.
        """
        self._drawn = Counter(dict(state["drawn"]))
        self._plays_planned = state["plays_planned"]
        self._streams, self._rounds = {}, {}
        rounds = [{n: _Place(*place) for n, *place in each} for each in state["unfinished"]]
        found: dict[tuple[str | None, int], Task] = {}
        for level in (None, *self._arena.levels):
            if drawn := self._drawn[level]:
                places = (place for each in rounds for place in each.values())
                wanted = (place.position for place in places if place.level == level)
                first = min(wanted, default=drawn - 1)  # so the next round draws no earlier task
                stream = tasks_from(self._arena, skip=first, seed=self._arena.seed, level=level)
                again = enumerate(islice(stream, drawn - first), first)
                found |= {(level, position): task for position, task in again}
                self._streams[level] = stream
        for each in rounds:
            at = {n: (place.level, place.position) for n, place in each.items()}
            if tasks := {n: found[key] for n, key in at.items() if key in found}:
                self._begin(_Round(tasks, each))

    def _begin(self, drawn: _Round) -> int:
        """Add a round; returns its number."""
        number, self._num_rounds = self._num_rounds, self._num_rounds + 1
        self._rounds[number] = drawn
        return number

    def _drawn_round(self) -> _Round:
        arena = self._arena
        if not self._num_rounds:
            check_levels(arena, arena.seed)
        rng = random.Random(mix(arena.seed, LEVELS, self._plays_planned))
        tasks: dict[int, Task] = {}
        places: dict[int, _Place] = {}
        for number in range(arena.tasks_per_step):
            level = _chosen_level(arena, rng) if arena.levels else None
            if level not in self._streams:
                drawn = self._drawn[level]
                self._streams[level] = tasks_from(arena, skip=drawn, seed=arena.seed, level=level)
            task = tasks[number] = next(self._streams[level])
            places[number] = _Place(level, self._drawn[level], self._plays_planned)
            self._drawn[level] += 1
            self._plays_planned += task.group_size or arena.group_size
        check_task_ids(((None, arena.name), task) for task in tasks.values())
        return _Round(tasks, places)


def _chosen_level(arena: Playable, rng: random.Random) -> str:
    """The level of the next task, by the curriculum, which may be a user's own."""
    own = f"curriculum {type(arena.curriculum).__name__}"
    with user_code(own):
        level = arena.curriculum.choose(arena.levels, rng)
    if level not in arena.levels:
        hint = did_you_mean(f"{level}", arena.levels)
        raise ArenaError(f"{own} chose {shown(level)}, which is no level of {arena.name!r}{hint}")
    return level


def check_levels(arena: Playable, seed: int) -> None:
    """Check that there are tasks of every level, before a curriculum chooses one.

    Raises:
        ArenaError: ``tasks`` failed, or yields no task of a level.
    """
    for level in arena.levels:
        next(tasks_from(arena, seed=seed, level=level))


def plays_from(
    arena: Playable, seed: int, number: int, *, held_out: bool = True
) -> list[tuple[Task, int]]:
    """The first plays of an evaluation under a separate seed, one of each held-out task.

    An arena whose ``held_out`` returns None is evaluated on its ``tasks``; one whose ``held_out``
    is empty is not evaluated. A finite list of tasks starts again. No cursor moves, so every
    evaluation has the same plays.

    Args:
        arena: the arena to play.
        seed: seed of the tasks and of the plays.
        number: number of plays.
        held_out: False: plays of ``tasks``.

    Raises:
        ArenaError: ``tasks`` failed, or yields no tasks.
    """
    tasks = islice(tasks_from(arena, skip=0, seed=seed, held_out=held_out), number)
    return [(task, mix(seed, index)) for index, task in enumerate(tasks)]


def held_out_or_own(arena: Playable, seed: int, number: int) -> list[tuple[Task, int]]:
    """The first plays of an evaluation, or of ``tasks`` where no task is held out.

    Args:
        arena: the arena to play.
        seed: seed of the tasks and of the plays.
        number: number of plays.

    Raises:
        ArenaError: ``tasks`` failed, or yields no tasks.
    """
    return plays_from(arena, seed, number) or plays_from(arena, seed, number, held_out=False)


def tasks_from(
    arena: Playable, *, skip: int = 0, seed: int, level: str | None = None, held_out: bool = False
) -> Iterator[Task]:
    """Tasks of epoch 0, 1, ... without the first ``skip``; None: tasks of all levels.

    Raises:
        ArenaError: ``tasks`` failed, or yields no task of the level.
    """
    epoch = 0
    while True:
        found = False
        others = 0  # number of tasks of other levels since the last one of this level
        for task in checked_tasks(arena, random.Random(mix(seed, epoch)), held_out=held_out):
            if level not in (None, task.level):
                others += 1
                if others == MAX_OTHERS:
                    raise ArenaError(
                        f"arena {arena.name!r} has no task of level {level!r} among {others} tasks "
                        "of tasks(rng); yield tasks of all levels in turn"
                    )
                continue
            found, others = True, 0
            if skip:
                skip -= 1
            else:
                yield task
        if not found and held_out and arena.held_out(random.Random(seed)) is not None:
            return
        if not found:
            which = "no tasks" if level is None else f"no task of level {level!r}"
            later = f" in round {epoch + 1}: return a list, or a new iterator each time"
            raise ArenaError(
                f"arena {arena.name!r} has {which}; tasks(rng) yielded none{later if epoch else ''}"
            )
        epoch += 1
