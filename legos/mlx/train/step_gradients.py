"""Loss, metric sums and LoRA gradients of one optimiser step, every distinct prefix computed once.

P places, V vocabulary, H hidden size.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx_lm.models.cache import make_prompt_cache
from numpy.typing import NDArray

from legos.data.sample import Sample
from legos.errors import TrainerError
from legos.losses.objective import Objective
from legos.mlx.model.forward import CausalModel
from legos.mlx.train.memory import MemoryPlan, plan_memory
from legos.mlx.train.packing import StepRows, StepSamples, probe_samples, step_rows
from legos.mlx.train.parallel import sum_over_processes
from legos.mlx.train.prefix_sharing.backward import Found, PassGradients, Policy, Runner
from legos.mlx.train.prefix_sharing.kv import can_share
from legos.mlx.train.prefix_sharing.plan import Pass, plan_passes
from legos.mlx.train.prefix_sharing.trie import Trie, token_trie
from legos.mlx.train.reference import Lora, other_lora

__all__ = ["StepGradients"]

logger = logging.getLogger(__name__)
CHUNK_LOGITS = 1 << 23  # logits of one chunk: 32 MiB in float32, and ten times that at the peak
MIN_PLACES = 64  # of a chunk; fewer waste the reading of the head's weights
LONGER = 1.25  # rows so much longer than those planned for are planned for again
NO_LIMIT = 2**31 - 1  # tokens of a row
Arrays = Mapping[str, mx.array]


class StepGradients:
    """Computes the gradients of optimiser steps on one module tree.

    Attributes:
        memory: what steps are expected to take; None before the first.
        row_limit: tokens of a row beyond which samples of the newest step were left out, because
            they do not fit into memory even alone; None: no such limit.
        shares: whether rows share prefixes; False where the architecture does not allow it.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        max_tokens: int = 4096,
        max_places: int | None = None,
        group: mx.distributed.Group | None = None,
        ceiling_bytes: int | None = None,
        report: Callable[[str], None] | None = None,
    ) -> None:
        """Find out how the model can be run.

        Args:
            model: the tree, LoRA in it.
            max_tokens: padded tokens of one forward and backward pass, shared ones counted once.
            max_places: places whose logits are in memory at once; None: as many as make 32 MiB.
            group: processes that share the work, each given the same steps; None: this one alone.
            ceiling_bytes: passes are made smaller than ``max_tokens`` to stay below it, and rows
                left out that do not fit alone; None: most of the machine's memory.
            report: gets the plan of the memory in one line; None: it is logged.
        """
        self._model = model
        forward = CausalModel(model)
        self.shares = can_share(forward.trunk, model)
        self.memory: MemoryPlan | None = None
        self._max_tokens = max_tokens
        self._group = group if group is not None and group.size() > 1 else None
        self._ceiling_bytes = ceiling_bytes
        self._report = report
        self.row_limit: int | None = None
        self._runner = Runner(
            model=model,
            forward=forward,
            num_caches=len(make_prompt_cache(model)) if self.shares else 0,
            max_places=max_places or max(MIN_PLACES, CHUNK_LOGITS // forward.num_vocabulary),
        )

    def of_step(
        self,
        step: StepSamples,
        objective: Objective,
        ema: Arrays,
        *,
        reference: Lora | None = None,
    ) -> Found:
        """The whole step.

        Args:
            step: its samples and their weights.
            objective: what to minimise.
            ema: LoRA arrays of the policy's EMA, read where ``ema_kl_coef`` is not 0.
            reference: LoRA of the reference, read where ``kl_coef`` is not 0 and a sample brings no
                log-probabilities of its own; None: the base model.

        Raises:
            TrainerError: no row fits into memory.
        """
        unknown = any(sample.reference_logprobs is None for sample in step.samples)

        def prepared(step: StepSamples) -> tuple[StepRows, Trie, PassGradients]:
            """Rows, their trie, and what computes them under this step's policies."""
            others = {
                name: Policy(within=partial(other_lora, self._model, lora))
                for name, lora, coefficient in (
                    ("reference", reference, objective.kl_coef and unknown),
                    ("average", Lora(arrays=ema), objective.ema_kl_coef),
                )
                if coefficient
            }
            return self._prepared(step, objective, Policy(within=nullcontext), others)

        rows, trie, work = prepared(step)
        longest = max(range(len(rows.tokens)), key=lambda row: len(rows.tokens[row]))

        def probe(num_tokens: int) -> None:
            vocabulary = self._runner.forward.num_vocabulary
            alike = probe_samples(
                step.samples, rows, longest, num_tokens, num_vocabulary=vocabulary
            )
            _, trie, work = prepared(alike)
            work.of_passes(plan_passes(trie, max_tokens=1 << 30))

        self.memory = plan = self._planned(len(rows.tokens[longest]), probe)
        limit = self._agreed_limit(plan)
        if limit is not None and len(rows.tokens[longest]) > limit:
            _, trie, work = prepared(self._fitting(step, limit, plan))
        budget = plan.holding(mx.get_active_memory()).max_tokens(self._max_tokens)
        passes = self._own(trie, budget)
        mx.reset_peak_memory()
        found = work.of_passes(passes)
        self.memory = self._corrected(plan, passes)
        return found if self._group is None else _sum_of(found, self._group)

    def logprobs(
        self,
        samples: Sequence[Sample],
        within: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> NDArray[np.float32]:
        """[N] nats of the samples' chosen tokens, one sample after the other; no gradient is made.

        Args:
            samples: at least one.
            within: what the tree computes; by default what it holds.
        """
        step = StepSamples(samples=samples, weights=[0.0] * len(samples))
        _, trie, work = self._prepared(step, Objective(), Policy(within=within), {})
        budget = self._max_tokens
        if self.memory is not None:
            budget = self.memory.holding(mx.get_active_memory()).max_tokens(budget)
        return work.logprobs(plan_passes(trie, max_tokens=budget))

    def _prepared(
        self, step: StepSamples, objective: Objective, policy: Policy, others: Mapping[str, Policy]
    ) -> tuple[StepRows, Trie, PassGradients]:
        rows = step_rows(step.samples)
        trie = token_trie(rows.tokens, share=self.shares)
        work = PassGradients(
            self._runner, step, rows, trie, objective=objective, policy=policy, others=others
        )
        return rows, trie, work

    def _planned(self, longest: int, probe: Callable[[int], None]) -> MemoryPlan:
        """The plan of this step; made at the first one, and again where rows are much longer."""
        before = self.memory
        if before is not None and longest <= LONGER * before.longest:
            return before
        plan = plan_memory(
            probe,
            longest=longest,
            asked_tokens=self._max_tokens,
            ceiling_bytes=self._ceiling_bytes,
        )
        if before is None or self._decided(before) != self._decided(plan):
            self._announce(plan.describe(self._max_tokens), warn=plan.row_limit is not None)
        return plan

    def _agreed_limit(self, plan: MemoryPlan) -> int | None:
        """Tokens of the longest row that fits, in every process of the group; None: no limit."""
        limit = NO_LIMIT if plan.row_limit is None else plan.row_limit
        if self._group is not None:
            limit = self._smallest(limit)
        self.row_limit = None if limit == NO_LIMIT else limit
        return self.row_limit

    @staticmethod
    def _fitting(step: StepSamples, limit: int, plan: MemoryPlan) -> StepSamples:
        """The samples that fit into memory by themselves."""
        fitting = step.no_longer_than(limit)
        if not fitting.samples:
            raise TrainerError(
                f"no sample of this step fits into memory: {plan.describe(plan.probed)}"
            )
        return fitting

    def _corrected(self, plan: MemoryPlan, passes: Sequence[Pass]) -> MemoryPlan:
        """The plan of the next step: less at once where this one took more than the ceiling."""
        largest = max((one.num_tokens for one in passes), default=1)
        corrected = plan.corrected(mx.get_peak_memory(), tokens=largest)
        if self._decided(corrected) != self._decided(plan):
            text = corrected.describe(self._max_tokens)
            self._announce(f"a step took more than was planned; now {text}", warn=True)
        return corrected

    def _decided(self, plan: MemoryPlan) -> tuple[int, int | None]:
        """What a plan changes in how steps are computed."""
        return plan.max_tokens(self._max_tokens), plan.row_limit

    def _announce(self, text: str, *, warn: bool) -> None:
        if self._report is not None:
            self._report(text)
        else:
            logger.log(logging.WARNING if warn else logging.INFO, "%s", text)

    def _smallest(self, number: int) -> int:
        """Of what the processes of the group measured, which differs between machines."""
        assert self._group is not None, "one process agrees with itself"
        return int(np.array(mx.distributed.all_min(mx.array(number), group=self._group)))

    def _own(self, trie: Trie, budget: int) -> list[Pass]:
        """The passes that are this process's to compute."""
        if self._group is None:
            return plan_passes(trie, max_tokens=budget)
        rank, size = self._group.rank(), self._group.size()
        same = self._smallest(min(budget, -(-trie.num_tokens // size)))
        return plan_passes(trie, max_tokens=same)[rank::size]


def _sum_of(found: Found, group: mx.distributed.Group) -> Found:
    """What all processes of a group found together."""
    numbers = mx.array([found.loss, *found.sums.tolist()])
    logprobs = mx.array(found.logprobs)
    numbers, logprobs, gradients = sum_over_processes((numbers, logprobs, found.gradients), group)
    loss, *sums = np.array(numbers, np.float64).tolist()
    return Found(loss, np.array(sums), gradients, np.array(logprobs))
