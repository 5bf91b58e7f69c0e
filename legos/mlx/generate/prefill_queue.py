"""What waits for a forward pass: prompts by their tokens, and the block that is on its way."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from legos.data.batch import row_blocks
from legos.mlx.generate.adapter_table import LiveAdapter
from legos.mlx.generate.kv_budget import KeyValueBudget
from legos.mlx.generate.multi_lora.slots import AdapterSlots
from legos.mlx.generate.prefill import Prefill, last_logits
from legos.mlx.generate.prefix_cache import PrefixCache
from legos.mlx.generate.sampling.sampler import Row, Sampler
from legos.mlx.generate.sequences import SequenceState
from legos.mlx.model.forward import CausalModel

__all__ = ["Block", "PrefillQueue"]

Tokens = tuple[int, ...]
Key = tuple[LiveAdapter, Tokens]
Sequences = dict[Key, list[SequenceState]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Rows that went through the model together."""

    rows: list[Row]  # those that somebody still waits for
    logits: mx.array  # [B, V] float32, of the next token
    cache: list[Any]  # one batch cache per layer, or empty where no row goes on


class _Underway:
    """A block that is being prefilled."""

    def __init__(self, waiting: Sequences, prefill: Prefill) -> None:
        self.waiting = waiting
        self.prefill = prefill
        self.slots = [live.slot for live, _ in waiting]


