"""The loss at the places of a pass without the logits of all of them at once.

Where the logits are many, the head runs in chunks of places, each to the gradient of its hidden
states before the next one starts, and the trunk then takes the gradients of all chunks at once.
Peak memory is that of one chunk, whatever the vocabulary.

P places, C places of a chunk, V vocabulary, H hidden size, S samples, A chosen tokens.
"""

from collections.abc import Callable, Mapping
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten, tree_map
from numpy.typing import NDArray

from legos.data.batch import PLACE_FIELDS, SAMPLE_FIELDS, Batch
from legos.losses.objective import Objective
from legos.losses.places import (
    Places,
    chosen_logprobs,
    entropy,
    exact_kl,
    place_logprobs,
    support_entropy,
)
from legos.losses.total import BatchArrays, token_loss, total_loss
from legos.mlx.forward import CausalModel

__all__ = ["OtherLogits", "head_loss"]

OtherLogits = Callable[[mx.array], mx.array]
"""[C] places -> [C, V] logits of another policy, without gradient."""
Indices = NDArray[np.int64]
Terms = Mapping[str, mx.array]


def head_loss(
    forward: CausalModel,
    hidden: mx.array,
    batch: Batch,
    objective: Objective,
    others: Mapping[str, OtherLogits],
    *,
    num_places: int,
) -> tuple[mx.array, mx.array, mx.array]:
    """Loss and metric sums of one batch, and a number that has the loss's gradient.

    Args:
        forward: the model; its head may hold trained parameters.
        hidden: [P, H] the trunk's output at the batch's places.
        batch: places and samples.
        objective: what to minimise.
        others: "reference" and "average" logits, where the objective reads them.
        num_places: places of a chunk, at most.

    Returns:
        What to differentiate (it is not the loss where chunks were made, but its gradient is), the
        loss, and ``total_loss``'s sums.
    """
    if len(batch.place_row) > num_places:
        return _Chunked(forward, batch, objective, others, num_places).loss(hidden)
    at = mx.arange(len(batch.place_row))
    logits = forward.head(hidden).astype(mx.float32)
    value, sums = total_loss(
        mx,
        logits,
        BatchArrays(mx, batch),
        objective,
        **{name: other(at) for name, other in others.items()},
    )
    return value, value, sums


