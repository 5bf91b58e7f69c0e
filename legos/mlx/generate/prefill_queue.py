"""The prefill queue: prompts that wait for a forward pass, and the block that is being computed."""

from collections.abc import Collection, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import KVCache

from legos.mlx.generate.adapter_table import LiveAdapter
from legos.mlx.generate.batch_cache import BlockCache
from legos.mlx.generate.capabilities import Capabilities
from legos.mlx.generate.kv_budget import KeyValueBudget
from legos.mlx.generate.multi_lora.slots import AdapterSlots
from legos.mlx.generate.prefill import Prefill, last_logits
from legos.mlx.generate.prefix_cache import BLOCK, PrefixCache
from legos.mlx.generate.rows import DecodingRows
from legos.mlx.generate.sampling.sampler import Row, Sampler
from legos.mlx.generate.sequences import SequenceState
from legos.mlx.generate.shared_prefix import (
    MIN_SAVED,
    computed_prefix,
    continued,
    num_shared,
)
from legos.mlx.model.forward import CausalModel
from legos.mlx.model.prefix_kv import PrefixKV
from legos.records.batch import row_blocks

MIN_SHARED = 128  # tokens of a row; to copy fewer for each fork is faster than a second attention
Tokens = tuple[int, ...]
Key = tuple[LiveAdapter, Tokens]
Sequences = dict[Key, list[SequenceState]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Rows that went through the model together."""

    rows: list[Row]  # rows that still have sequences
    versions: list[int]  # policy version that computed each of them
    logits: mx.array  # [B, V] next-token logits
    cache: BlockCache | None  # None: every sequence ends here


@dataclass(frozen=True, slots=True)
class _Underway:
    """A block whose prefill has started; it ends with the weights that it started with."""

    waiting: Sequences
    lives: list[LiveAdapter]  # the weights of each row, copied
    prefill: Prefill


@dataclass(slots=True, kw_only=True, eq=False)
class PrefillQueue:
    """Sequences that wait for the next token of their row, in the order in which rows arrived.

    Sequences that sample their last token need no cache: their rows are computed and dropped,
    unless a row is longer than one chunk, so that decoding would wait too long. All other rows
    start only while the decoding batch and the memory budget have room. Only rows that are being
    computed reserve bytes, never a waiting one, so the oldest row can always start once the others
    have ended. A block ends with the weights with which it started, however often others come.
    """

    forward: CausalModel
    slots: AdapterSlots  # the adapters of the model
    rows: DecodingRows  # the rows beside which a block gets its slots
    prefixes: PrefixCache  # keys and values of prompt prefixes
    budget: KeyValueBudget
    chunk_tokens: int  # maximum length of a row that is computed in one forward pass
    capabilities: Capabilities
    most_forks: int  # a row waits for room for at most so many forks
    rows_computed: int = 0  # number of rows computed by the model
    tokens_asked: int = 0  # number of prompt tokens of the sequences that started
    tokens_computed: int = 0  # number of these tokens to compute, each row counted once
    tokens_reused: int = 0  # number of the rows' tokens that were cached, or shared by their block
    _last: Sequences = field(default_factory=dict[Key, list[SequenceState]])
    _longer: Sequences = field(default_factory=dict[Key, list[SequenceState]])
    _underway: _Underway | None = None
    _yields: bool = False  # whether shorter rows may go before its next chunk

    def __len__(self) -> int:
        # Other threads ask for it too; list() copies a dict's values in one piece.
        return sum(len(sequences) for held in self._all() for sequences in list(held.values()))

    def __bool__(self) -> bool:
        return bool(self._last or self._longer or self._underway)

    @property
    def slots_used(self) -> set[int]:
        """The slots of the block in progress, also of rows whose sequences were all removed."""
        return {live.slot for live in self._underway.lives} if self._underway else set()

    def can_start(self, room: int) -> bool:
        """Whether anything that waits could be computed now, with room for so many rows."""
        if self._last or self._underway:
            return True
        admitted = self._admitted(room, most=1)
        self._put_off(admitted, ())
        return bool(admitted)

    def add(self, sequence: SequenceState) -> None:
        """Queue a sequence under its tokens, and release the bytes that it has reserved."""
        self.budget.give_back(sequence)
        key = (sequence.live, (*sequence.request.prompt_ids, *sequence.tokens))
        at_once = sequence.last_draw and len(key[1]) <= self.chunk_tokens
        held = self._last if at_once and key not in self._longer else self._longer
        held.setdefault(key, []).append(sequence)

    def remove(self, ended: Collection[SequenceState]) -> None:
        """Remove sequences; neither a row nor a block without sequences is computed further."""
        for held in self._all():
            for key, sequences in list(held.items()):
                sequences[:] = [sequence for sequence in sequences if sequence not in ended]
                if not sequences and (self._underway is None or held is not self._underway.waiting):
                    del held[key]
        underway = self._underway
        if underway is not None and not any(underway.waiting.values()):
            self.rows.join(underway.prefill.block, (), ())
            self._underway = None

    def clear(self) -> None:
        """Remove all sequences."""
        self._last, self._longer, self._underway = {}, {}, None

    def known(self, sampler: Sampler) -> list[Row]:
        """Remove and return the rows whose distribution the sampler has cached."""
        known = [
            (key, sequences)
            for key, sequences in self._last.items()
            if sampler.knows((key[0].epoch, key[1]), sequences)
        ]
        if len(known) == len(self._last):
            self._last = {}
        else:
            for key, _ in known:
                del self._last[key]
        return [((live.epoch, tokens), sequences, -1) for (live, tokens), sequences in known]

    def last_draws(self, max_tokens: int) -> Block | None:
        """Compute a block of rows whose sequences sample their last token; None where none waits.

        The block holds the oldest row and others of about its length. Of rows with equal tokens and
        equal weights under several names it holds one: the others may be known once it is drawn.

        Args:
            max_tokens: maximum number of padded tokens of the forward pass.
        """
        if not self._last:
            return None
        eldest = next(iter(self._last))
        blocks = row_blocks(list(self._last), max_tokens, length=_length)
        block = next(block for block in blocks if eldest in block)
        keys = {(live.epoch, tokens): (live, tokens) for live, tokens in block}.values()
        waiting = {key: self._last.pop(key) for key in keys}
        rows = [tokens for _, tokens in keys]
        lives = [live for live, _ in keys]
        shared, cache, computed = self._shared_prefix(rows, lives)
        with self.slots.rows([live.slot for live in lives]):
            logits = last_logits(self.forward, [tokens[shared:] for tokens in rows], cache)
        computed += sum(len(tokens) - shared for tokens in rows)
        self._count(waiting, computed, reused=sum(map(len, rows)) - computed)
        return _block(waiting, lives, logits, None)

    def _shared_prefix(
        self, rows: Sequence[Tokens], lives: Sequence[LiveAdapter]
    ) -> tuple[int, list[PrefixKV] | None, int]:
        """What all rows begin with, such as the rules of a game; computed once for each adapter.

        Returns:
            Number of its tokens, and its cache, where it pays; otherwise 0 and None. Number of
            tokens that were computed for it: all others come from the prefix cache.
        """
        shared = min(num_shared(rows), min(map(len, rows)) - 1)
        if not self.capabilities.shares_prefix or shared * len(rows) < MIN_SAVED:
            return 0, None, 0
        distinct = list({live.slot: live for live in lives}.values())
        found = [self.prefixes.find(live.epoch, rows[0][: shared + 1]) for live in distinct]
        kept = min((one[1] for one in found if one is not None), default=0)
        lacking = sum(one is None or one[1] < shared for one in found)
        more = (shared - kept) * len(rows) - shared * lacking + kept * found.count(None)
        if more < MIN_SAVED:  # what is known costs less
            shared = kept
        known = [one[0]() if one is not None and one[1] >= shared else None for one in found]
        passes = known.count(None)
        least = MIN_SAVED if shared >= BLOCK else MIN_SAVED * max(1, passes)  # it is not kept
        if shared * (len(rows) - passes) < least:
            return 0, None, 0
        prefixes = [
            self._computed(live, rows[0][:shared]) if one is None else one
            for live, one in zip(distinct, known, strict=True)
        ]
        slots = [live.slot for live in distinct]
        which = [slots.index(live.slot) for live in lives]
        return shared, continued(prefixes, which, shared), shared * passes

    def _computed(self, live: LiveAdapter, ids: Tokens) -> list[KVCache]:
        """The keys and values of a prefix, which are kept for later rows."""
        with self.slots.rows([live.slot]):
            cache = computed_prefix(self.forward, ids)
        if self.prefixes.wants(live.epoch, ids):
            self.prefixes.add(live.epoch, ids, cache)
        return cache

    def prefilled(self, room: int, max_tokens: int) -> Block | None:
        """Compute one chunk of the block in progress, or of a new one; None until it is finished.

        Every second time, rows that one chunk computes go before a block that needs several, so
        that no short prompt waits for a long one.

        Args:
            room: number of rows that may start.
            max_tokens: maximum number of padded tokens of the forward pass.
        """
        long, self._yields = self._underway, not self._yields
        short = None
        if long is not None and self._yields:
            reserved = sum(self._room_of(one) for one in long.waiting.values() if one)
            short = self._next_block(room - reserved, max_tokens, at_once=True)
        block = short or long or self._next_block(room, max_tokens)
        if block is None:
            return None
        with self.slots.rows([live.slot for live in block.lives]):
            while not block.prefill.advance(max_tokens):
                if block is not short:
                    self._underway = block
                    return None
            logits = block.prefill.logits()
        self._underway = long if block is short else None
        return _block(block.waiting, block.lives, logits, block.prefill.block)

    def _next_block(self, room: int, max_tokens: int, *, at_once: bool = False) -> _Underway | None:
        """Start a block of the oldest row and others of about its length, all in one pass.

        A row that is longer is computed alone, in several passes, or not now if ``at_once``. Rows
        that become prefixes, and others, are in different blocks.
        """
        admitted = self._admitted(room)
        found = {
            key: self.prefixes.find(key[0].epoch, key[1]) or (list[Any], 0) for key in admitted
        }
        left = {key: len(key[1]) - length for key, (_, length) in found.items()}
        able = [key for key in admitted if not at_once or left[key] <= max_tokens]
        if not able:
            self._put_off(admitted, ())
            return None
        shared = self._shares(able[0])
        alike = [key for key in able if self._shares(key) == shared]
        blocks = row_blocks(alike, max_tokens, length=left.__getitem__)
        keys = next(block for block in blocks if able[0] in block)
        self._put_off(admitted, keys)
        waiting: Sequences = {}
        for key in keys:
            sequences = self._longer.pop(key)
            waiting[key] = [one for one in sequences if self.budget.take(one, beside=sequences[0])]
            left = [sequence for sequence in sequences if sequence not in waiting[key]]
            if left:
                self._longer[key] = left
        number = sum(map(len, waiting.values())) if shared else len(keys)
        if not self.rows.cache.fits(number, 1 if shared else max(map(_length, keys)) + 1):
            self.rows.settle()
        coming = (sequence.remaining for sequences in waiting.values() for sequence in sequences)
        prefill = Prefill(
            self.forward,
            [tokens for _, tokens in keys],
            [(cached(), length) for cached, length in (found[key] for key in keys)],
            cache=self.rows.cache,
            step=self.capabilities.prompt_step,
            coming=max(coming),
            shared=shared,
        )
        self._count(waiting, prefill.num_tokens, reused=sum(found[key][1] for key in keys))
        return _Underway(waiting, [copy(live) for live, _ in keys], prefill)

    def _admitted(self, room: int, *, most: int | None = None) -> list[Key]:
        """The rows that may start, oldest first; none starts before an older one that waits.

        A row needs room for those into which it may fork: they would be computed again later if
        they did not fit. ``most`` is the maximum number of rows; None: any.
        """
        keys: list[Key] = []
        for key, sequences in islice(self._longer.items(), most):
            room -= self._room_of(sequences)
            shared = len(key[1]) if self._shares(key) else 0
            if room < 0 or not self.budget.take(sequences[0], shared=shared):
                break
            keys.append(key)
        return keys

    def _room_of(self, sequences: Sequence[SequenceState]) -> int:
        """For how many forks of a row there must be room before it starts."""
        return min(_num_forks(sequences), self.most_forks)

    def _shares(self, key: Key) -> bool:
        """Whether the forks of a row will continue it as a prefix."""
        shares = self.capabilities.shares_prefix and len(key[1]) >= MIN_SHARED
        return shares and _num_forks(self._longer[key]) > 1

    def _put_off(self, admitted: Sequence[Key], keys: Sequence[Key]) -> None:
        """Release the bytes reserved for admitted rows that are not in the block."""
        started = set(map(id, keys))
        for key in admitted:
            if id(key) not in started:
                self.budget.give_back(self._longer[key][0])

    def _count(self, waiting: Sequences, computed: int, *, reused: int) -> None:
        self.rows_computed += len(waiting)
        self.tokens_computed += computed
        self.tokens_reused += reused
        self.tokens_asked += sum(len(key[1]) * len(sequences) for key, sequences in waiting.items())
        for (live, _), sequences in waiting.items():
            for sequence in sequences:
                sequence.epoch = live.epoch

    def _all(self) -> Iterator[Sequences]:
        yield self._last
        yield self._longer
        if (underway := self._underway) is not None:  # read once; another thread may ask
            yield underway.waiting


def _length(key: Key) -> int:
    return len(key[1])


def _num_forks(sequences: Sequence[SequenceState]) -> int:
    """Number of different tokens that sequences of one row may sample next, at most."""
    allowed = sequences[0].allowed
    return len(sequences) if allowed is None else min(len(sequences), len(allowed))


def _block(
    waiting: Sequences, lives: Sequence[LiveAdapter], logits: mx.array, cache: BlockCache | None
) -> Block:
    """The result of a block, without the rows that have no sequences."""
    rows: list[Row] = []
    versions: list[int] = []
    for index, ((_, tokens), sequences) in enumerate(waiting.items()):
        if sequences:
            rows.append(((lives[index].epoch, tokens), sequences, index))
            versions.append(lives[index].version)
    return Block(rows=rows, versions=versions, logits=logits, cache=cache)
