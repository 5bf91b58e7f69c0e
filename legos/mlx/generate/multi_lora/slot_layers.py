"""Linear modules that add to each row the LoRA pair of the slot that the row uses.

A module is not wrapped: its class is replaced by a subclass of its own class. So all names, arrays
and references in the tree are unchanged, and the base arrays may be shared with other trees.

A batch whose rows use one slot multiplies with the arrays of that slot. Rows of several slots share
one product with the concatenated pairs of all slots, ``((x @ [A_1 .. A_n]) * mask) @ [B_1; ..]``,
where the mask [B, ranks] holds a slot's scale in its own columns and zero elsewhere. Where tokens
are sorted by expert, the mask is sorted with them.

On a GPU a decode step takes as long as its kernels take to start. So LoRA has two for each linear
module: the arrays have the type of the module's input, and the second product also multiplies by
the scale and adds the module's own output.

B rows of a batch, E experts, M experts of each token.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.switch_layers import (
    SwitchGLU,
    SwitchMLP,
    _gather_sort,  # decides the order in which experts get their tokens
)

from legos.errors import EngineError
from legos.mlx.generate.multi_lora.slot_batch import Current, Layout, SlotBatch
from legos.mlx.model.lora import SWITCH
from legos.mlx.model.retyped import become

EXPERTS = (SwitchGLU, SwitchMLP)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """The LoRA arrays of one slot in one module, in mlx-lm's layout."""

    a: mx.array  # [in, rank], or [E, rank, in]
    b: mx.array  # [rank, out], or [E, out, rank]
    scale: float
    rank: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """The concatenated pairs of several slots in one module."""

    slots: tuple[int, ...]  # requested slots; a slot without a pair here is not in ``layout``
    layout: Layout
    a: mx.array
    b: mx.array