class _Chunked:
    """The same in three stages.

    1. Chunk by chunk, without gradient: what the loss reads of each token (its log-probability, the
       entropy of its place, divergences).
    2. The loss of these few numbers, and its slope along each.
    3. Chunk by chunk, the head once more, and the slopes back through it to the hidden states.

    ``mx.depends`` keeps a chunk from starting before the one before it is done; without it the
    graph may be evaluated breadth first, and the logits of all chunks live at once.
    """

    def __init__(
        self,
        forward: CausalModel,
        batch: Batch,
        objective: Objective,
        others: Mapping[str, OtherLogits],
        num_places: int,
    ) -> None:
        self._forward = forward
        self._batch = batch
        self._objective = objective
        self._others = others
        sample, column = np.nonzero(batch.mask)
        place = batch.sample_place[sample, column]
        order = np.argsort(place, kind="stable")
        cuts = np.searchsorted(place[order], np.arange(0, len(batch.place_row), num_places)[1:])
        tokens = np.split(order, cuts)
        self._chunks = [_Chunk(batch, sample[t], column[t]) for t in tokens if len(t)]
        number = np.zeros(batch.mask.shape, np.int32)
        number[sample[order], column[order]] = np.arange(len(order))
        self._number = mx.array(number)  # [S, A] of each token among those of all chunks

    def loss(self, hidden: mx.array) -> tuple[mx.array, mx.array, mx.array]:
        """What ``head_loss`` returns."""
        module = self._forward.head_module
        outer: Any = module.trainable_parameters() if module is not None else {}
        frozen = tree_map(mx.stop_gradient, outer)
        states = mx.stop_gradient(hidden)
        known: list[Terms] = []
        for chunk in self._chunks:
            terms = _frozen(self._terms(frozen, states[chunk.places], chunk))
            states = mx.depends([states], [terms["logprob"]])[0]
            known.append(terms)
        together = {name: mx.concatenate([t[name] for t in known]) for name in known[0]}
        (value, sums), slopes = _frozen(mx.value_and_grad(self._loss)(together))
        states = mx.depends([states], [slopes["logprob"]])[0]
        surrogate: Any = mx.array(0.0)
        first = 0
        for chunk in self._chunks:
            mine = {name: array[first : first + chunk.count] for name, array in slopes.items()}
            first += chunk.count
            back = _frozen(self._back(frozen, states[chunk.places], chunk, mine))
            states = mx.depends([states], [back[1]])[0]
            products = tree_map(
                lambda array, slope: mx.sum(array * slope), (outer, hidden[chunk.places]), back
            )
            surrogate = sum((x for _, x in tree_flatten(products)), surrogate)
        if module is not None:
            module.update(outer)
        return surrogate, value, sums

    def _terms(self, parameters: Any, states: mx.array, chunk: "_Chunk") -> Terms:
        """[N] what the loss reads of each of a chunk's tokens, the head's parameters given."""
        forward, objective, places = self._forward, self._objective, chunk.arrays
        if forward.head_module is not None:
            forward.head_module.update(parameters)
        policy = place_logprobs(mx, forward.head(states).astype(mx.float32), places)
        spread = entropy if objective.entropy_over == "legal" else support_entropy
        found = {
            "logprob": chosen_logprobs(policy[0], chunk.place, chunk.target),
            "spread": spread(mx, policy[0], policy[1], places)[chunk.place],
        }
        for name, logits in self._others.items():
            other = place_logprobs(mx, logits(chunk.places), places)
            if objective.kl_estimator == "exact":
                found[name] = exact_kl(mx, policy, other, places)[chunk.place]
            else:
                found[name] = chosen_logprobs(other[0], chunk.place, chunk.target)
        return found

    def _loss(self, terms: Terms) -> tuple[mx.array, mx.array]:
        """Loss and sums of the whole batch from what is known of each token."""
        whole = {name: array[self._number] for name, array in terms.items()}
        return token_loss(
            mx,
            whole["logprob"],
            BatchArrays(mx, self._batch),
            self._objective,
            others=(whole.get("reference"), whole.get("average")),
            spread=whole["spread"],
        )

    def _back(self, parameters: Any, states: mx.array, chunk: "_Chunk", slopes: Terms) -> Any:
        """Slopes along the head's parameters and the hidden states, from those along the terms."""

        def weighed(parameters: Any, states: mx.array) -> mx.array:
            terms = self._terms(parameters, states, chunk)
            return sum((mx.sum(terms[name] * slopes[name]) for name in slopes), mx.array(0.0))

        return mx.grad(weighed, argnums=(0, 1))(parameters, states)


class _Chunk:
    """Some tokens of a batch, and the places that they read.

    Attributes:
        places: [C] among the batch's.
        arrays: of those places.
        place: [N] of each token among these places.
        target: [N] the token chosen.
        count: N.
    """

    def __init__(self, batch: Batch, sample: Indices, column: Indices) -> None:
        read, number = np.unique(batch.sample_place[sample, column], return_inverse=True)
        fields: dict[str, Any] = {
            **{name: getattr(batch, name)[read] for name in ("place_row", *PLACE_FIELDS)},
            **{
                name: getattr(batch, name)[sample, column, None]
                for name in (*SAMPLE_FIELDS, "mask")
            },
        }
        fields["sample_place"] = number.reshape(-1, 1)
        self.places = mx.array(read)
        self.arrays = Places(mx, Batch(input_ids=batch.input_ids, **fields))
        self.place = mx.array(number.reshape(-1).astype(np.int32))
        self.target = mx.array(batch.target[sample, column])
        self.count = len(sample)


def _frozen(tree: Any) -> Any:
    return tree_map(mx.stop_gradient, tree)
