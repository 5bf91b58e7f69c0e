"""Linear modules that add, row by row, the LoRA pair of the slot which the row uses.

A module is not wrapped but becomes an instance of a subclass of its own class, so every name, array
and reference in the tree stays what it was: the base arrays may be shared with other trees.

A batch whose rows use one slot multiplies with this slot's own arrays. Rows of several slots share
one product with the pairs of all of them side by side, ``((x @ [A_1 .. A_n]) * mask) @ [B_1; ..]``,
where the mask [B, ranks] holds a slot's scale in its own columns and zero elsewhere. For tokens
that experts sorted, the mask is sorted with them.

B rows of a batch, L tokens of each, E experts, M experts of each token.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any, cast

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx_lm.models.switch_layers import (
    QuantizedSwitchLinear,
    SwitchGLU,
    SwitchLinear,
    SwitchMLP,
    _gather_sort,  # the order in which experts get their tokens is decided there
)

from legos.errors import EngineError

__all__ = [
    "EXPERTS",
    "SWITCH",
    "Batch",
    "Current",
    "Layout",
    "Pair",
    "Site",
    "become_experts",
    "become_slotted",
]

SWITCH = (SwitchLinear, QuantizedSwitchLinear)
EXPERTS = (SwitchGLU, SwitchMLP)

Layout = tuple[tuple[int, int, float], ...]
"""Slot, rank and scale of the pairs that stand side by side in one module."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """One slot's arrays in one module, laid out as mlx-lm has them."""

    a: mx.array  # [in, rank], or [E, rank, in]
    b: mx.array  # [rank, out], or [E, out, rank]
    scale: float
    rank: int


class Batch:
    """Which slot each row of one batch uses.

    Attributes:
        slots: [B] slot of each row.
        uniform: the slot that all rows use, or None.
        stacked: the slots whose pairs are multiplied where rows use several, sorted.
    """

    def __init__(self, slots: tuple[int, ...], stacked: tuple[int, ...]) -> None:
        self.slots = slots
        self.uniform = slots[0] if len(set(slots)) == 1 else None
        self.stacked = stacked
        self._masks: dict[tuple[Layout, tuple[int, ...]], mx.array] = {}

    def mask(self, layout: Layout, lead: tuple[int, ...], name: str) -> mx.array:
        """[B, 1 .., sum of ranks] float32: a row's scale in its slot's columns, zero elsewhere.

        It multiplies a product [*lead, sum of ranks]. The first axis is the batch; of an input
        [N, in] it may be batch and tokens in one, as some blocks of experts have it. The output
        head must see the batch itself, because the places where logits are wanted need not be
        equally many in every row.

        Args:
            layout: which pairs stand side by side.
            lead: leading axes of a module's input.
            name: of the module.

        Raises:
            EngineError: the first axis is another one.
        """
        num_rows, tokens = len(self.slots), 1
        if lead[0] != num_rows:
            tokens, left = divmod(lead[0], num_rows)
            if left or len(lead) > 1 or name.endswith("lm_head"):
                raise EngineError(
                    f"{name} got an input with axes {lead} in a batch of {num_rows} rows with "
                    "different adapters; expected the rows on the first axis: put rows with one "
                    "adapter together"
                )
        shape = (num_rows * tokens, *([1] * (len(lead) - 1)))
        known = self._masks.get((layout, shape))
        if known is None:
            rows = np.repeat(np.array(self.slots), tokens)
            columns = [np.full((rank, 1), scale) * (rows == slot) for slot, rank, scale in layout]
            mask = np.concatenate(columns).T.astype(np.float32)
            known = self._masks[layout, shape] = mx.array(mask.reshape(*shape, -1))
        return known


class Current:
    """What the forward pass in progress uses; every adapted module of a tree reads it.

    Attributes:
        batch: None where all rows use the base model.
        indices: [.., M] experts of the tokens that a block of experts is computing, unsorted.
    """

    def __init__(self) -> None:
        self.batch: Batch | None = None
        self.indices: mx.array | None = None

    @contextmanager
    def using(self, batch: Batch | None) -> Iterator[None]:
        """Within the block forward passes are of this batch."""
        before, self.batch = self.batch, batch
        try:
            yield
        finally:
            self.batch = before

    @contextmanager
    def routed(self, indices: mx.array) -> Iterator[None]:
        """Within the block tokens go to these experts."""
        before, self.indices = self.indices, indices
        try:
            yield
        finally:
            self.indices = before


