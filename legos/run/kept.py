"""Which plays of a step a run keeps: those of some tasks as a whole, and those that stand out."""

from collections.abc import Sequence
from typing import Any
from zlib import crc32

from legos.credit.means import trained_returns
from legos.loop.trained import PolicyPass, trained_turns
from legos.records.episode import Episode
from legos.records.group import Group
from legos.records.seeds import mix
from legos.run.folder import RunFolder
from legos.run.play_files import FILE_BYTES


class KeptPlays:
    """Writes the plays that a run keeps into its folder, within a budget of disk space.

    Attributes:
        share: share of the tasks of a step whose plays are all kept; None: no play is kept.
        full: whether a file may be full, so that ``pack`` is due.
    """

    def __init__(self, folder: RunFolder, *, share: float, disk_gib: float) -> None:
        """Keep plays in a folder.

        Args:
            folder: folder of the run.
            share: share of the tasks of a step whose plays are all kept.
            disk_gib: disk space of the plays, GiB; the oldest go first. 0: no play is kept.
        """
        self.share = share if disk_gib else None
        self.full = True  # a killed process may have left one
        self._folder = folder
        self._budget = int(disk_gib * 2**30)
        self._full_at = min(FILE_BYTES, self._budget // 4)

    def add_step(self, step: int, groups: Sequence[Group], passes: Sequence[PolicyPass]) -> None:
        """Write plays of a step, with what its passes computed for their tokens.

        Raises:
            CheckpointError: they cannot be written.
        """
        if self.share is not None:
            kept = kept_plays(groups, self.share)
            self._add(step, kept, trained=trained_turns(passes, groups, kept))

    def add_evaluation(self, step: int, episodes: Sequence[Episode]) -> None:
        """Write all plays of an evaluation; raises as ``add_step``."""
        if self.share is not None:
            self._add(step, episodes, evaluation=True)

    def pack(self) -> None:
        """Compress full files, and remove the oldest that exceed the budget.

        Raises:
            CheckpointError: a file cannot be written.
        """
        self.full = False
        self._folder.plays.pack(self._budget - self._full_at)

    def _add(self, step: int, episodes: Sequence[Episode], **about: Any) -> None:
        if episodes:
            full = self._folder.add_episodes(step, episodes, full_at=self._full_at, **about)
            self.full |= full


def kept_plays(groups: Sequence[Group], share: float) -> list[Episode]:
    """The plays of some groups that are kept, in their order.

    These are all plays of a share of the tasks, so that they can be compared with each other, all
    that failed, and of the others the longest (by sampled tokens), the best and the worst (by the
    return of a trained seat). What is kept of a step is kept of each of its groups alone, too.

    Args:
        groups: groups of one step.
        share: share of the tasks, which are drawn by their names.
    """
    plays = [(group, episode) for group in groups for episode in group.episodes]
    extremes: set[int] = set()
    if ended := [episode for _, episode in plays if not (episode.error or episode.void)]:
        returns = [trained_returns([episode]) or [0.0] for episode in ended]
        longest = max(ended, key=lambda episode: episode.num_tokens)
        _, best = max(zip(returns, ended, strict=True), key=lambda each: max(each[0]))
        _, worst = min(zip(returns, ended, strict=True), key=lambda each: min(each[0]))
        extremes = {id(longest), id(best), id(worst)}
    drawn: dict[tuple[str, int, str], bool] = {}
    kept: list[Episode] = []
    for group, episode in plays:
        task = group.arena, group.first_play, episode.task.id
        if task not in drawn:
            drawn[task] = mix(crc32(repr(task).encode())) < share * 2**63
        if drawn[task] or episode.error or id(episode) in extremes:
            kept.append(episode)
    return kept
