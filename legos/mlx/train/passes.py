"""Gradients of the passes of one step, and of the prefixes that several passes continue.

P logit positions, V vocabulary, H hidden size.
"""

from bisect import bisect_right
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.utils import tree_flatten, tree_map
from numpy.typing import NDArray

from legos.device.gradients import StepResult
from legos.losses.metrics import SUMS
from legos.losses.objective import Objective
from legos.mlx.model.forward import CausalModel
from legos.mlx.model.lora import lora_arrays, set_lora_arrays
from legos.mlx.train.fused_logprob.head_loss import head_loss
from legos.mlx.train.prefix_sharing.kv import Outputs, run_pass
from legos.mlx.train.prefix_sharing.plan import Pass, pass_of_carried
from legos.mlx.train.prefix_sharing.trie import Trie
from legos.records.batch import Batch, make_batch, pad_rows
from legos.records.packing import StepRows, StepSamples


@dataclass(frozen=True, slots=True, kw_only=True)
class Runner:
    """A module tree, and how to run it."""

    model: nn.Module
    forward: CausalModel
    num_caches: int  # number of caches that the trunk takes; 0 where prefixes cannot be shared
    num_frozen: int  # number of the first of them that no trained array changes
    max_places: int  # maximum number of positions whose logits are in memory at once


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """A policy: a context in which the tree computes it, and its outputs of carried segments."""

    within: Callable[[], AbstractContextManager[None]]
    outputs: dict[int, Outputs] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class PassGradients:
    """Computes the gradients of the passes of one step."""

    runner: Runner  # the model
    step: StepSamples
    rows: StepRows  # rows of the samples
    trie: Trie  # trie of the rows
    objective: Objective  # the objective to minimise
    policy: Policy  # the policy being trained
    others: Mapping[str, Policy]  # "reference" and "ema", where the objective uses them

    @cached_property
    def _ends(self) -> NDArray[np.int64]:
        return np.cumsum([len(sample.positions) for sample in self.step.samples])

    def of_passes(
        self,
        passes: Sequence[Pass],
        *,
        before_pass: Callable[[], None],
        after_pass: Callable[[int], None],
        before_prefix: Callable[[], None],
    ) -> StepResult:
        """Compute some passes.

        A prefix that several passes continue is computed before the first of them, without
        gradient. Each pass gives the cotangent of the prefix's outputs; after the last one, one
        backward pass through the prefix takes the sum of the cotangents of all passes. Passes are
        in depth-first order, so no more than the prefixes of about one row are held at a time.

        Args:
            passes: the passes.
            before_pass: called before each; may raise an error, after which nothing has changed.
            after_pass: called with the number of its tokens after each.
            before_prefix: the same before each computation of a carried prefix.
        """
        last = {number: index for index, one in enumerate(passes) for number in one.carried}
        loss, sums = 0.0, np.zeros(len(SUMS))
        gradients: Any = tree_map(mx.zeros_like, self.runner.model.trainable_parameters())
        of_tokens = np.zeros((2, self._ends[-1]), np.float32)
        cotangents: dict[int, Any] = {}
        for index, one in enumerate(passes):
            self._carry(one.carried, before_prefix)
            before_pass()
            batch, indices = pass_batch(self.step, self.rows, self.trie, one)
            value, counted, reported, found, back = self._of_pass(one, batch)
            if self.step.backward:  # otherwise MLX computes only those of a head in chunks
                gradients = tree_map(mx.add, gradients, found)
                _add(cotangents, one, back)
            mx.eval(value, counted, reported, gradients, list(cotangents.values()))
            after_pass(one.num_tokens)
            loss += float(np.array(value))
            sums += np.array(counted, np.float64)
            self._put(of_tokens, batch, indices, reported)
            for number in sorted((n for n in one.carried if last[n] == index), reverse=True):
                if self.step.backward:
                    before_prefix()
                    prefix = pass_of_carried(self.trie, number)
                    found, back = self._back(prefix, cotangents.pop(number))
                    gradients = tree_map(mx.add, gradients, found)
                    _add(cotangents, prefix, back)
                    mx.eval(gradients, list(cotangents.values()))
                for policy in (self.policy, *self.others.values()):
                    del policy.outputs[number]
        logprobs, entropies = of_tokens
        return StepResult(
            loss=loss, sums=sums, gradients=gradients, logprobs=logprobs, entropies=entropies
        )

    def _put(
        self, of_tokens: NDArray[np.float32], batch: Batch, indices: Sequence[int], found: mx.array
    ) -> None:
        """Write [2, S, A] values of the tokens of some samples into the array [2, N] of all."""
        starts = self._ends[list(indices)] - batch.mask.sum(axis=1)
        places = (starts[:, None] + np.arange(batch.mask.shape[1]))[batch.mask]
        of_tokens[:, places] = np.array(found)[:, batch.mask]

    def _carry(self, carried: Iterable[int], before: Callable[[], None]) -> None:
        """Compute the outputs of carried segments, parents first, under every policy."""
        for policy in (self.policy, *self.others.values()):
            with policy.within():
                for number in carried:
                    if number in policy.outputs:
                        continue
                    before()
                    one = pass_of_carried(self.trie, number)
                    policy.outputs[number] = self._outputs(one, _given(one, policy))
                    mx.eval(policy.outputs[number])

    def _outputs(self, one: Pass, given: Sequence[Outputs]) -> Outputs:
        """The outputs of the only segment of a pass."""
        hidden, kept = run_pass(self.runner.forward.trunk, one, self.runner.num_caches, given)
        return kept[one.blocks[0].numbers[0]], hidden[0][0]

    def _of_pass(
        self, one: Pass, batch: Batch
    ) -> tuple[mx.array, mx.array, mx.array, Any, list[Outputs]]:
        """Loss, sums, [2, S, A] values, gradients, and cotangents of the carried segments."""
        model = self.runner.model
        others = {name: self._other(policy, one, batch) for name, policy in self.others.items()}

        def loss(parameters: Any, given: list[Outputs]) -> tuple[mx.array, ...]:
            model.update(parameters)
            return head_loss(
                self.runner.forward,
                self._hidden(one, batch, self._differentiated(given)),
                batch,
                self.objective,
                others,
                num_positions=self.runner.max_places,
            )

        with _own_arrays(model) as own:
            (_, value, counted, reported), (found, back) = mx.value_and_grad(loss, argnums=(0, 1))(
                own, _given(one, self.policy)
            )
        return value, counted, mx.stop_gradient(reported), found, back

    def _back(self, one: Pass, cotangent: Outputs) -> tuple[Any, list[Outputs]]:
        """Backward pass of a carried segment: gradients, and cotangents of segments before it."""
        model = self.runner.model

        def weighed(parameters: Any, given: list[Outputs]) -> mx.array:
            model.update(parameters)
            outputs = self._outputs(one, self._differentiated(given))
            products: Any = tree_map(lambda a, b: mx.sum(a * b), outputs, cotangent)
            terms: list[Any] = [product for _, product in tree_flatten(products)]
            return mx.sum(mx.stack(terms))

        with _own_arrays(model) as own:
            return mx.grad(weighed, argnums=(0, 1))(own, _given(one, self.policy))

    def _differentiated(self, given: Sequence[Outputs]) -> list[Outputs]:
        """Outputs of carried segments; a backward pass ends at the first layer that is trained.

        Without this, it would go on through the layers before, whose activations would be kept.
        """
        first = self.runner.num_frozen
        return [
            ([*tree_map(mx.stop_gradient, layers[:first]), *layers[first:]], hidden)
            for layers, hidden in given
        ]

    def _other(self, policy: Policy, one: Pass, batch: Batch) -> Callable[[mx.array], mx.array]:
        """Logits of another policy: hidden states are computed now, the head when it is called."""
        with policy.within():
            hidden = self._hidden(one, batch, _given(one, policy))
            mx.eval(hidden)

        def logits(places: mx.array) -> mx.array:
            with policy.within():
                found = self.runner.forward.head(hidden[places])
                return mx.stop_gradient(found.astype(mx.float32))

        return logits

    def _hidden(self, one: Pass, batch: Batch, given: Sequence[Outputs]) -> mx.array:
        """[P, H] output of the trunk at the logit positions of a pass."""
        runner = self.runner
        blocks, _ = run_pass(runner.forward.trunk, one, runner.num_caches, given)
        found: list[mx.array] = []
        first = start = 0
        for hidden in (*blocks, *(outputs[None] for _, outputs in given)):
            first, before = first + hidden.shape[0], first
            start, end = int(np.searchsorted(batch.logit_row, first)), start
            if end < start:
                rows = mx.array(batch.logit_row[end:start] - before)
                found.append(hidden[rows, mx.array(batch.logit_column[end:start])])
        return found[0] if len(found) == 1 else mx.concatenate(found)


