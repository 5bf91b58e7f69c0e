"""How many tokens may be computed at once, from a probe and the memory there is."""

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass

import mlx.core as mx

__all__ = ["MemoryPlan", "peak_bytes", "plan_memory", "usable_bytes"]

logger = logging.getLogger(__name__)
SHARE = 0.8  # of the machine's memory; the rest is the system's and other programs'
MARGIN = 1.25  # how much more than the probe a pass may take, by padding and by prefixes


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """What a step is expected to take."""

    held_bytes: int  # allocated before it: weights, adapter, optimiser, the engine's caches
    token_bytes: int  # per token computed at once, in rows as long as the longest
    ceiling_bytes: int  # what may be allocated in all
    longest: int  # tokens of the longest row, which cannot be split

    def max_tokens(self, asked: int) -> int:
        """What is asked for, halved until it fits, and at least the longest row.

        Halving keeps the plan, and so the rounding of a resumed run, the same when the probe's
        measure is a little different.
        """
        tokens = asked
        while tokens > self.longest and self.peak_bytes(tokens) > self.ceiling_bytes:
            tokens = max(self.longest, tokens // 2)
        return tokens

    @property
    def fits(self) -> bool:
        """Whether the longest row alone stays below the ceiling."""
        return self.peak_bytes(self.longest) <= self.ceiling_bytes

    def peak_bytes(self, tokens: int) -> int:
        """The most that is allocated while so many tokens are computed at once."""
        return self.held_bytes + int(MARGIN * tokens * self.token_bytes)

    def describe(self, asked: int) -> str:
        """One line: what is held, what a token takes, and how many are computed at once."""
        tokens = self.max_tokens(asked)
        told = (
            f"training memory: {_gib(self.held_bytes)} held, "
            f"{self.token_bytes / 2**20:.2f} MiB per token, "
            f"{tokens} of {asked} tokens at once, "
            f"{_gib(self.peak_bytes(tokens))} of {_gib(self.ceiling_bytes)} at the most"
        )
        if self.fits:
            return told
        return f"{told}; that may not fit: set training.gradient_checkpointing or shorten the rows"


def plan_memory(
    probe: Callable[[], object], *, longest: int, asked_tokens: int, ceiling_bytes: int | None
) -> MemoryPlan:
    """Run the longest row once and plan from what it took.

    Args:
        probe: its forward and backward pass, evaluated when it returns.
        longest: its tokens.
        asked_tokens: tokens to be computed at once where they fit.
        ceiling_bytes: what may be allocated in all; None: most of the machine's memory.
    """
    held = mx.get_active_memory()
    plan = MemoryPlan(
        held_bytes=held,
        token_bytes=-(-peak_bytes(probe) // longest),
        ceiling_bytes=usable_bytes() if ceiling_bytes is None else ceiling_bytes,
        longest=longest,
    )
    level = logging.INFO if plan.fits else logging.WARNING
    logger.log(level, "%s", plan.describe(asked_tokens))
    return plan


def peak_bytes(call: Callable[[], object]) -> int:
    """Run a call; how many bytes were allocated at the most, beyond those before it."""
    mx.clear_cache()
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    call()
    return mx.get_peak_memory() - before


def usable_bytes() -> int:
    """What a process may allocate: the device's own advice, or most of the machine's memory."""
    advised = mx.device_info().get("max_recommended_working_set_size")
    if advised:
        return int(advised)
    return int(SHARE * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))


def _gib(count: int) -> str:
    return f"{count / 2**30:.2f} GiB"
