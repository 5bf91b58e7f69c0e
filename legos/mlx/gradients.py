"""Loss, metric sums and LoRA gradients of one optimiser step, every distinct prefix computed once.

P places, V vocabulary, H hidden size.
"""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from functools import partial

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx_lm.models.cache import make_prompt_cache
from numpy.typing import NDArray

from legos.data.batch import Batch
from legos.losses.objective import Objective
from legos.mlx.forward import CausalModel
from legos.mlx.memory import MemoryPlan, plan_memory
from legos.mlx.parallel import sum_over_processes
from legos.mlx.pass_gradients import PassGradients, Policy, Runner
from legos.mlx.passes import Pass, pass_of_segment, plan_passes
from legos.mlx.reference import Lora, other_lora
from legos.mlx.regroup import step_rows
from legos.mlx.shared import can_share
from legos.mlx.trie import Trie, token_trie

__all__ = ["StepGradients"]

CHUNK_LOGITS = 1 << 23  # logits of one chunk: 32 MiB in float32, and ten times that at the peak
MIN_PLACES = 64  # of a chunk; fewer waste the reading of the head's weights
LONGER = 1.25  # rows so much longer than those planned for are planned for again
Arrays = Mapping[str, mx.array]


class StepGradients:
    """Computes the gradients of optimiser steps on one module tree.

    Attributes:
        memory: what steps are expected to take; None before the first.
        shares: whether rows share prefixes; False where the architecture does not allow it.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        max_tokens: int | None = None,
        max_places: int | None = None,
        group: mx.distributed.Group | None = None,
        ceiling_bytes: int | None = None,
    ) -> None:
        """Find out how the model can be run.

        Args:
            model: the tree, LoRA in it.
            max_tokens: padded tokens of one forward and backward pass, shared ones counted once;
                None: as many as the largest batch of a step has.
            max_places: places whose logits are in memory at once; None: as many as make 32 MiB.
            group: processes that share the work, each given the same steps; None: this one alone.
            ceiling_bytes: passes are made smaller than ``max_tokens`` to stay below it; None: most
                of the machine's memory.
        """
        self._model = model
        forward = CausalModel(model)
        self.shares = can_share(forward.trunk, model)
        self.memory: MemoryPlan | None = None
        self._max_tokens = max_tokens
        self._group = group if group is not None and group.size() > 1 else None
        self._ceiling_bytes = ceiling_bytes
        self._runner = Runner(
            model=model,
            forward=forward,
            num_caches=len(make_prompt_cache(model)) if self.shares else 0,
            max_places=max_places or max(MIN_PLACES, CHUNK_LOGITS // forward.num_vocabulary),
        )

    def of_step(
        self,
        batches: Sequence[Batch],
        objective: Objective,
        average: Arrays,
        *,
        reference: Lora | None = None,
    ) -> tuple[float, NDArray[np.float64], dict]:
        """The whole step.

        Args:
            batches: at least one.
            objective: what to minimise.
            average: LoRA arrays of the averaged policy, read where ``ema_kl_coef`` is not 0.
            reference: LoRA of the reference, read where ``kl_coef`` is not 0; None: the base model.

        Returns:
            The loss, [len(SUMS)] sums for the metrics, and the tree of gradients.
        """
        rows = step_rows(batches)
        trie = token_trie(rows.tokens, share=self.shares)
        asked = self._max_tokens or max(batch.input_ids.size for batch in batches)
        others = {
            name: Policy(within=partial(other_lora, self._model, lora))
            for name, lora, coefficient in (
                ("reference", reference, objective.kl_coef),
                ("average", Lora(arrays=average), objective.ema_kl_coef),
            )
            if coefficient
        }
        work = PassGradients(
            self._runner,
            batches,
            rows,
            trie,
            objective=objective,
            policy=Policy(within=nullcontext),
            others=others,
        )
        longest = _longest(trie)
        if self.memory is None or longest.num_tokens > LONGER * self.memory.longest:
            self.memory = plan_memory(
                lambda: work.of_passes([longest]),
                longest=longest.num_tokens,
                asked_tokens=asked,
                ceiling_bytes=self._ceiling_bytes,
            )
        passes = self._own(trie, self.memory.max_tokens(asked))
        loss, sums, gradients = work.of_passes(passes)
        if self._group is not None:
            numbers = mx.array([loss, *sums.tolist()])
            numbers, gradients = sum_over_processes((numbers, gradients), self._group)
            loss, *rest = np.array(numbers, np.float64).tolist()
            sums = np.array(rest)
        return loss, sums, gradients

    def _own(self, trie: Trie, budget: int) -> list[Pass]:
        """The passes that are this process's to compute."""
        if self._group is None:
            return plan_passes(trie, max_tokens=budget)
        rank, size = self._group.rank(), self._group.size()
        own = mx.array(min(budget, -(-trie.num_tokens // size)))
        same = mx.distributed.all_min(own, group=self._group)  # measures differ between machines
        return plan_passes(trie, max_tokens=int(np.array(same)))[rank::size]


def _longest(trie: Trie) -> Pass:
    """The rows that end where most tokens do, usually one."""
    return pass_of_segment(
        trie, max(trie.row_segment, key=lambda segment: trie.segments[segment].end)
    )
