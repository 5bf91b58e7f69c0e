"""The loss of a pass without holding the logits of all positions at once.

Where there are many logits, the output head runs in chunks of positions. The gradient of each
chunk's hidden states is computed before the next chunk starts, and the trunk's backward pass then
takes the gradients of all chunks at once. Peak memory is that of one chunk, for any vocabulary.

P logit positions, C positions of a chunk, N tokens of a chunk, V vocabulary, H hidden size,
S samples, A chosen tokens.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import mlx.core as mx
from mlx.utils import tree_flatten, tree_map

from legos.losses.objective import Objective
from legos.losses.policy import LOSSES
from legos.losses.total import BatchArrays, Terms, token_loss, token_terms
from legos.mlx.model.forward import CausalModel
from legos.mlx.train.fused_logprob.open_terms import open_terms
from legos.records.batch import Batch
from legos.records.chunks import chunks_of

OtherLogits = Callable[[mx.array], mx.array]
"""[C] positions -> [C, V] logits of another policy, without gradient."""


def head_loss(
    forward: CausalModel,
    hidden: mx.array,
    batch: Batch,
    objective: Objective,
    others: Mapping[str, OtherLogits],
    *,
    num_positions: int,
) -> tuple[mx.array, mx.array, mx.array, mx.array]:
    """Loss, metric sums and log-probabilities of one batch, and a surrogate to differentiate.

    Args:
        forward: the model; its head may have trained parameters.
        hidden: [P, H] output of the trunk at the batch's logit positions.
        batch: logit positions and samples.
        objective: the objective to minimise.
        others: logits of "reference" and "ema", if the objective uses them.
        num_positions: maximum number of positions of a chunk.

    Returns:
        A surrogate with the gradient of the loss (and, without chunks, its value), the loss,
        the sums of ``token_loss``, and [2, S, A] log-probabilities of the chosen tokens and
        entropies at their positions (nats).
    """
    if len(batch.logit_row) > num_positions:
        return _Chunked(forward, batch, objective, others, num_positions).loss(hidden)
    at = mx.arange(len(batch.logit_row))
    logits = forward.head(hidden).astype(mx.float32)
    arrays = BatchArrays(mx, batch)
    of_others = {name: other(at) for name, other in others.items()}
    terms = _terms(logits, of_others, arrays, objective)
    value, sums = token_loss(mx, terms, arrays, objective)
    return value, value, sums, _reported(terms)


class _Chunk(NamedTuple):
    """Some tokens of a batch as MLX arrays."""

    positions: mx.array  # [C] indices into the logit positions of the whole batch
    arrays: BatchArrays  # fields of the tokens, each as its own sample, so that A is 1


class _Chunked:
    """Computes the loss one chunk after the other.

    A chunk starts after all results of the chunk before it are computed. Otherwise MLX may evaluate
    the chunks' graphs breadth first, or one result may keep its chunk's logits until the end.
    """

    def __init__(
        self,
        forward: CausalModel,
        batch: Batch,
        objective: Objective,
        others: Mapping[str, OtherLogits],
        num_positions: int,
    ) -> None:
        self._forward = forward
        self._batch = batch
        self._objective = objective
        self._others = others
        self._sloped = ["logprob"]  # the terms on which the loss depends with a gradient
        if objective.entropy_coef:
            self._sloped.append("entropy")
        if objective.kl_estimator == "exact":
            self._sloped += others
        chunks, number = chunks_of(batch, num_positions)
        self._chunks = [_Chunk(mx.array(c.positions), BatchArrays(mx, c.batch)) for c in chunks]
        self._number = mx.array(number)  # [S, A] index of each token in the order of the chunks

    def loss(self, hidden: mx.array) -> tuple[mx.array, mx.array, mx.array, mx.array]:
        """See ``head_loss``."""
        module = self._forward.head_module
        outer: Any = module.trainable_parameters() if module is not None else {}
        by_sample = LOSSES[self._objective.loss].scope == "sample"
        of_chunks = self._by_sample if by_sample else self._by_token
        value, sums, reported, cotangents = of_chunks(
            tree_map(mx.stop_gradient, outer), mx.stop_gradient(hidden)
        )
        if module is not None:
            module.update(outer)
        at = mx.concatenate([chunk.positions for chunk in self._chunks])
        # One gather, since the backward pass of each makes an array as large as all hidden states.
        surrogate: Any = mx.sum(hidden[at] * mx.concatenate([back for _, back in cotangents]))
        for for_head, _ in cotangents:
            products = tree_map(lambda array, cotangent: mx.sum(array * cotangent), outer, for_head)
            flat: Any = tree_flatten(products)
            surrogate = sum((product for _, product in flat), surrogate)
        return surrogate, value, sums, reported[:, self._number, 0]

    def _by_token(
        self, parameters: Any, states: mx.array
    ) -> tuple[mx.array, mx.array, mx.array, list[Any]]:
        """Each chunk's loss and gradient in turn, where a token's loss reads that token only."""
        value = sums = mx.array(0.0)
        reports: list[mx.array] = []
        cotangents: list[Any] = []
        for chunk in self._chunks:

            def loss(parameters: Any, states: mx.array, chunk: _Chunk = chunk) -> Any:
                terms = self._terms(parameters, states, chunk)
                return *token_loss(mx, terms, chunk.arrays, self._objective), _reported(terms)

            found = mx.value_and_grad(loss, argnums=(0, 1))(parameters, states[chunk.positions])
            (part, counted, reported), back = tree_map(mx.stop_gradient, found)
            states = _after((part, counted, reported, back), states)
            value, sums = value + part, sums + counted
            reports.append(reported)
            cotangents.append(back)
        return value, sums, mx.concatenate(reports, axis=1), cotangents

    def _by_sample(
        self, parameters: Any, states: mx.array
    ) -> tuple[mx.array, mx.array, mx.array, list[Any]]:
        """Run the head twice, where a token's loss reads its whole sample.

        First compute the terms of each token (log-probability, entropy, divergences), then the loss
        of these terms and its gradient with respect to each, and then the backward pass of the
        head, chunk by chunk.
        """
        known: list[Terms] = []
        for chunk in self._chunks:
            terms = self._terms(parameters, states[chunk.positions], chunk)
            states = _after(terms, states)
            known.append(terms)
        together = {name: mx.concatenate([t[name] for t in known]) for name in known[0]}
        arrays = BatchArrays(mx, self._batch)

        def loss(together: Terms) -> tuple[mx.array, mx.array]:
            whole = {name: array[self._number, 0] for name, array in together.items()}
            return token_loss(mx, whole, arrays, self._objective)

        (value, sums), along = tree_map(mx.stop_gradient, mx.value_and_grad(loss)(together))
        states = _after(along, states)
        cotangents: list[Any] = []
        first = 0
        for chunk in self._chunks:
            last = first + len(chunk.arrays.mask)
            mine = {name: along[name][first:last] for name in self._sloped}

            def weighed(
                parameters: Any, states: mx.array, chunk: _Chunk = chunk, mine: Terms = mine
            ) -> Any:
                terms = self._terms(parameters, states, chunk)
                return sum((mx.sum(terms[name] * mine[name]) for name in mine), mx.array(0.0))

            first = last
            found = mx.grad(weighed, argnums=(0, 1))(parameters, states[chunk.positions])
            back = tree_map(mx.stop_gradient, found)
            states = _after(back, states)
            cotangents.append(back)
        return value, sums, mx.stop_gradient(_reported(together)), cotangents

    def _terms(self, parameters: Any, states: mx.array, chunk: _Chunk) -> Terms:
        """[N, 1] terms of a chunk's tokens, with the given parameters of the head."""
        if self._forward.head_module is not None:
            self._forward.head_module.update(parameters)
        logits = self._forward.head(states).astype(mx.float32)
        others = {name: other(chunk.positions) for name, other in self._others.items()}
        return _terms(logits, others, chunk.arrays, self._objective)


def _reported(terms: Terms) -> mx.array:
    """[2, S, A] log-probabilities and entropies."""
    return mx.stack([terms["logprob"], terms["entropy"]])


def _terms(logits: mx.array, others: Terms, arrays: BatchArrays, objective: Objective) -> Terms:
    """``token_terms``, computed by ``open_terms`` with fewer arrays [C, V] where possible."""
    if arrays.positions.any_legal or objective.kl_estimator == "exact":
        return token_terms(mx, logits, others, arrays, objective)
    return open_terms(logits, others, arrays)


def _after(done: Any, states: mx.array) -> mx.array:
    """The hidden states, made to depend on every array of a tree."""
    arrays: list[Any] = [array for _, array in tree_flatten(done)]
    return mx.depends([states], arrays)[0]