class AdaptedModule:
    """One adapted module and the LoRA pairs of all slots in it.

    Attributes:
        name: name of the module in its tree.
        module: the module.
        pairs: slot -> pair; replaced as a whole, never changed in place.
        called: whether the module has been called with adapters.
    """

    def __init__(self, name: str, module: nn.Module, current: Current) -> None:
        self.name = name
        self.module = module
        self.pairs: Mapping[int, Pair] = {}
        self.called = False
        self._current = current
        self._stack: Stack | None = None

    def put(self, slot: int, pair: Pair | None) -> None:
        """Set the pair of a slot; None removes it."""
        pairs = {other: kept for other, kept in self.pairs.items() if other != slot}
        if pair is not None:
            pairs[slot] = pair
        self.pairs = pairs
        self._stack = None

    def linear(self, y: mx.array, x: mx.array) -> mx.array:
        """Add LoRA to ``y``, the output of a linear module for ``x``.

        Args:
            y: [B, .., out]
            x: [B, .., in]

        Raises:
            EngineError: the module gives several arrays.

        Source: mlx-lm's ``LoRALinear``.
        """
        batch = self._current.batch
        if batch is None:
            return y
        self.called = True
        if not isinstance(y, mx.array):
            raise EngineError(f"{self.name} gives several arrays, so LoRA on it is not served")
        if batch.uniform is not None:
            pair = self._pair(batch.uniform, x.dtype)
            return y if pair is None else mx.addmm(y, x @ pair.a, pair.b, alpha=pair.scale)
        stack = self._stacked(batch, x.dtype)
        if stack is None:
            return y
        mask = batch.mask(stack.layout, x.shape[:-1], self.name, x.dtype)
        return mx.addmm(y, (x @ stack.a) * mask, stack.b)

    def switch(self, y: mx.array, x: mx.array, indices: mx.array, sorted_indices: bool) -> mx.array:
        """Add LoRA to ``y``, the output of the experts ``indices`` for ``x``.

        Source: mlx-lm's ``LoRASwitchLinear``.
        """
        batch = self._current.batch
        if batch is None:
            return y
        self.called = True

        def chosen(z: mx.array, experts: mx.array) -> mx.array:
            return mx.gather_mm(
                z, experts.swapaxes(-1, -2), rhs_indices=indices, sorted_indices=sorted_indices
            )

        if batch.uniform is not None:
            pair = self._pair(batch.uniform, x.dtype)
            return y if pair is None else y + pair.scale * chosen(chosen(x, pair.a), pair.b)
        stack = self._stacked(batch, x.dtype)
        if stack is None:
            return y
        mask = self._expert_mask(batch, stack.layout, indices, x.dtype)
        return y + chosen(chosen(x, stack.a) * mask, stack.b)

    def _pair(self, slot: int, dtype: mx.Dtype) -> Pair | None:
        """The pair of a slot in the type of the module's input, in which it is kept from then on.

        Rounding a float32 pair to the 16 bits of a model moves its product by as much as the
        product itself is rounded when it is added to the module's output.
        """
        pair = self.pairs.get(slot)
        if pair is not None and pair.a.dtype != dtype:
            pair = replace(pair, a=pair.a.astype(dtype), b=pair.b.astype(dtype))
            self.pairs = {**self.pairs, slot: pair}
        return pair

    def _expert_mask(
        self, batch: SlotBatch, layout: Layout, indices: mx.array, dtype: mx.Dtype
    ) -> mx.array:
        """[.., 1 or M, 1, ranks] mask of every token and expert, in the order of the experts."""
        unsorted = self._current.indices
        if unsorted is None:
            raise EngineError(f"{self.name} was called outside its block of experts")
        lead = unsorted.shape[:-1]
        mask = mx.expand_dims(batch.mask(layout, lead, self.name, dtype), (-2, -3))
        if indices.shape == unsorted.shape:
            return mask
        return _gather_sort(mx.broadcast_to(mask, (*lead, *mask.shape[-3:])), unsorted)[0]

    def _stacked(self, batch: SlotBatch, dtype: mx.Dtype) -> Stack | None:
        """The concatenated pairs of the batch's slots, cached until a pair or the slots change."""
        stack = self._stack
        if stack is None or stack.slots != batch.stacked or stack.a.dtype != dtype:
            pairs = [(slot, self._pair(slot, dtype)) for slot in batch.stacked]
            found = [(slot, pair) for slot, pair in pairs if pair is not None]
            if not found:
                return None
            switch = isinstance(self.module, SWITCH)
            stack = self._stack = Stack(
                slots=batch.stacked,
                layout=tuple((slot, pair.rank, pair.scale) for slot, pair in found),
                a=_join([pair.a for _, pair in found], axis=-2 if switch else -1),
                b=_join([pair.b for _, pair in found], axis=-1 if switch else -2),
            )
        return stack


def become_slotted(adapted: AdaptedModule) -> None:
    """Make a linear module, or linear experts, add the LoRA pairs of its adapted."""
    object.__setattr__(adapted.module, "legos_adapted", adapted)
    become(adapted.module, _SlotSwitch if isinstance(adapted.module, SWITCH) else _SlotLinear)


def become_experts(block: nn.Module, current: Current) -> None:
    """Make a block of experts record the experts of its tokens; safe to call twice."""
    if not hasattr(block, "legos_current"):
        object.__setattr__(block, "legos_current", current)
        become(block, _SlotExperts)


def _join(arrays: list[mx.array], *, axis: int) -> mx.array:
    return arrays[0] if len(arrays) == 1 else mx.concatenate(arrays, axis=axis)


class _SlotLinear(nn.Module):
    """A linear module in which each row uses its own adapter."""

    legos_adapted: AdaptedModule

    def __call__(self, x: mx.array) -> mx.array:
        return self.legos_adapted.linear(super().__call__(x), x)


class _SlotSwitch(nn.Module):
    """Linear experts in which each token uses the adapter of its row."""

    legos_adapted: AdaptedModule

    def __call__(self, x: mx.array, indices: mx.array, sorted_indices: bool = False) -> mx.array:
        y = super().__call__(x, indices, sorted_indices=sorted_indices)
        return self.legos_adapted.switch(y, x, indices, sorted_indices)


class _SlotExperts(nn.Module):
    """A block of experts that records the experts of its tokens before they are sorted."""

    legos_current: Current

    def __call__(self, x: mx.array, indices: mx.array) -> mx.array:
        with self.legos_current.routed(indices):
            return super().__call__(x, indices)
