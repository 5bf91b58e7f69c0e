"""Loss, metric sums and LoRA gradients of one optimiser step, every distinct prefix computed once.

P places, V vocabulary, H hidden size.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.utils import tree_map
from mlx_lm.models.cache import make_prompt_cache
from numpy.typing import NDArray

from legos.data.batch import Batch
from legos.losses.metrics import SUMS
from legos.losses.objective import Objective
from legos.mlx.forward import CausalModel
from legos.mlx.head_loss import OtherLogits, head_loss
from legos.mlx.lora import lora_arrays, set_lora_arrays, without_lora
from legos.mlx.memory import MemoryPlan, plan_memory
from legos.mlx.parallel import sum_over_processes
from legos.mlx.passes import Pass, pass_of_segment, plan_passes
from legos.mlx.regroup import pass_batch, step_rows
from legos.mlx.shared import can_share, pass_hidden
from legos.mlx.trie import Trie, token_trie

__all__ = ["StepGradients"]

CHUNK_LOGITS = 1 << 23  # logits of one chunk: 32 MiB in float32, and ten times that at the peak
MIN_PLACES = 64  # of a chunk; fewer waste the reading of the head's weights
LONGER = 1.25  # rows so much longer than those planned for are planned for again
Arrays = Mapping[str, mx.array]
Policy = Callable[[], AbstractContextManager[None]]


class StepGradients:
    """Computes the gradients of optimiser steps on one module tree.

    Attributes:
        num_vocabulary: token ids are below it.
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
        self._forward = CausalModel(model)
        self.num_vocabulary = self._forward.num_vocabulary
        self._max_tokens = max_tokens
        self._group = group if group is not None and group.size() > 1 else None
        self._max_places = max_places or max(MIN_PLACES, CHUNK_LOGITS // self.num_vocabulary)
        self.shares = can_share(self._forward.trunk, model)
        self._ceiling_bytes = ceiling_bytes
        self.memory: MemoryPlan | None = None
        self._num_caches = len(make_prompt_cache(model)) if self.shares else 0

    def of_step(
        self, batches: Sequence[Batch], objective: Objective, average: Arrays
    ) -> tuple[float, NDArray[np.float64], dict]:
        """The whole step.

        Args:
            batches: at least one.
            objective: what to minimise.
            average: LoRA arrays of the averaged policy, read where ``ema_kl_coef`` is not 0.

        Returns:
            The loss, [len(SUMS)] sums for the metrics, and the tree of gradients.
        """
        step = step_rows(batches)
        trie = token_trie(step.tokens, share=self.shares)
        asked = self._max_tokens or max(batch.input_ids.size for batch in batches)

        def compute(one: Pass) -> tuple[mx.array, mx.array, Any]:
            batch = pass_batch(batches, step, trie, one)
            found = self._of_pass(one, batch, objective, average)
            mx.eval(found)
            return found

        one = _longest(trie)
        if self.memory is None or one.num_tokens > LONGER * self.memory.longest:
            self.memory = plan_memory(
                lambda: compute(one),
                longest=one.num_tokens,
                asked_tokens=asked,
                ceiling_bytes=self._ceiling_bytes,
            )
        loss, sums = 0.0, np.zeros(len(SUMS))
        gradients: Any = tree_map(mx.zeros_like, self._model.trainable_parameters())
        for one in self._own(trie, self.memory.max_tokens(asked)):
            value, counted, found = compute(one)
            gradients = tree_map(mx.add, gradients, found)
            mx.eval(gradients)
            loss += float(np.array(value))
            sums += np.array(counted, np.float64)
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

    def _of_pass(
        self, one: Pass, batch: Batch, objective: Objective, average: Arrays
    ) -> tuple[mx.array, mx.array, dict]:
        others = {
            name: self._other(policy, one, batch)
            for name, policy, wanted in (
                ("reference", self._without_lora, objective.kl_coef),
                ("average", partial(self._with_arrays, average), objective.ema_kl_coef),
            )
            if wanted
        }

        def loss() -> tuple[mx.array, mx.array, mx.array]:
            hidden = self._hidden(one, batch)
            return head_loss(
                self._forward, hidden, batch, objective, others, num_places=self._max_places
            )

        (_, value, counted), gradients = nn.value_and_grad(self._model, loss)()
        return value, counted, gradients

    def _other(self, policy: Policy, one: Pass, batch: Batch) -> OtherLogits:
        """Logits of another policy: its hidden states at once, its head when asked."""
        with policy():
            hidden = self._hidden(one, batch)
            mx.eval(hidden)

        def logits(places: mx.array | slice) -> mx.array:
            with policy():
                return mx.stop_gradient(self._forward.head(hidden[places]).astype(mx.float32))

        return logits

    def _hidden(self, one: Pass, batch: Batch) -> mx.array:
        """[P, H] the trunk's output at the places of a pass."""
        found: list[mx.array] = []
        first = start = 0
        for block, hidden in zip(
            one.blocks, pass_hidden(self._forward.trunk, one, self._num_caches), strict=True
        ):
            first, before = first + len(block.input_ids), first
            start, end = int(np.searchsorted(batch.place_row, first)), start
            if end < start:
                rows = mx.array(batch.place_row[end:start] - before)
                found.append(hidden[rows, mx.array(batch.place_column[end:start])])
        return found[0] if len(found) == 1 else mx.concatenate(found)

    def _without_lora(self) -> AbstractContextManager[None]:
        return without_lora(self._model)

    @contextmanager
    def _with_arrays(self, arrays: Arrays) -> Generator[None]:
        """Within the block the tree computes another adapter."""
        current = lora_arrays(self._model)
        set_lora_arrays(self._model, arrays)
        try:
            yield
        finally:
            set_lora_arrays(self._model, current)


def _longest(trie: Trie) -> Pass:
    """The rows that end where most tokens do, usually one."""
    return pass_of_segment(
        trie, max(trie.row_segment, key=lambda segment: trie.segments[segment].end)
    )
