"""How many tokens a step computes at once: the forecast, and the memory in use.

The tokens of a pass are halved until they fit. Where memory limits no pass, a resumed run makes the
same passes and rounds alike. Near the limit, passes also follow from what no checkpoint holds: the
memory in use, the longest row since the process began, and the steps that exceeded the limit.
"""

from dataclasses import dataclass, replace

from legos.mlx.model.forecast import COPIED, Sizes, halved, pass_bytes
from legos.records.limits import TrainingSize
from legos.records.step import MICRO_BATCH_TOKENS

MARGIN = 1.25  # the forecast may be a tenth too low, and prefixes are carried
LONGER = 1.25  # a plan covers rows that are longer than its longest by up to this factor
LEAST_TOKENS, PASS_SHARE, ROW = 256, 1 / 32, 256
SHORTEST = 16  # tokens; where not even such a row fits, none does


def usual_tokens(sizes: Sizes, size: TrainingSize, ceiling_bytes: int) -> int:
    """Padded tokens of a pass where no setting says it.

    Larger passes are no faster than 256 tokens of a large model, and take several times its memory;
    a small model needs more of them to keep the device busy, and has them. The rule depends on no
    sample, so a resumed run has the same number.

    Args:
        sizes: of the model.
        size: of the training.
        ceiling_bytes: bytes that may be allocated in all.
    """
    return halved(
        MICRO_BATCH_TOKENS,
        LEAST_TOKENS,
        lambda tokens: (
            pass_bytes(sizes, size, tokens / ROW, ROW, ceiling_bytes) <= PASS_SHARE * ceiling_bytes
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """The memory that steps are expected to need."""

    sizes: Sizes  # of the model
    size: TrainingSize
    held_bytes: int  # bytes allocated between steps: weights, adapters, optimiser, engine's caches
    ceiling_bytes: int  # bytes that may be allocated in all
    longest: int  # tokens of the longest row; a row cannot be split
    factor: float = MARGIN  # memory of a pass / its forecast

    def peak_bytes(self, tokens: int) -> int:
        """Peak bytes while so many tokens are computed at once, in rows as long as the longest."""
        length = min(self.longest, tokens)
        rows = tokens / length
        passed = pass_bytes(self.sizes, self.size, rows, length, self.ceiling_bytes)
        return self.held_bytes + int(self.factor * passed)

    def step_bytes(self, tokens: int) -> int:
        """Peak bytes of a step with passes of so many tokens; a longer row is a pass of its own."""
        return self.peak_bytes(max(tokens, self._longest_trained))

    def max_tokens(self, asked: int) -> int:
        """The requested number of tokens, halved until it fits, but not below the longest row."""
        least = self._longest_trained
        return halved(asked, least, lambda tokens: self.peak_bytes(tokens) <= self.ceiling_bytes)

    def max_keys(self, tokens: int) -> int:
        """Tokens of prefixes whose keys and values rows may copy, next to so many own tokens."""
        left = max(self.ceiling_bytes - self.peak_bytes(tokens), 0)
        return int(left / (self.factor * COPIED * max(self.sizes.key_bytes, 1)))

    def covers(self, longest: int) -> bool:
        """Whether the plan holds for rows of so many tokens; longer ones than its own must fit."""
        if longest <= self.longest:
            return True
        grown = replace(self, longest=longest)
        return longest <= LONGER * self.longest and grown.row_limit is None

    @property
    def row_limit(self) -> int | None:
        """Tokens of the longest row that fits alone; None: all rows fit, 0: none does."""
        if self.peak_bytes(self.longest) <= self.ceiling_bytes:
            return None
        low, high = 0, self.longest  # low fits, high does not
        while high - low > max(1, low // 64):
            middle = (low + high) // 2
            fits = self.peak_bytes(middle) <= self.ceiling_bytes
            low, high = (middle, high) if fits else (low, middle)
        return low if low >= SHORTEST else 0

    @property
    def _longest_trained(self) -> int:
        """Tokens of the longest row that is not left out."""
        return min(self.longest, self.row_limit or self.longest)

    def describe(self, asked: int) -> str:
        """One line: the memory held, and the tokens computed at once with their memory."""
        tokens, limit = self.max_tokens(asked), self.row_limit
        line = (
            f"training memory: {_size(self.held_bytes)} held, {tokens} of {asked} tokens at once, "
            f"{_size(self.step_bytes(tokens))} of {_size(self.ceiling_bytes)} at the most"
        )
        if limit is None:
            return line
        return (
            f"{line}; samples of more than {limit} tokens do not fit and are left out (the longest "
            f"has {self.longest}): training.gradient_checkpointing, where it is off, or a higher "
            "training.memory_limit_gib makes room"
        )


def _size(count: int) -> str:
    return f"{count / 2**30:.2f} GiB" if count >= 2**30 else f"{count / 2**20:.0f} MiB"