@contextmanager
def _own_arrays(model: nn.Module) -> Generator[Any]:
    """The trained arrays of a tree, which has them again after the block, and no traced ones.

    After an error, MLX leaves traced arrays in the arguments of a function as well.
    """
    before = lora_arrays(model)
    try:
        yield model.trainable_parameters()
    finally:
        set_lora_arrays(model, before)


def _given(one: Pass, policy: Policy) -> list[Outputs]:
    return [policy.outputs[number] for number in one.carried]


def _add(cotangents: dict[int, Any], one: Pass, back: Sequence[Outputs]) -> None:
    """Add the cotangents of a pass's carried segments to those of other passes."""
    for number, cotangent in zip(one.carried, back, strict=True):
        cotangents[number] = (
            tree_map(mx.add, cotangents[number], cotangent) if number in cotangents else cotangent
        )


def pass_batch(step: StepSamples, rows: StepRows, trie: Trie, one: Pass) -> tuple[Batch, list[int]]:
    """The samples of one pass as a batch, and their indices in the step.

    The rows of the batch are the rows of the pass's blocks, one block after the other, and then the
    carried segments. Tokens that read the same distribution share one logit position.

    Args:
        step: all samples of the step.
        rows: rows of the samples.
        trie: trie of those rows.
        one: the pass, which says which rows it computes and where.
    """
    computed = [*(number for block in one.blocks for number in block.numbers), *one.carried]
    row_of = {segment: row for row, segment in enumerate(computed)}
    members: list[int] = []
    read_at: list[list[tuple[int, int]]] = []
    for row in one.rows:
        path = trie.path(trie.row_segment[row])
        starts = [trie.segments[segment].start for segment in path]
        chosen = [step.samples[index].positions for index in rows.samples[row]]
        cell: dict[int, tuple[int, int]] = {}  # position -> row and column before it
        for position in set().union(*chosen):
            level = bisect_right(starts, position - 1) - 1
            cell[position] = (row_of[path[level]], position - 1 - starts[level])
        members += rows.samples[row]
        read_at += [[cell[position] for position in positions] for positions in chosen]
    blocks = [row for block in one.blocks for row in block.input_ids]
    batch = make_batch(
        pad_rows([*blocks, *(trie.segments[segment].tokens for segment in one.carried)]),
        [step.samples[index] for index in members],
        [step.weights[index] for index in members],
        read_at,
    )
    return batch, members
