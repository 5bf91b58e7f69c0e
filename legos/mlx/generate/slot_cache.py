"""Keys and values in slots: one row of tokens in each, written in place and never padded.

A slot holds its row from its first position on, and every row has a position of its own, so a row
that ends leaves its slot to the next one, and no other row is moved. The buffer of a layer is flat,
``[S * H * C, D]`` for S slots, H heads, C tokens and D numbers of a head: all that a pass writes is
one scatter by numbers that are equal for all layers, and all that attention reads is a slice.

MLX writes into a buffer in place where nothing else holds it when the write is started. So rows are
copied and evaluated before they are put into other slots, and nothing keeps a slice of a buffer.

Rows that are decoded may continue prefixes, which are rows of other buffers: the slot of such a row
holds only its tokens after the prefix (``shared_attention``).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import mlx.core as mx
import numpy as np
from mlx_lm.models.cache import KVCache
from numpy.typing import NDArray

Mask = mx.array | str | None
NEVER = 1 << 30  # a position that no token attends to
GROWTH, MOST_GROWTH = 16, 64
"""Tokens of space beyond what a row holds: a multiple of the first, up to the second."""
EXPECTED, MOST_EXPECTED = 4, 2048
"""A row is expected to use one in so many of the tokens that it may get, up to the second."""


def growth(tokens: int) -> int:
    """For how many more tokens a slot must have space where so many still come."""
    return min(-(-tokens // GROWTH) * GROWTH, MOST_GROWTH)


def expected(tokens: int) -> int:
    """How many more tokens a row is expected to use where it may get so many."""
    return min(tokens // EXPECTED, MOST_EXPECTED)


class Shared:
    """Which prefix each of B rows of a decoding pass continues: G prefixes, at most n rows of each.

    Attributes:
        of: [B] the slot of the prefix of each row; None: it has none.
        rows: [G * n] the rows of each prefix, padded.
        places: [B] the place of each row among these; any place where it has no prefix.
        lengths: [B] tokens of the prefix of each row.
        some: [B, 1, 1, 1] whether it has any.
        end: tokens of the longest prefix.
    """

    def __init__(self, of: Sequence[int | None], lengths: Sequence[int]) -> None:
        """Prepare the arrays that all layers use.

        Args:
            of: [B] as above; one row at least has a prefix.
            lengths: tokens in each slot of the prefixes.
        """
        self.of = tuple(of)
        members: dict[int, list[int]] = {}
        for row, slot in enumerate(of):
            if slot is not None:
                members.setdefault(slot, []).append(row)
        self.groups, self.most = max(members) + 1, max(map(len, members.values()))
        rows = np.zeros((self.groups, self.most), np.int32)
        places = np.zeros(len(of), np.int32)
        for slot, group in members.items():
            rows[slot, : len(group)] = group
            places[group] = slot * self.most + np.arange(len(group))
        self.rows, self.places = mx.array(rows.ravel()), mx.array(places)
        self.lengths = np.array([0 if slot is None else lengths[slot] for slot in of], np.int32)
        self.some = mx.array(self.lengths)[:, None, None, None] > 0
        self.end = int(self.lengths.max())

    @property
    def positions(self) -> NDArray[np.int32]:
        """[B, end] the position of each token of the prefixes."""
        columns = np.arange(self.end, dtype=np.int32)
        return np.where(columns < self.lengths[:, None], columns, NEVER)


class Pass:
    """Where one forward pass writes, the same for all layers: B rows, T tokens each.

    Attributes:
        slots: [B] the slot of each row.
        fresh: whether the rows begin with this pass, so that they attend to nothing before it.
        end: tokens of the fullest slot after the pass.
        offset, after: [B] number of tokens of each row before and after the pass.
        shared: the prefixes that rows continue, which are in other buffers; None: there are none.
    """

    def __init__(
        self,
        slots: Sequence[int],
        starts: Sequence[int],
        width: int,
        space: int,
        shared: Shared | None = None,
    ) -> None:
        """Prepare the arrays that all layers use.

        Args:
            slots: [B] different slots.
            starts: [B] tokens in each slot so far.
            width: number of tokens T; those beyond the space are written to its last place, which
                must be free.
            space: tokens of a slot.
            shared: the prefixes that rows continue.
        """
        self.slots = tuple(slots)
        self.shared = shared
        self._space = space
        first = np.array(starts, np.int32)
        self._columns = np.minimum(first[:, None] + np.arange(width), space - 1)
        self._indices: dict[int, mx.array] = {}
        self._masks: dict[tuple[int | None, bool], Mask] = {}
        self._level = shared is None and bool((first == first[0]).all())  # rows of one length
        self.width = width
        self.fresh = not first.any()
        self.end = min(int(first.max()) + width, space)
        offset = first if shared is None else first + shared.lengths
        self.offset = mx.array(offset)
        self.after = mx.array(offset + width)

    @property
    def adjacent(self) -> slice | None:
        """The slots as a slice; None where they are no neighbours, or not in order."""
        first = self.slots[0]
        last = first + len(self.slots)
        return slice(first, last) if self.slots == tuple(range(first, last)) else None

    def written(self, heads: int) -> mx.array:
        """[B, H, T] the places of a flat buffer that the pass writes to."""
        if heads not in self._indices:
            self._indices[heads] = _places(self.slots, self._columns, heads, self._space)
        return self._indices[heads]

    def mask(self, window: int | None, *, array: bool) -> Mask:
        """What each token attends to: in its own row, to itself and all tokens before it.

        Args:
            window: number of tokens that a token attends to at most, itself included.
            array: whether the mask must be an array.

        Returns:
            [B, 1, T, end] booleans; those of the longest prefix come before. None or "causal" where
            rows of one length need no array.
        """
        key = window, array
        if key not in self._masks:
            self._masks[key] = self._mask(window, array=array)
        return self._masks[key]

    def _mask(self, window: int | None, *, array: bool) -> Mask:
        if self._level and not array and (window is None or self.end <= window):
            return None if self.width == 1 else "causal"
        token = (self.offset[:, None] + mx.arange(self.width))[:, None, :, None]
        before = mx.arange(self.end)
        if self.shared is not None:
            own = self.shared.lengths[:, None] + np.arange(self.end, dtype=np.int32)
            positions = np.concatenate([self.shared.positions, own], axis=1)
            before = mx.array(positions)[:, None, None]
        mask = before <= token
        return mask if window is None else mask & (before > token - window)


@dataclass(slots=True)
class Space:
    """What the slots of all layers have in common."""

    slots: int = 0  # number of slots
    tokens: int = 0  # tokens for which each slot has space
    lengths: list[int] = field(default_factory=list[int])  # [slots] tokens in each slot
    held: tuple[int, int] = (0, 0)  # slots and tokens to keep where the buffers change their size
    current: Pass = field(default_factory=lambda: Pass((0,), (0,), 1, 1))


class SlotCache:
    """The slots of one layer, as mlx-lm's models use a cache.

    Attributes:
        keys, values: [S * H * C, D] flat buffers; None before the first pass.
        offset: [B] number of tokens of each row of the current pass.
        prefix: the slots of the prefixes that rows may continue.
    """

    def __init__(self, space: Space) -> None:
        self.prefix: SlotCache | None = None
        self._space = space
        self._shape = (0, 0, 0)  # slots, heads and tokens of the buffers
        self.keys: mx.array | None = None
        self.values: mx.array | None = None
        self.offset = space.current.offset

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Write the pass; returns all that its rows attend to, as ``keys_and_values``.

        Args:
            keys: [B, H, T, D]
            values: [B, H, T, D'], where D' may be another size.
        """
        current = self._space.current
        self._write(current.written(keys.shape[1]), keys, values)
        self.offset = current.after
        return (keys, values) if current.fresh else self.keys_and_values()

    def keys_and_values(self) -> tuple[mx.array, mx.array]:
        """[B, H, end, D] keys and [B, H, end, D'] values of the rows of the current pass."""
        current, adjacent = self._space.current, self._space.current.adjacent
        if adjacent is None:
            return self._copy(current.slots, current.end)
        return self._slice(adjacent, current.end)

    @property
    def shared(self) -> Shared | None:
        """The prefixes that rows of the current pass continue."""
        return self._space.current.shared

    def prefixes(self, shared: Shared) -> tuple[mx.array, mx.array]:
        """[G, H, P, D] keys and [G, H, P, D'] values of the prefixes."""
        assert self.prefix is not None
        return self.prefix._slice(slice(shared.groups), shared.end)

    def make_mask(
        self, num_tokens: int, *, return_array: bool = False, window_size: int | None = None
    ) -> Mask:
        """The mask of the current pass, which has so many tokens in each row."""
        return self._space.current.mask(window_size, array=return_array)

    def prepare(self, **_: Any) -> None:
        """Padding on the right needs nothing: it is overwritten before a token attends to it."""

    def finalize(self) -> None:
        """After the last padded pass."""

    def copy(self, slot: int) -> tuple[mx.array, mx.array]:
        """[1, H, T, D] keys and values of the T tokens in a slot, which share no memory with it."""
        return self._copy((slot,), self._space.lengths[slot])

    def put(self, slots: Sequence[int], keys: mx.array, values: mx.array) -> None:
        """Write one row into some slots, from their first place on.

        Args:
            slots: the slots.
            keys: [1, H, T, D] evaluated, so that they keep no slice of the buffer.
            values: [1, H, T, D']
        """
        _, heads, tokens, _ = keys.shape
        columns = np.arange(tokens)[None].repeat(len(slots), axis=0)
        self._write(_places(slots, columns, heads, self._space.tokens), keys, values)

    def wipe(self, slot: int) -> None:
        """Write zeros over a whole slot, whose padding may be no numbers too."""
        if self.state:
            shape = 1, self._shape[1], self._space.tokens
            each = (mx.zeros((*shape, flat.shape[-1]), flat.dtype) for flat in self._buffers())
            self.put((slot,), *each)

    def extract(self, row: int) -> KVCache:
        """A copy of one row of the current pass, with its prefix."""
        one, current = KVCache(), self._space.current
        keys, values = self.copy(current.slots[row])
        if current.shared is not None and (slot := current.shared.of[row]) is not None:
            assert self.prefix is not None
            before, old = self.prefix.copy(slot)
            keys, values = mx.concatenate([before, keys], 2), mx.concatenate([old, values], 2)
        one.keys, one.values, one.offset = keys, values, keys.shape[2]
        return one

    @property
    def state(self) -> tuple[mx.array, ...]:
        """The buffers that exist."""
        return tuple(part for part in (self.keys, self.values) if part is not None)

    @property
    def nbytes(self) -> int:
        """Bytes of the buffers."""
        return sum(part.nbytes for part in self.state)

    def _write(self, places: mx.array, keys: mx.array, values: mx.array) -> None:
        self._fit(keys, values)
        for flat, update in zip(self._buffers(), (keys, values), strict=True):
            if update.size:  # of deepseek's latent keys, MLX cannot write the 0 values
                flat[places] = update

    def _slice(self, slots: slice, end: int) -> tuple[mx.array, mx.array]:
        shape = *self._shape, -1
        keys, values = (flat.reshape(shape) for flat in self._buffers())
        return keys[slots, :, :end], values[slots, :, :end]

    def _copy(self, slots: Sequence[int], end: int) -> tuple[mx.array, mx.array]:
        _, heads, tokens = self._shape
        columns = np.arange(end)[None].repeat(len(slots), axis=0)
        places = _places(slots, columns, heads, tokens)
        keys, values = self._buffers()
        return keys[places], values[places]

    def _fit(self, keys: mx.array, values: mx.array) -> None:
        """Give the buffers the size that the space has now; what the slots hold is copied."""
        shape = self._space.slots, keys.shape[1], self._space.tokens
        if shape == self._shape:
            return
        before, self._shape = self._shape, shape
        self.keys = self._resized(self.keys, before, keys)
        self.values = self._resized(self.values, before, values)

    def _resized(
        self, flat: mx.array | None, before: tuple[int, int, int], like: mx.array
    ) -> mx.array:
        new = mx.zeros((*self._shape, like.shape[-1]), like.dtype)
        slots, tokens = self._space.held
        if flat is not None and slots:
            new[:slots, :, :tokens] = flat.reshape(*before, -1)[:slots, :, :tokens]
        return new.reshape(prod(self._shape), like.shape[-1])

    def _buffers(self) -> tuple[mx.array, mx.array]:
        assert self.keys is not None
        assert self.values is not None
        return self.keys, self.values


def _places(
    slots: Sequence[int], columns: NDArray[np.integer[Any]], heads: int, space: int
) -> mx.array:
    """[B, H, T] numbers of places in a flat buffer, of the columns [B, T] of B slots."""
    rows = np.array(slots)[:, None] * heads + np.arange(heads)
    return mx.array((rows[:, :, None] * space + columns[:, None, :]).astype(np.uint32))