class Site:
    """One module and the pairs that slots have there.

    Attributes:
        name: of the module in its tree.
        module: the module.
        pairs: slot -> pair; replaced as a whole, never changed.
    """

    def __init__(self, name: str, module: nn.Module, current: Current) -> None:
        self.name = name
        self.module = module
        self.pairs: Mapping[int, Pair] = {}
        self._current = current
        self._stack: tuple[tuple[int, ...], Layout, mx.array, mx.array] | None = None

    def put(self, slot: int, pair: Pair | None) -> None:
        """Give a slot this pair, or none."""
        pairs = {other: kept for other, kept in self.pairs.items() if other != slot}
        if pair is not None:
            pairs[slot] = pair
        self.pairs = pairs
        self._stack = None

    def linear(self, y: mx.array, x: mx.array) -> mx.array:
        """Add LoRA to ``y``, the output of a linear module for ``x``.

        Source: mlx-lm's ``LoRALinear``, whose arithmetic a uniform batch repeats.
        """
        batch = self._current.batch
        if batch is None:
            return y
        if batch.uniform is not None:
            pair = self.pairs.get(batch.uniform)
            if pair is None:
                return y
            return y + (pair.scale * ((x @ pair.a) @ pair.b)).astype(x.dtype)
        stack = self._stacked(batch)
        if stack is None:
            return y
        layout, a, b = stack
        mask = batch.mask(layout, x.shape[:-1], self.name)
        return y + (((x @ a) * mask) @ b).astype(x.dtype)

    def switch(self, y: mx.array, x: mx.array, indices: mx.array, sorted_indices: bool) -> mx.array:
        """Add LoRA to ``y``, the output of the experts ``indices`` for ``x``.

        Source: mlx-lm's ``LoRASwitchLinear``, whose arithmetic a uniform batch repeats.
        """
        batch = self._current.batch
        if batch is None:
            return y

        def chosen(z: mx.array, experts: mx.array) -> mx.array:
            return mx.gather_mm(
                z, experts.swapaxes(-1, -2), rhs_indices=indices, sorted_indices=sorted_indices
            )

        if batch.uniform is not None:
            pair = self.pairs.get(batch.uniform)
            if pair is None:
                return y
            return y + (pair.scale * chosen(chosen(x, pair.a), pair.b)).astype(x.dtype)
        stack = self._stacked(batch)
        if stack is None:
            return y
        layout, a, b = stack
        mask = self._expert_mask(batch, layout, indices)
        return y + chosen(chosen(x, a) * mask, b).astype(x.dtype)

    def _expert_mask(self, batch: Batch, layout: Layout, indices: mx.array) -> mx.array:
        """[.., 1 or M, 1, ranks] the mask of every token and expert, in the experts' order."""
        unsorted = self._current.indices
        if unsorted is None:
            raise EngineError(f"{self.name} was called outside its block of experts")
        lead = unsorted.shape[:-1]
        mask = mx.expand_dims(batch.mask(layout, lead, self.name), (-2, -3))
        if indices.shape == unsorted.shape:
            return mask
        return _gather_sort(mx.broadcast_to(mask, (*lead, *mask.shape[-3:])), unsorted)[0]

    def _stacked(self, batch: Batch) -> tuple[Layout, mx.array, mx.array] | None:
        """The pairs of the batch's slots side by side; kept until a pair or the slots change."""
        stack = self._stack
        if stack is None or stack[0] != batch.stacked:
            found = [(slot, self.pairs[slot]) for slot in batch.stacked if slot in self.pairs]
            if not found:
                return None
            layout = tuple((slot, pair.rank, pair.scale) for slot, pair in found)
            switch = isinstance(self.module, SWITCH)
            a = _join([pair.a for _, pair in found], axis=-2 if switch else -1)
            b = _join([pair.b for _, pair in found], axis=-1 if switch else -2)
            stack = self._stack = (batch.stacked, layout, a, b)
        return stack[1:]


def become_slotted(site: Site) -> None:
    """Make a linear module, or linear experts, compute through its site from here on."""
    module = site.module
    kind = (_switch_class if isinstance(module, SWITCH) else _linear_class)(type(module))
    _become(module, kind, legos_site=site)


def become_experts(block: nn.Module, current: Current) -> None:
    """Make a block of experts say which row each token belongs to; a second time: nothing."""
    if not hasattr(block, "legos_current"):
        _become(block, _experts_class(type(block)), legos_current=current)


def _become(module: nn.Module, kind: type, **attributes: Any) -> None:
    for name, value in attributes.items():
        object.__setattr__(module, name, value)
    module.__class__ = kind


def _join(arrays: list[mx.array], *, axis: int) -> mx.array:
    return arrays[0] if len(arrays) == 1 else mx.concatenate(arrays, axis=axis)


@cache
def _linear_class(kind: type[nn.Module]) -> type[nn.Module]:
    base = cast(Any, kind)

    class SlotLinear(base):
        """A linear module whose rows have adapters of their own."""

        legos_site: Site

        def __call__(self, x: mx.array) -> mx.array:
            return self.legos_site.linear(super().__call__(x), x)

    return SlotLinear


@cache
def _switch_class(kind: type[nn.Module]) -> type[nn.Module]:
    base = cast(Any, kind)

    class SlotSwitchLinear(base):
        """Linear experts whose tokens have adapters of their own."""

        legos_site: Site

        def __call__(
            self, x: mx.array, indices: mx.array, sorted_indices: bool = False
        ) -> mx.array:
            y = super().__call__(x, indices, sorted_indices=sorted_indices)
            return self.legos_site.switch(y, x, indices, sorted_indices)

    return SlotSwitchLinear


@cache
def _experts_class(kind: type[nn.Module]) -> type[nn.Module]:
    base = cast(Any, kind)

    class SlotExperts(base):
        """A block of experts that remembers which row a token belongs to."""

        legos_current: Current

        def __call__(self, x: mx.array, indices: mx.array) -> mx.array:
            with self.legos_current.routed(indices):
                return super().__call__(x, indices)

    return SlotExperts
