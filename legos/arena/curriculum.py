"""Curricula: which level the next task has, given how earlier plays of each level went."""

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

from legos.arena.playable import Playable
from legos.errors import ArenaError, ConfigError, user_code
from legos.protocols import Curriculum
from legos.records.episode import Episode
from legos.records.numbers import number, shown

CurriculumName = Literal["climb", "uniform"]
HORIZON = 64  # plays over which the EMA of a level's success forgets


class Climb:
    """Plays the easiest level whose success is below a threshold, and some tasks of easier levels.

    The success of a level is an EMA over its plays, which starts at 0. A level is left when its EMA
    reaches the threshold, and returned to when it falls below, as plays of easier levels show.

    Attributes:
        success: level -> EMA of the success of its plays, 0 to 1; 0 for other levels.
    """

    def __init__(self, *, threshold: float = 0.8, easier: float = 0.2) -> None:
        """Make a curriculum.

        Args:
            threshold: success from which on the next level is played, above 0, at most 1.
            easier: share of tasks that are drawn from all easier levels, equally often, below 1.

        Raises:
            ConfigError: a value is out of range.
        """
        if not 0.0 < threshold <= 1.0 or not 0.0 <= easier < 1.0:
            raise ConfigError(
                f"threshold is {threshold} and easier {easier}; expected a threshold above 0 and "
                "at most 1, and a share of easier tasks from 0 to below 1"
            )
        self.threshold = threshold
        self.easier = easier
        self.success: dict[str, float] = {}

    def choose(self, levels: Sequence[str], rng: random.Random) -> str:
        """The first level that is not mastered, or an easier one; the last if all are mastered."""
        number = len(levels) - 1
        for index, level in enumerate(levels):
            if self.success.get(level, 0.0) < self.threshold:
                number = index
                break
        if number and rng.random() < self.easier:
            number = rng.randrange(number)
        return levels[number]

    def record(self, level: str, successes: Sequence[float]) -> None:
        """Move the EMA of the level by the plays of one group, which count equally."""
        mean = sum(successes) / len(successes)
        kept = (1.0 - 1.0 / HORIZON) ** len(successes)
        self.success[level] = mean + kept * (self.success.get(level, 0.0) - mean)

    def state(self) -> dict[str, Any]:
        """The EMA of each level."""
        return dict(self.success)

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take back what ``state`` returned."""
        self.success = dict(state)


class Uniform(Curriculum):
    """Plays all levels equally often."""

    def choose(self, levels: Sequence[str], rng: random.Random) -> str:
        """Any level."""
        return rng.choice(levels)


CURRICULA: Mapping[CurriculumName, Callable[[], Curriculum]] = {"climb": Climb, "uniform": Uniform}


def success_rates(arena: Playable, episodes: Iterable[Episode]) -> dict[str, list[float]]:
    """The success of each finished play by its task's level, easiest level first.

    Levels without a finished play are left out.

    Raises:
        ArenaError: ``success`` of the arena failed, or returned no number from 0 to 1.
    """
    by_level: dict[str, list[float]] = {level: [] for level in arena.levels}
    for episode in episodes:
        if not episode.error and not episode.void and episode.task.level in by_level:
            with user_code(f"success() of arena {arena.name!r}"):
                given: Any = arena.success(episode)
            if not 0.0 <= number(given) <= 1.0:
                raise ArenaError(
                    f"success() of arena {arena.name!r} returned {shown(given)}, for a play of "
                    f"task {episode.task.id!r}; expected a number from 0 to 1"
                )
            by_level[episode.task.level].append(number(given))
    return {level: found for level, found in by_level.items() if found}


def record_levels(
    arena: Playable, episodes: Sequence[Episode]
) -> tuple[dict[str, float], dict[str, float]]:
    """Let an arena's curriculum see how the plays of a group went.

    Returns:
        The metrics of the plays, their mean level (1: the easiest) and their success at each level,
        and for each metric the number of plays that it is a mean of; both are empty for an arena
        without levels.
    """
    numbers = {level: number for number, level in enumerate(arena.levels, start=1)}
    played = [numbers[e.task.level] for e in episodes if e.task.level in numbers]
    if not played:
        return {}, {}
    metrics = {"curriculum/level": sum(played) / len(played)}
    weights = {"curriculum/level": float(len(played))}
    for level, successes in success_rates(arena, episodes).items():
        with user_code(f"curriculum {type(arena.curriculum).__name__}"):
            arena.curriculum.record(level, successes)
        metrics[f"curriculum/success/{level}"] = sum(successes) / len(successes)
        weights[f"curriculum/success/{level}"] = float(len(successes))
    return metrics, weights
