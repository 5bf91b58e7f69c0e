"""Which adapter each row of a batch speaks through, as every adapted module of a tree reads it.

B rows of a batch, M experts of each token.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from legos.errors import EngineError

__all__ = ["Current", "Layout", "SlotBatch"]

Layout = tuple[tuple[int, int, float], ...]
"""Slot, rank and scale of the pairs that stand side by side in one module."""


class SlotBatch:
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
        self._numbers: dict[tuple[Layout, tuple[int, ...]], mx.array] = {}

    def mask(self, layout: Layout, lead: tuple[int, ...], name: str) -> mx.array:
        """[B, 1 .., sum of ranks] float32: a row's scale in its slot's columns, zero elsewhere.

        It multiplies a product [*lead, sum of ranks].

        Args:
            layout: which pairs stand side by side.
            lead: leading axes of a module's input.
            name: of the module.

        Raises:
            EngineError: the first axis is another one.
        """
        shape = self._shape(lead, name)
        known = self._masks.get((layout, shape))
        if known is None:
            rows = self._rows(shape)
            columns = [np.full((rank, 1), scale) * (rows == slot) for slot, rank, scale in layout]
            mask = np.concatenate(columns).T.astype(np.float32)
            known = self._masks[layout, shape] = mx.array(mask.reshape(*shape, -1))
        return known

    def numbers(self, layout: Layout, lead: tuple[int, ...], name: str) -> mx.array:
        """[B, 1 ..] which of the pairs each row uses, counted from 1; 0: none.

        Args:
            layout: which pairs stand side by side.
            lead: leading axes of a module's input.
            name: of the module.

        Raises:
            EngineError: the first axis is another one.
        """
        shape = self._shape(lead, name)
        known = self._numbers.get((layout, shape))
        if known is None:
            of_slot = {slot: number for number, (slot, _, _) in enumerate(layout, start=1)}
            numbers = np.array([of_slot.get(slot, 0) for slot in self._rows(shape)], np.int32)
            known = self._numbers[layout, shape] = mx.array(numbers.reshape(shape))
        return known

    def _rows(self, shape: tuple[int, ...]) -> NDArray[np.int64]:
        """[first axis of a shape] the slot of each of its rows."""
        return np.repeat(np.array(self.slots), shape[0] // len(self.slots))

    def _shape(self, lead: tuple[int, ...], name: str) -> tuple[int, ...]:
        """What is broadcast to a module's input: its first axis, which is the batch.

        Of an input [N, in] it may be batch and tokens in one, as some blocks of experts have it.
        The output head must see the batch itself, because the places where logits are wanted need
        not be equally many in every row.
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
        return (num_rows * tokens, *([1] * (len(lead) - 1)))


class Current:
    """What the forward pass in progress uses; every adapted module of a tree reads it.

    Attributes:
        batch: None where all rows use the base model.
        indices: [.., M] experts of the tokens that a block of experts is computing, unsorted.
    """

    def __init__(self) -> None:
        self.batch: SlotBatch | None = None
        self.indices: mx.array | None = None

    @contextmanager
    def using(self, batch: SlotBatch | None) -> Iterator[None]:
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