class PrefillQueue:
    """Sequences that wait for the next token of their row, in the order in which rows came.

    Sequences that draw for the last time need no cache: their rows are computed and dropped,
    unless that takes longer than decoding may wait. All others start only while there is room for
    them among the decoding rows and their bytes. Only rows that are being computed have bytes set
    aside, never one that waits, so the eldest can always start once the others have ended. A block
    that new weights interrupt is begun again smaller, and with twice as many tokens at once, so
    that it is done in the end however often weights are loaded.

    Attributes:
        rows_computed: rows that went through the model.
        tokens_asked: prompt tokens of the sequences that started.
        tokens_computed: of these, how many went through the model, each row's once.
        tokens_reused: of the rows', how many came from the prefix cache.
    """

    def __init__(
        self,
        forward: CausalModel,
        slots: AdapterSlots,
        prefixes: PrefixCache,
        budget: KeyValueBudget,
        *,
        block_tokens: int,
        chunk_tokens: int,
        prompt_step: int,
    ) -> None:
        """Wait for nothing yet.

        Args:
            forward: the model.
            slots: the adapters in it.
            prefixes: where beginnings of prompts may be found.
            budget: of keys and values.
            block_tokens: padded tokens of a block.
            chunk_tokens: longest row that is computed at once.
            prompt_step: prompts are processed in pieces of a multiple of so many tokens.
        """
        self._forward = forward
        self._slots = slots
        self._prefixes = prefixes
        self._budget = budget
        self._block_tokens = block_tokens
        self._chunk_tokens = chunk_tokens
        self._prompt_step = prompt_step
        self._last: Sequences = {}
        self._longer: Sequences = {}
        self._underway: _Underway | None = None
        self._interrupted = 0  # blocks in a row
        self.rows_computed = 0
        self.tokens_asked = self.tokens_computed = self.tokens_reused = 0

    def __len__(self) -> int:
        return sum(len(sequences) for held in self._all() for sequences in held.values())

    def __iter__(self) -> Iterator[SequenceState]:
        for held in self._all():
            for sequences in held.values():
                yield from sequences

    def __bool__(self) -> bool:
        return bool(self._last or self._longer or self._underway)

    def add(self, sequence: SequenceState) -> None:
        """Wait under one's tokens; what was set aside for a row that forked is free."""
        self._budget.give_back(sequence)
        key = (sequence.live, sequence.request.prompt_ids + sequence.tokens)
        at_once = sequence.last_draw and len(key[1]) <= self._chunk_tokens
        held = self._last if at_once and key not in self._longer else self._longer
        held.setdefault(key, []).append(sequence)

    def remove(self, gone: Collection[SequenceState]) -> None:
        """Take sequences out; a row for which nobody waits is not started."""
        for held in self._all():
            for key, sequences in list(held.items()):
                sequences[:] = [sequence for sequence in sequences if sequence not in gone]
                if not sequences and (self._underway is None or held is not self._underway.waiting):
                    del held[key]

    def clear(self) -> None:
        """Drop everything."""
        self._last, self._longer, self._underway = {}, {}, None

    def interrupt(self, live: LiveAdapter) -> None:
        """The weights have changed: a block that they began is begun again, before all others."""
        block = self._underway
        if block is None or all(each is not live for each, _ in block.waiting):
            return
        self._underway = None
        self._interrupted += 1
        later, self._longer = self._longer, {}
        for key, sequences in (*block.waiting.items(), *later.items()):
            if sequences:  # others may have come under the tokens of the block
                self._longer.setdefault(key, []).extend(sequences)
        for sequences in block.waiting.values():
            for sequence in sequences:
                self._budget.give_back(sequence)

    def known(self, sampler: Sampler) -> list[Row]:
        """Rows of which the sampler remembers the distribution; they wait no longer."""
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
        """Compute a block of rows whose sequences draw for the last time; None where none waits.

        The row that came first is in it, with others of about its length.

        Args:
            max_tokens: padded tokens of the forward pass.
        """
        if not self._last:
            return None
        eldest = next(iter(self._last))
        blocks = row_blocks(list(self._last), max_tokens, length=_length)
        keys = next(block for block in blocks if eldest in block)
        waiting = {key: self._last.pop(key) for key in keys}
        with self._slots.rows([live.slot for live, _ in keys]):
            logits = last_logits(self._forward, [tokens for _, tokens in keys])
        self._count(waiting, sum(len(tokens) for _, tokens in keys), reused=0)
        return Block(rows=_rows(waiting), logits=logits, cache=[])

    def prefilled(self, room: int, max_tokens: int) -> Block | None:
        """Go on with the block underway, or start one; the block where it is done.

        Args:
            room: rows that may start.
            max_tokens: padded tokens of the forward pass.
        """
        max_tokens <<= min(self._interrupted, 10)
        if self._underway is None:
            self._underway = self._next_block(room, max_tokens)
        block = self._underway
        if block is None:
            return None
        with self._slots.rows(block.slots):
            if not block.prefill.advance(max_tokens):
                return None
            logits = block.prefill.logits()
        self._underway = None
        self._interrupted = 0
        return Block(rows=_rows(block.waiting), logits=logits, cache=block.prefill.cache)

    def _next_block(self, room: int, max_tokens: int) -> _Underway | None:
        """The row that came first, with others of about its length.

        Where pieces cannot be short, or a block was interrupted, only so many rows that the first
        pieces fit a forward pass.
        """
        admitted = self._admitted(room)
        if not admitted:
            return None
        found = {key: self._prefixes.find(key[0].epoch, key[1]) or ([], 0) for key in admitted}
        whole = self._prompt_step == 1 and not self._interrupted
        most = self._block_tokens if whole else max_tokens
        blocks = row_blocks(admitted, most, length=lambda key: len(key[1]) - found[key][1])
        keys = next(block for block in blocks if admitted[0] in block)
        self._put_off(admitted, keys)
        waiting: Sequences = {}
        for key in keys:
            sequences = self._longer.pop(key)
            waiting[key] = [sequence for sequence in sequences if self._budget.take(sequence)]
            left = [sequence for sequence in sequences if sequence not in waiting[key]]
            if left:
                self._longer[key] = left
        prefill = Prefill(
            self._forward,
            [tokens for _, tokens in keys],
            [found[key] for key in keys],
            step=self._prompt_step,
        )
        self._count(waiting, prefill.num_tokens, reused=sum(found[key][1] for key in keys))
        return _Underway(waiting, prefill)

    def _admitted(self, room: int) -> list[Key]:
        """The rows that may start, oldest first: as many as fit, none before its elders."""
        keys: list[Key] = []
        for key, sequences in self._longer.items():
            if len(keys) >= room or not self._budget.take(sequences[0]):
                break
            keys.append(key)
        return keys

    def _put_off(self, admitted: Sequence[Key], keys: Sequence[Key]) -> None:
        """Free what was set aside for rows that are not in the block after all."""
        started = set(map(id, keys))
        for key in admitted:
            if id(key) not in started:
                self._budget.give_back(self._longer[key][0])

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
        if self._underway is not None:
            yield self._underway.waiting


def _length(key: Key) -> int:
    return len(key[1])


def _rows(waiting: Sequences) -> list[Row]:
    """The rows as the sampler wants them; those nobody waits for any more are left out."""
    return [
        ((live.epoch, tokens), sequences, index)
        for index, ((live, tokens), sequences) in enumerate(waiting.items())
        if sequences
    ]
