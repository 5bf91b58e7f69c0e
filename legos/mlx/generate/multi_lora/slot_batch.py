"""The adapter slot of each row of a batch, as the adapted modules of a tree read it.

B rows of a batch, M experts of each token.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import mlx.core as mx
import numpy as np

from legos.errors import EngineError

Layout = tuple[tuple[int, int, float], ...]
"""Slot, rank and scale of the pairs that stand side by side in one module."""


class SlotBatch:
    """Which slot each row of one batch uses.

    Attributes:
        slots: [B] slot of each row.
        uniform: the slot that all rows use; None where they use several.
        stacked: the slots whose LoRA pairs are multiplied where rows use several.
    """

    def __init__(self, slots: tuple[int, ...], stacked: tuple[int, ...]) -> None:
        self.slots = slots
        self.uniform = slots[0] if len(set(slots)) == 1 else None
        self.stacked = stacked
        self._masks: dict[tuple[Layout, tuple[int, ...], mx.Dtype], mx.array] = {}

    def mask(self, layout: Layout, lead: tuple[int, ...], name: str, dtype: mx.Dtype) -> mx.array:
        """[B, 1 .., sum of ranks]: a row's scale in its slot's columns, zero elsewhere.

        The mask multiplies a product [*lead, sum of ranks] of this type.

        Args:
            layout: the pairs that are concatenated.
            lead: leading axes of the module's input.
            name: name of the module.
            dtype: type of the mask.

        Raises:
            EngineError: the first axis of the input is not the batch.
        """
        shape = self._shape(lead, name)
        known = self._masks.get((layout, shape, dtype))
        if known is None:
            rows = np.repeat(self.slots, shape[0] // len(self.slots))  # of the first axis
            columns = [np.full((rank, 1), scale) * (rows == slot) for slot, rank, scale in layout]
            mask = np.concatenate(columns).T.reshape(*shape, -1)
            known = self._masks[layout, shape, dtype] = mx.array(mask, dtype)
        return known

    def _shape(self, lead: tuple[int, ...], name: str) -> tuple[int, ...]:
        """The shape that broadcasts along the first axis of a module's input, which is the batch.

        For an input [N, in] the first axis may be batch and tokens flattened, as in some blocks of
        experts. The output head must get the batch itself, because rows need not have the same
        number of logit positions.
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
    """State of the forward pass in progress, read by every adapted module of a tree.

    Attributes:
        batch: slots of the rows; None where all rows use the base model.
        indices: [.., M] experts of the tokens that a block of experts is computing, unsorted.
    """

    def __init__(self) -> None:
        self.batch: SlotBatch | None = None
        self.indices: mx.array | None = None

    @contextmanager
    def using(self, batch: SlotBatch | None) -> Iterator[None]:
        """Within the block, forward passes use the slots of this batch."""
        before, self.batch = self.batch, batch
        try:
            yield
        finally:
            self.batch = before

    @contextmanager
    def routed(self, indices: mx.array) -> Iterator[None]:
        """Within the block, tokens are routed to these experts."""
        before, self.indices = self.indices, indices
        try:
            yield
        finally:
            self.indices = before
