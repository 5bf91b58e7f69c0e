"""The key-value cache of all layers: the slots of the rows that are prefilled or decoded.

    begin    a block of prompts takes free slots, and is prefilled into them
    join     its rows are decoded from now on; each further fork of a row is copied into a slot,
             or all of them continue the row as a prefix
    fork     the rows that go on keep their slots; each further fork of a row is copied
    settle   the last rows move into the slots that are free, so that none is computed, unless
             prompts take them at once
    decode   one more token of every row

Layers of standard attention (mlx-lm's ``KVCache``, also inside of a ``CacheList``) are slots
(``SlotCache``). All others, such as sliding windows and recurrent states, are mlx-lm's batch
caches, small and of a constant size: each of these events selects their rows anew, in the order of
the slots.

The buffers grow within the limit of bytes, to twice what the rows are expected to need, and are
kept until the engine is idle.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, islice
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.cache import CacheList, KVCache, make_prompt_cache

from legos.mlx.generate.shared_attention import attend_to_prefixes
from legos.mlx.generate.slot_cache import Pass, Shared, SlotCache, Space, expected, growth
from legos.mlx.model.cache_parts import parts


@dataclass(eq=False, slots=True)
class BlockCache:
    """The cache of a block of prompts that is prefilled."""

    store: "BatchCache"  # has its slots
    layers: list[Any]  # one cache per layer
    slots: tuple[int, ...]  # [B] the slot of each row

    @property
    def in_slots(self) -> bool:
        """Whether all layers are slots."""
        return all(isinstance(layer, SlotCache) for layer in self.layers)


class BatchCache:
    """Slots for keys and values, and mlx-lm's batch caches of all other layers.

    Attributes:
        layers: one cache per layer, of the rows that are decoded; empty where there is none.
        live: the slots of these rows.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        max_slots: int = 1,
        space_of: Callable[[int], int] | None = None,
    ) -> None:
        """Make an empty cache.

        Args:
            model: the model.
            max_slots: more slots than this are made only where so many are in use.
            space_of: number of slots -> the most tokens for which each of them may have space;
                None: any number.
        """
        self._model = model
        self._max_slots = max_slots
        self._space_of = space_of
        self.clear()

    def clear(self) -> None:
        """Remove all rows, and release the buffers."""
        self._space = Space()
        self._slot_caches: list[SlotCache] = []
        self._blocks: list[BlockCache] = []
        self._width = 0  # rows of the decoded layers that are not slots
        self._prefixes: BatchCache | None = None
        self._prefix_of: dict[int, int] = {}  # slot of a row -> slot of the prefix it continues
        self.layers: list[Any] = []
        self.live: set[int] = set()

    def begin(
        self, known: Sequence[list[Any]], tokens: int, *, coming: int = 0, shared: bool = False
    ) -> BlockCache:
        """Give a block of prompts its slots, and write the prefixes that are known.

        Args:
            known: [B] the cache of a prefix of each row, one object per layer; empty: none.
            tokens: tokens of the longest row.
            coming: the most tokens that a row may get after them.
            shared: whether the rows become prefixes, which their forks continue; only where all
                layers are slots.
        """
        if shared:
            if self._prefixes is None:
                attend_to_prefixes(self._model)
                self._prefixes = BatchCache(self._model, space_of=lambda _: 0)  # none to spare
            moved = {old: slot for slot, old in enumerate(self._prefixes.settle())}
            self._prefix_of = {slot: moved[old] for slot, old in self._prefix_of.items()}
            return self._prefixes.begin(known, tokens)
        block = BlockCache(self, [], tuple(self._free(len(known))))
        self._blocks.append(block)
        self._fit(tokens + 1, coming)
        rows = [row or make_prompt_cache(self._model) for row in known]
        numbers = count()
        layers = zip(*rows, strict=True)
        block.layers = [self._merged(each, block.slots, numbers) for each in layers]
        return block

    def prefill(
        self, block: BlockCache, starts: Sequence[int], width: int, ends: Sequence[int]
    ) -> None:
        """Prepare a forward pass of a block.

        Args:
            block: the block.
            starts: [B] tokens of each row so far.
            width: tokens that the pass computes for each row, padding on the right included.
            ends: [B] tokens of each row after the pass, without padding.
        """
        block.store._start(block.slots, starts, width, ends)

    def join(self, block: BlockCache, rows: Sequence[int]) -> list[int]:
        """Decode rows of a block from now on; the slots of its other rows are free again.

        Args:
            block: the block, which is complete.
            rows: numbers of its rows, one for each of their forks.

        Returns:
            The slot of each fork.
        """
        if block.store is not self:
            return self._join_prefixes(block, rows)
        self._blocks.remove(block)
        self._forget(slot for row, slot in enumerate(block.slots) if row not in rows)
        slots, pairs = self._placed([block.slots[row] for row in rows])
        if rows:
            self._join_others(block, dict(zip(slots, rows, strict=True)))
        self._copy(pairs)
        return slots

    def fork(self, sources: Sequence[int]) -> list[int]:
        """Keep the rows that go on; the slots of all others are free.

        Args:
            sources: slots of decoded rows, one for each of their forks.

        Returns:
            The slot of each fork, which of one fork is that of its row.
        """
        if len(sources) == len(self.live) and self.live == set(sources):
            return list(sources)  # every row goes on alone
        ended = self.live.difference(sources)
        self.live -= ended
        self._forget(ended)
        if self._prefixes:
            self._prefixes.fork(sorted(set(self._prefix_of.values())))
        slots, pairs = self._placed(sources)
        if pairs:
            copied = {slot: source for source, slot in pairs}
            slots_used = range(self._count)
            self._select([copied.get(slot, slot % self._width) for slot in slots_used])
        self._copy(pairs)
        if not self.live:
            self.layers, self._width = [], 0
        return slots

    def fits(self, rows: int, tokens: int) -> bool:
        """Whether so many further rows of so many tokens need no more than the limit as it is.

        Free slots between the rows count too, until ``settle`` closes the gaps.
        """
        slots = max(self._used.union(self._free(rows)), default=-1) + 1
        space = self._space
        enough = slots <= space.slots and tokens <= space.tokens
        return enough or self._space_of is None or tokens <= self._space_of(slots)

    def settle(self) -> list[int]:
        """Move the last rows into free slots before them, so that none of these is computed.

        Returns:
            The former slot of the row in each slot.
        """
        before, used, pairs = list(range(self._count)), self._used, list[tuple[int, int]]()
        if len(used) < len(before):
            for gap in (slot for slot in before if slot not in used):
                last = max(self.live)
                if last < gap:
                    break
                self.live = self.live - {last} | {gap}
                pairs.append((last, gap))
                before[gap] = last
        del before[self._count :]
        self._copy(pairs)
        self._forget(last for last, _ in pairs)
        self._select(before)
        return before

    @property
    def longest(self) -> int:
        """Tokens in the fullest slot of a decoded row, without a prefix."""
        return max((self._space.lengths[slot] for slot in self.live), default=0)

    @property
    def nbytes(self) -> int:
        """Bytes of all buffers of keys and values in slots."""
        own = sum(cache.nbytes for cache in self._slot_caches)
        return own + (self._prefixes.nbytes if self._prefixes else 0)

    @property
    def is_full(self) -> bool:
        """Whether the next token of a row may make the buffers grow."""
        return self.longest >= self._space.tokens

    def decode(self, coming: int = 0) -> int:
        """Prepare one more token of every row: slot i becomes row i of the pass.

        Args:
            coming: the most tokens that a row may still get; it matters where ``is_full``.

        Returns:
            Number of rows of the pass. Free slots, or those of a block that is not complete, may be
            among them; what such a row computes is not used.
        """
        number, lengths = self._count, self._space.lengths
        self._select(range(number))
        self._fit(max(lengths[slot] for slot in self.live) + 1, coming)
        starts = [min(length, self._space.tokens - 1) for length in lengths[:number]]
        ends = [start + (slot in self.live) for slot, start in enumerate(starts)]
        shared = None
        if self._prefix_of and self._prefixes:
            of = [self._prefix_of.get(slot) for slot in range(number)]
            shared = Shared(of, self._prefixes._space.lengths)
        self._start(range(number), starts, 1, ends, shared)
        return number

    def wipe(self, slots: Iterable[int]) -> None:
        """Write zeros over rows whose keys and values may be no numbers, as no mask hides these."""
        for slot in slots:
            for cache in self._slot_caches:
                cache.wipe(slot)

    @property
    def _used(self) -> set[int]:
        return self.live.union(*(block.slots for block in self._blocks))

    @property
    def _count(self) -> int:
        """Slots up to the last row that is decoded."""
        return max(self.live, default=-1) + 1

    def _free(self, number: int) -> list[int]:
        """The first free slots."""
        used = self._used
        return list(islice((slot for slot in count() if slot not in used), number))

    def _forget(self, slots: Iterable[int]) -> None:
        for slot in slots:
            self._space.lengths[slot] = 0
            self._prefix_of.pop(slot, None)

    def _fit(self, tokens: int, coming: int) -> None:
        """Make space for so many tokens in every slot that is used, and for some that come."""
        space, slots = self._space, max(self._used) + 1
        tokens = max(tokens, *space.lengths, 0)
        if slots <= space.slots and tokens <= space.tokens:
            return
        most_slots, most = space.slots, space.tokens
        if slots > most_slots:
            most_slots = max(slots, min(2 * most_slots, self._max_slots))
        if tokens > most:
            most = min(tokens + coming, 2 * (tokens + expected(coming)))
        if self._space_of is not None and most > self._space_of(most_slots):
            most_slots = slots
            most = max(tokens + growth(coming), min(most, self._space_of(slots)))
        held = [slot for slot, length in enumerate(space.lengths) if length]
        space.held = max(held, default=-1) + 1, max(space.lengths, default=0)
        space.slots, space.tokens = most_slots, most
        space.lengths = (space.lengths + [0] * most_slots)[:most_slots]

    def _start(
        self,
        slots: Sequence[int],
        starts: Sequence[int],
        width: int,
        ends: Sequence[int],
        shared: Shared | None = None,
    ) -> None:
        self._space.current = Pass(slots, starts, width, self._space.tokens, shared)
        for slot, end in zip(slots, ends, strict=True):
            self._space.lengths[slot] = end
        for cache in self._slot_caches:
            cache.offset = self._space.current.offset

    def _merged(self, rows: Sequence[Any], slots: Sequence[int], numbers: Iterator[int]) -> Any:
        """One layer of a block, from its caches of single rows."""
        if isinstance(rows[0], CacheList):
            parts = zip(*(row.caches for row in rows), strict=True)
            return CacheList(*(self._merged(part, slots, numbers) for part in parts))
        if type(rows[0]) is not KVCache:
            return rows[0].merge(rows)
        number = next(numbers)
        if number == len(self._slot_caches):
            self._slot_caches.append(SlotCache(self._space))
        cache = self._slot_caches[number]
        for slot, row in zip(slots, rows, strict=True):
            if row.offset:
                cache.put((slot,), row.keys[..., : row.offset, :], row.values[..., : row.offset, :])
        return cache

    def _placed(self, sources: Sequence[int]) -> tuple[list[int], list[tuple[int, int]]]:
        """The slot of each fork, and the pairs of slots from which and into which one is copied."""
        slots: list[int] = []
        pairs: list[tuple[int, int]] = []
        placed: set[int] = set()
        self.live.update(sources)
        for source in sources:
            slot = source
            if source in placed:
                (slot,) = self._free(1)
                pairs.append((source, slot))
            placed.add(slot)
            slots.append(slot)
            self.live.add(slot)
        if pairs:
            self._fit(0, 0)
        return slots, pairs

    def _copy(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy rows from slots into others; none is copied from a slot that another one enters."""
        into: dict[int, list[int]] = {}
        for source, slot in pairs:
            into.setdefault(source, []).append(slot)
        for source, slots in into.items():
            if source in self._prefix_of:
                self._prefix_of |= dict.fromkeys(slots, self._prefix_of[source])
            if not self._space.lengths[source]:
                continue
            rows = [cache.copy(source) for cache in self._slot_caches]
            mx.eval(rows)  # otherwise all of the buffers would be copied
            for cache, (keys, values) in zip(self._slot_caches, rows, strict=True):
                cache.put(slots, keys, values)
            for slot in slots:
                self._space.lengths[slot] = self._space.lengths[source]

    def _join_prefixes(self, block: BlockCache, rows: Sequence[int]) -> list[int]:
        """Decode forks of the rows of a block, in empty slots, and keep the rows as prefixes."""
        store, kept = block.store, sorted(set(rows))
        prefixes = dict(zip(kept, store.join(block, kept), strict=True))
        slots = self._free(len(rows))
        self.live.update(slots)
        self._prefix_of |= {slot: prefixes[row] for slot, row in zip(slots, rows, strict=True)}
        missing = len(store._slot_caches) - len(self._slot_caches)
        self._slot_caches += [SlotCache(self._space) for _ in range(missing)]
        for own, prefix in zip(self._slot_caches, store._slot_caches, strict=True):
            own.prefix = prefix
        if slots:
            self.layers = self._slot_caches
            self._fit(0, 0)
        return slots

    def _join_others(self, block: BlockCache, rows: Mapping[int, int]) -> None:
        """Add the layers of a block that are not slots; slot -> row of the block."""
        first = self._width
        if not self.layers:
            self.layers = block.layers
        else:
            for old, new in zip(parts(self.layers), parts(block.layers), strict=True):
                if not isinstance(old, SlotCache):
                    old.extend(new)
        self._width += len(block.slots)
        last = self._width - 1
        self._select([first + rows[n] if n in rows else min(n, last) for n in range(self._count)])

    def _select(self, index: Sequence[int]) -> None:
        """Select rows of the layers that are not slots; index[i] becomes row i."""
        if list(index) != list(range(self._width)):
            rows = mx.array(list(index))
            for part in parts(self.layers):
                if not isinstance(part, SlotCache):
                    part.filter(rows)
            self._width = len(index)
