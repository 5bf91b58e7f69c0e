"""How many tokens may be computed at once, from probes and the memory there is."""

import math
import os
from collections.abc import Callable
from dataclasses import dataclass, replace

import mlx.core as mx

__all__ = ["MemoryPlan", "peak_bytes", "plan_memory", "usable_bytes"]

ADVISED_SHARE = 0.9  # of the working set that Metal advises; the rest is the process's own
SHARE = 0.8  # of all memory where no advice is given; the rest is other programs' and the system's
MARGIN = 1.25  # how much more than the probe a pass may take, by padding and by prefixes
FIRST_PROBE = 512  # tokens at once; longer rows are approached by probes, never tried blindly
SHORTEST_PROBE = 16  # tokens; where even these do not fit, nothing does
STEP_UP = 1.25  # a longer probe must be so much longer than the one before to be worth its time


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """What a step is expected to take."""

    held_bytes: int  # allocated before it: weights, adapter, optimiser, the engine's caches
    token_bytes: int  # per token computed at once, in rows as long as the longest
    ceiling_bytes: int  # what may be allocated in all
    probed: int  # tokens computed at once by the largest probe: a row, or several shorter ones
    longest: int  # tokens of the longest row that there was; a row cannot be split
    row_limit: int | None = None  # tokens beyond which rows do not fit even alone; None: all do

    def max_tokens(self, asked: int) -> int:
        """What is asked for, halved until it fits, and at least what was probed.

        Halving keeps the plan, and so the rounding of a resumed run, the same when the probe's
        measure is a little different.
        """
        tokens = asked
        while tokens > self.probed and self.peak_bytes(tokens) > self.ceiling_bytes:
            tokens = max(self.probed, tokens // 2)
        return tokens

    @property
    def fits(self) -> bool:
        """Whether what was probed stays below the ceiling."""
        return self.peak_bytes(self.probed) <= self.ceiling_bytes

    @property
    def reach(self) -> int:
        """Tokens of the longest row that fits even if memory grew with the square of its length."""
        room = max(0, self.ceiling_bytes - self.held_bytes)
        need = max(1, self.peak_bytes(self.probed) - self.held_bytes)
        return int(self.probed * math.sqrt(room / need))

    def peak_bytes(self, tokens: int) -> int:
        """The most that is allocated while so many tokens are computed at once."""
        return self.held_bytes + int(MARGIN * tokens * self.token_bytes)

    def holding(self, held_bytes: int) -> "MemoryPlan":
        """The plan where more is allocated before a step than there was."""
        return replace(self, held_bytes=max(self.held_bytes, held_bytes))

    def corrected(self, peak_bytes: int, *, tokens: int) -> "MemoryPlan":
        """The plan after a step that took more than the ceiling; itself where it did not.

        Args:
            peak_bytes: allocated at the most.
            tokens: of the step's largest pass.
        """
        if peak_bytes <= self.ceiling_bytes:
            return self
        took = math.ceil((peak_bytes - self.held_bytes) / (MARGIN * tokens))
        return replace(self, token_bytes=max(self.token_bytes, took))

    def describe(self, asked: int) -> str:
        """One line: what is held, what a token takes, and how many are computed at once."""
        tokens = self.max_tokens(asked)
        told = (
            f"training memory: {_size(self.held_bytes)} held, "
            f"{self.token_bytes / 2**20:.2f} MiB per token, "
            f"{tokens} of {asked} tokens at once, "
            f"{_size(self.peak_bytes(tokens))} of {_size(self.ceiling_bytes)} at the most"
        )
        if self.row_limit is None:
            return told
        return (
            f"{told}; samples of more than {self.row_limit} tokens do not fit and are left out "
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
    """Run the longest row, or as much of it as surely fits, and plan from what it took.

    Memory grows at most with the square of a row's length, so a short probe tells how long the next
    one may be. The last one is the longest row itself, unless that does not fit. Rows shorter than
    the first probe are probed several at once, so that what every pass takes is not laid on few
    tokens.

    Args:
        probe: forward and backward pass of so many tokens, in rows of ``longest`` tokens or, where
            they are fewer, in one row of so many; evaluated when it returns.
        longest: tokens of the longest row.
        asked_tokens: tokens to be computed at once where they fit.
        ceiling_bytes: what may be allocated in all; None: most of the machine's memory.
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
    limit = plan.probed if plan.fits else 0
    return replace(plan, row_limit=limit if limit < longest else None)


def peak_bytes(call: Callable[[], object]) -> int:
    """Run a call; how many bytes were allocated at the most, beyond those before it."""
    mx.clear_cache()
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    call()
    return mx.get_peak_memory() - before


def usable_bytes() -> int:
    """What a process may allocate: most of what the device advises or has, or the machine."""
    told = mx.device_info()
    advised = told.get("max_recommended_working_set_size")
    if advised:
        return int(ADVISED_SHARE * int(advised))
    own = told.get("total_memory") or told.get("memory_size")
    return int(SHARE * int(own or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")))


def _size(count: int) -> str:
    return f"{count / 2**30:.2f} GiB" if count >= 2**30 else f"{count / 2**20:.0f} MiB"
