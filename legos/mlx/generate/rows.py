"""The decoding batch: its rows, the sequences of each row, and their key-value cache."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import mlx.core as mx

from legos.mlx.generate.batch_cache import BatchCache, BlockCache
from legos.mlx.generate.multi_lora.slots import AdapterSlots
from legos.mlx.generate.sampling.sampler import Draws, Row, Sampler
from legos.mlx.generate.sequences import SequenceState
from legos.mlx.model.cache_parts import evaluate
from legos.mlx.model.forward import CausalModel

EVALUATED_EVERY = 32  # steps
Fork = tuple[int, list[SequenceState]]
"""Sequences that drew the same token in one row, and the index of that row."""


@dataclass(slots=True)
class LaunchedStep:
    """One more token of every row, which the device may still compute.

    The next step can be launched from its tokens before they are read. A row of which the host then
    learns that it had ended already is removed here, so its token is never read.
    """

    rows: list[Row]  # [B] the rows; the index of each is its slot
    versions: list[int]  # [B] policy version that computes each row
    draws: Draws

    def keep(self, slots: Collection[int]) -> None:
        """Remove the rows in all other slots; every row must have one sequence."""
        numbers = [number for number, (_, _, slot) in enumerate(self.rows) if slot in slots]
        self.rows = [self.rows[number] for number in numbers]
        self.versions = [self.versions[number] for number in numbers]
        self.draws = self.draws.keep(numbers)

    def moved(self, before: Sequence[int]) -> mx.array:
        """[B] the tokens, after the row in slot ``before[i]`` has moved into slot i, for each i."""
        numbers = {slot: number for number, (_, _, slot) in enumerate(self.rows)}
        order = [numbers[slot] for slot in before]
        slots = {slot: new for new, slot in enumerate(before)}
        self.rows = [(key, sequences, slots[slot]) for key, sequences, slot in self.rows]
        same = order == list(range(len(order)))
        return self.draws.tokens if same else self.draws.tokens[mx.array(order)]


class DecodingRows:
    """The rows in the slots of a cache; the sequences of one row have the same tokens.

    Attributes:
        cache: the cache of the rows, and of the blocks that are prefilled for them.
        rows_computed: number of rows computed by the model so far.
    """

    def __init__(self, slots: AdapterSlots, cache: BatchCache, max_rows: int) -> None:
        self._adapters = slots
        self._max_rows = max_rows
        self._sequences: dict[int, list[SequenceState]] = {}  # slot -> sequences of its row
        self.cache = cache
        self._steps = 0
        self.rows_computed = 0

    def __len__(self) -> int:
        return len(self._sequences)

    @property
    def room(self) -> int:
        """Number of rows that may join."""
        return max(self._max_rows - len(self._sequences), 0)

    @property
    def sequences(self) -> set[SequenceState]:
        """All sequences that are decoded."""
        return {one for sequences in self._sequences.values() for one in sequences}

    def listed(self) -> list[Row]:
        """Every row in the sampler's format, without a key, which would copy all its tokens."""
        return [(None, sequences, slot) for slot, sequences in self._sequences.items()]

    def launch(
        self,
        forward: CausalModel,
        sampler: Sampler,
        unread: LaunchedStep | None,
        *,
        refill: bool,
    ) -> LaunchedStep:
        """Start to compute one more token of every row; adds the last one to the cache.

        Args:
            forward: the model.
            sampler: samples the tokens.
            unread: the step before, whose rows have one sequence each, if it is not read yet.
            refill: whether prompts will take the free slots between the rows at once; only where
                every step was read.
        """
        self.rows_computed += len(self._sequences)
        self._steps += 1
        if self._steps % EVALUATED_EVERY == 0:
            evaluate(self.cache.layers)
        if refill and self.cache.fits(0, self.cache.longest + 1):
            last = None
        else:
            before = self.settle()
            last = None if unread is None else unread.moved(before)
        full = self.cache.is_full
        number = self.cache.decode(max(m.remaining for m in self.sequences) if full else 0)
        firsts = {slot: sequences[0] for slot, sequences in self._sequences.items()}
        spare = next(iter(firsts.values()))
        rows_of = [firsts.get(slot, spare) for slot in range(number)]
        if last is None:
            last = mx.array([first.tokens[-1] for first in rows_of])
        with self._adapters.rows([first.live.slot for first in rows_of]):
            logits = forward.next_logits(last, self.cache.layers)
        rows = self.listed()
        draws = sampler.draw(rows, logits, unread=0 if unread is None else 1)
        return LaunchedStep(rows, [first.live.version for first in firsts.values()], draws)

    def settle(self) -> list[int]:
        """Close the gaps between the rows; every step must be read, or renumbered (``moved``).

        Returns:
            The former slot of the row in each slot.
        """
        before = self.cache.settle()
        old = self._sequences
        self._sequences = {new: old[slot] for new, slot in enumerate(before) if slot in old}
        return before

    def fork(self, forks: Sequence[Fork]) -> Sequence[Fork]:
        """Replace every row by its forks; a row without forks is removed.

        Returns:
            The forks that do not fit.
        """
        fit = forks[: self._max_rows]
        self.cache.wipe(failed(self.listed(), forks))
        slots = self.cache.fork([slot for slot, _ in fit])
        self._put(slots, fit, {})
        return forks[self._max_rows :]

    def join(self, block: BlockCache, rows: Sequence[Row], forks: Sequence[Fork]) -> Sequence[Fork]:
        """Add the forks of freshly computed rows.

        Args:
            block: the cache of the rows.
            rows: the rows that were computed; their indices are those of the block.
            forks: the forks that are decoded further.

        Returns:
            The forks that do not fit.
        """
        fit, left = forks[: self.room], forks[self.room :]
        unsound = failed(rows, forks)
        sound = {block.slots[index] for _, _, index in rows if index not in unsound}
        block.store.wipe(slot for slot in block.slots if slot not in sound)
        slots = self.cache.join(block, [index for index, _ in fit])
        self._put(slots, fit, self._sequences)
        return left

    def remove(self, ended: Collection[SequenceState]) -> None:
        """Remove sequences from their rows; a row without sequences is removed."""
        rows = [(slot, [m for m in row if m not in ended]) for slot, row in self._sequences.items()]
        self.fork([(slot, sequences) for slot, sequences in rows if sequences])

    def clear(self) -> None:
        """Remove all rows and blocks, and release the memory of the cache."""
        self._sequences = {}
        self.cache.clear()

    def _put(
        self,
        slots: Sequence[int],
        forks: Sequence[Fork],
        others: Mapping[int, list[SequenceState]],
    ) -> None:
        """Put forks into their slots, in the order of the slots."""
        new = {slot: sequences for slot, (_, sequences) in zip(slots, forks, strict=True)}
        self._sequences = dict(sorted({**others, **new}.items()))


def failed(rows: Sequence[Row], forks: Sequence[Fork]) -> set[int]:
    """Indices of the rows whose keys and values may be no numbers: no sequence could go on.

    A row that has forks is sound, though its first sequence may have failed by its own grammar.
    """
    forked = {index for index, _ in forks}
    return {
        index
        for _, sequences, index in rows
        if sequences[0].failure is not None and index not in forked
    }
