"""Where a play stands in the tree of plays that spawn each other, which is bounded."""

from dataclasses import dataclass, field

from legos.errors import ArenaError

__all__ = ["MAX_DEPTH", "MAX_SPAWNED", "Descent"]

MAX_DEPTH = 32  # plays above a play
MAX_SPAWNED = 10_000  # plays below one that nobody spawned


@dataclass(slots=True)
class _Tree:
    spawned: int = 0


@dataclass(frozen=True, slots=True)
class Descent:
    """The place of a play in its tree."""

    depth: int = 0
    tree: _Tree = field(default_factory=_Tree)

    def below(self, plays: int, arena: str) -> "Descent":
        """The place of plays that the play spawns.

        Args:
            plays: number of plays.
            arena: name of the arena that is spawned, for the message.

        Raises:
            ArenaError: the tree would be too deep or too large.
        """
        self.tree.spawned += plays
        if self.depth >= MAX_DEPTH or self.tree.spawned > MAX_SPAWNED:
            raise ArenaError(
                f"spawn() would make a tree of {self.tree.spawned} plays, {self.depth + 1} deep; "
                f"expected at most {MAX_SPAWNED} plays and a depth of {MAX_DEPTH}: does arena "
                f"{arena!r} spawn itself, or spawn in a loop, without an end?"
            )
        return Descent(self.depth + 1, self.tree)
