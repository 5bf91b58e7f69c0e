"""Plan how many tokens to compute at once, from probes and the available memory."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import mlx.core as mx

from legos.mlx.model.machine import usable_bytes

__all__ = ["MemoryPlan", "peak_bytes", "plan_memory"]

MARGIN = 1.25  # memory of a pass / memory of the probe, at most: padding and prefixes take more
FIRST_PROBE = 512  # tokens of the first probe; probes approach longer rows in safe steps
SHORTEST_PROBE = 16  # tokens; where even this probe does not fit, no row does
STEP_UP = 1.25  # minimum length of a longer probe / length of the one before


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """The memory that a step is expected to need."""

    held_bytes: int  # bytes allocated before a step: weights, adapter, optimiser, engine's caches
    token_bytes: int  # bytes per token computed at once, in rows as long as the longest
    ceiling_bytes: int  # bytes that may be allocated in all
    probed: int  # tokens computed at once by the largest probe: a row, or several shorter ones
    longest: int  # tokens of the longest row when the plan was made; a row cannot be split
    row_limit: int | None = None  # tokens of the longest row that fits alone; None: all rows fit

    def max_tokens(self, asked: int) -> int:
        """The requested number of tokens, halved until it fits, but at least those of the probe.

        Because of the halving, a resumed run whose probe measures slightly different bytes gets the
        same plan, and so the same rounding.
        """
        tokens = asked
        while tokens > self.probed and self.peak_bytes(tokens) > self.ceiling_bytes:
            tokens = max(self.probed, tokens // 2)
        return tokens

    @property
    def fits(self) -> bool:
        """Whether the probed number of tokens stays below the ceiling."""
        return self.peak_bytes(self.probed) <= self.ceiling_bytes

    @property
    def reach(self) -> int:
        """Tokens of a row that fits even if memory grows with the square of its length."""
        room = max(0, self.ceiling_bytes - self.held_bytes)
        need = max(1, self.peak_bytes(self.probed) - self.held_bytes)
        return int(self.probed * math.sqrt(room / need))

    def peak_bytes(self, tokens: int) -> int:
        """Peak bytes while ``tokens`` tokens are computed at once."""
        return self.held_bytes + int(MARGIN * tokens * self.token_bytes)

    def holding(self, held_bytes: int) -> "MemoryPlan":
        """The plan, with ``held_bytes`` raised to the given bytes."""
        return replace(self, held_bytes=max(self.held_bytes, held_bytes))

    def corrected(self, peak_bytes: int, *, tokens: int) -> "MemoryPlan":
        """The plan after a step; it expects more per token where the step exceeded the ceiling.

        Args:
            peak_bytes: peak bytes of the step.
            tokens: tokens of the step's largest pass.
        """
        if peak_bytes <= self.ceiling_bytes:
            return self
        took = math.ceil((peak_bytes - self.held_bytes) / (MARGIN * tokens))
        return replace(self, token_bytes=max(self.token_bytes, took))

    def describe(self, asked: int) -> str:
        """One line: the memory held, the memory per token, and the tokens computed at once."""
        tokens = self.max_tokens(asked)
        line = (
            f"training memory: {_size(self.held_bytes)} held, "
            f"{self.token_bytes / 2**20:.2f} MiB per token, "
            f"{tokens} of {asked} tokens at once, "
            f"{_size(self.peak_bytes(tokens))} of {_size(self.ceiling_bytes)} at the most"
        )
        if self.row_limit is None:
            return line
        return (
            f"{line}; samples of more than {self.row_limit} tokens do not fit and are left out "
            f"(the longest has {self.longest}): training.gradient_checkpointing, where it is off, "
            "or a higher training.memory_limit_gib makes room"
        )


def plan_memory(
    probe: Callable[[int], object],
    *,
    longest: int,
    asked_tokens: int,
    ceiling_bytes: int | None = None,
) -> MemoryPlan:
    """Probe the longest row, or as much of it as certainly fits, and plan from its peak memory.

    Memory grows at most with the square of a row's length, so a short probe tells how long the next
    one may be. The last probe is the longest row itself, unless that does not fit. Rows shorter
    than the first probe are probed several at once, so that the fixed cost of a pass is not counted
    as a cost of few tokens.

    Args:
        probe: runs and evaluates a forward and backward pass of a number of tokens: in rows of
            ``longest`` tokens or, where the number is smaller, in one row of that length.
        longest: tokens of the longest row.
        asked_tokens: number of tokens to compute at once where they fit.
        ceiling_bytes: bytes that may be allocated in all; None: most of the machine's memory.
    """
    held = mx.get_active_memory()
    ceiling = usable_bytes() if ceiling_bytes is None else ceiling_bytes

    def measured(tokens: int) -> MemoryPlan:
        return MemoryPlan(
            held_bytes=held,
            token_bytes=-(-peak_bytes(lambda: probe(tokens)) // tokens),
            ceiling_bytes=ceiling,
            probed=tokens,
            longest=longest,
        )

    plan = measured(min(FIRST_PROBE, max(longest, asked_tokens)))
    while not plan.fits and plan.probed > SHORTEST_PROBE:
        plan = measured(max(SHORTEST_PROBE, plan.probed // 2))
    while plan.fits and plan.probed < longest:
        tokens = min(longest, plan.reach)
        if tokens < min(longest, STEP_UP * plan.probed):
            break
        further = measured(tokens)
        if not further.fits:
            break
        plan = further
    mx.clear_cache()  # the buffers of the probes have other sizes than those of the steps
    limit = plan.probed if plan.fits else 0
    return replace(plan, row_limit=limit if limit < longest else None)


def peak_bytes(call: Callable[[], object]) -> int:
    """Run a call; returns the peak of allocated bytes, minus those allocated before it."""
    mx.clear_cache()
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    call()
    return mx.get_peak_memory() - before


def _size(count: int) -> str:
    return f"{count / 2**30:.2f} GiB" if count >= 2**30 else f"{count / 2**20:.0f} MiB"
