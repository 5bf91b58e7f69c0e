"""The plays that are compared with each other, from their plan to their samples."""

from collections.abc import Mapping

from msgspec import Struct, field

from legos.errors import RecordError
from legos.records.episode import Episode, Task
from legos.records.sample import Sample


class Group(Struct, frozen=True, kw_only=True):
    """The plays of one task, or of one step, that are compared with each other: the unit of flow.

    The cursor plans it, the batcher admits it, the player adds what was played, and it waits in the
    buffer for the trainer.

    ``tokens_generated`` equals the samples' chosen tokens plus ``tokens_discarded`` of all reasons.
    ``weights`` has the number of values of each metric that is a mean; other metrics are counts.
    """

    plays: tuple[tuple[Task, int], ...] = ()  # tasks to play, each with the seed of its play
    round: int = 0  # number of the round of tasks that it belongs to
    numbers: tuple[int, ...] = ()  # indices of its tasks in the round
    first_play: int = 0  # number of plays of the arena that were planned before it
    admitted_version: int = 0  # newest policy version when it was admitted
    samples: tuple[Sample, ...] = ()
    episodes: tuple[Episode, ...] = ()
    tokens_generated: int = 0
    tokens_discarded: Mapping[str, int] = field(default_factory=dict[str, int])  # reason -> tokens
    metrics: Mapping[str, float] = field(default_factory=dict[str, float])
    weights: Mapping[str, float] = field(default_factory=dict[str, float])
    num_tasks: int = 1  # number of tasks that it plays
    arena: str = ""  # name of the arena that was played; "": unknown
    left_out: Mapping[str, str] = field(default_factory=dict[str, str])  # rollout -> why it, or a
    # part of it, is in no sample

    def __post_init__(self) -> None:
        """Check that the token counts balance.

        Raises:
            RecordError: they do not; the message gives both sides of the equation.
        """
        kept = sum(len(sample.positions) for sample in self.samples)
        lost = sum(self.tokens_discarded.values())
        if kept + lost != self.tokens_generated:
            raise RecordError(
                f"{self.tokens_generated} tokens were generated but {kept} are in samples "
                f"and {lost} discarded"
            )

    @property
    def key(self) -> tuple[str, int, tuple[int, ...]]:
        """What tells a planned group from all others of a run."""
        return self.arena, self.round, self.numbers

    @property
    def num_tokens(self) -> int:
        """Number of chosen tokens in the samples."""
        return self.tokens_generated - sum(self.tokens_discarded.values())

    @property
    def oldest_version(self) -> int:
        """Policy version of its oldest chosen token; -1: it has no samples."""
        return min((sample.oldest_version for sample in self.samples), default=-1)

    @property
    def newest_version(self) -> int:
        """Policy version of its newest chosen token; -1: it has no samples."""
        return max((sample.newest_version for sample in self.samples), default=-1)
