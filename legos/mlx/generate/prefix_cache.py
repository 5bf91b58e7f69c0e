"""The prefix cache: keys and values of prompts and answers, reused by prompts that share a prefix.

An entry belongs to one epoch of weights (``LiveAdapter.epoch``) and is used with those weights
only. An entry that can be trimmed serves every prompt that shares a prefix with it, and is found by
each of its blocks of tokens. An entry that cannot be trimmed (state-space layers, a sliding window
that has moved on) serves only prompts that continue all of its tokens, and is found by the last.
"""

import copy
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from typing import Any

from mlx_lm.models.cache import CacheList, can_trim_prompt_cache, trim_prompt_cache

from legos.mlx.generate.shared_prefix import num_shared

BLOCK = 64  # tokens; to compute a shorter prefix is faster than to look it up and join it
PATIENCE, TRIED = 1024, 16  # answers that no prompt continues, until only every 16th is kept
Tokens = tuple[int, ...]
Key = tuple[int, Tokens]


class _Entry:
    """The cache of one row, one object per layer, and its tokens."""

    def __init__(self, key: Key, cache: list[Any], answer: int) -> None:
        self.key = key
        self.answer = answer  # number of tokens before the answer
        self.tokens = key[1]
        self.cache = cache
        self.num_bytes = sum(int(layer.nbytes) for layer in cache)
        self.trimmable: bool = can_trim_prompt_cache(cache)
        blocks = list(_blocks(*key))
        self.places = blocks if self.trimmable else blocks[-1:]


class PrefixCache:
    """A cache of rows that evicts least recently used entries beyond a limit of bytes.

    Attributes:
        num_bytes: bytes of all entries.
    """

    def __init__(self, max_bytes: int, *, token_bytes: int = 0) -> None:
        """Start empty; ``token_bytes``: the least that each token of a row takes."""
        self._max_bytes, self._token_bytes = max_bytes, token_bytes
        self._entries: OrderedDict[Key, _Entry] = OrderedDict()
        self._places: dict[int, dict[Key, None]] = {}  # hash -> entries that can be trimmed
        self._whole: dict[int, dict[Key, None]] = {}  # hash -> entries that cannot be trimmed
        self._answers = 0  # since a prompt last continued one
        self.num_bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def wants(self, epoch: int, tokens: Tokens) -> bool:
        """Whether ``add`` should be called: the tokens have no entry yet, and are worth one."""
        fits = 0 < self._max_bytes >= len(tokens) * self._token_bytes
        return fits and len(tokens) >= BLOCK and (epoch, tokens) not in self._entries

    def wants_answer(self, epoch: int, tokens: Tokens) -> bool:
        """``wants`` for a prompt and its answer.

        Where plays have one turn, no prompt ever continues an answer, and copying every ended row
        would cost several kernels for each layer. So few are copied then, until one is continued.
        """
        if not self.wants(epoch, tokens):
            return False
        self._answers += 1
        return self._answers <= PATIENCE or self._answers % TRIED == 0

    def add(
        self, epoch: int, tokens: Tokens, cache: list[Any], *, answer: int | None = None
    ) -> None:
        """Add a row's cache; remove an entry that it extends, and entries beyond the limit.

        Args:
            epoch: epoch of the weights that computed it.
            tokens: tokens in the cache.
            cache: one row's cache per layer, evaluated and never changed again.
            answer: number of tokens before the answer; None: there is none.
        """
        entry = _Entry((epoch, tokens), cache, len(tokens) if answer is None else answer)
        if entry.num_bytes > self._max_bytes or entry.key in self._entries:
            return
        if entry.trimmable:
            shorter = self._nearest(epoch, tokens)
            if shorter and shorter.tokens == tokens[: len(shorter.tokens)]:
                self._remove(shorter)
        self._entries[entry.key] = entry
        for place in entry.places:
            self._found_by(entry).setdefault(place, {})[entry.key] = None
        self.num_bytes += entry.num_bytes
        while self.num_bytes > self._max_bytes:
            self._remove(next(iter(self._entries.values())))

    def find(self, epoch: int, tokens: Tokens) -> tuple[Callable[[], list[Any]], int] | None:
        """Find the longest cached prefix of a prompt, without the prompt's last token.

        Returns:
            A function that makes one row's cache per layer, whose arrays are not to be changed in
            place, and its number of tokens; None where no entry shares at least ``BLOCK`` tokens.
        """
        found: tuple[int, _Entry] | None = None
        near = self._nearest(epoch, tokens)
        if near is not None:
            found = num_shared([near.tokens, tokens[:-1]]), near
        whole = self._longest_whole(epoch, tokens)
        if whole is not None and (found is None or len(whole.tokens) > found[0]):
            found = len(whole.tokens), whole
        if found is None or found[0] < BLOCK:
            return None
        length, entry = found
        self._entries.move_to_end(entry.key)
        if length > entry.answer:
            self._answers = 0
        return partial(trimmed, entry.cache, len(entry.tokens) - length), length

    def keep_only(self, epochs: Collection[int]) -> None:
        """Remove the entries of all other epochs; a thousand take as long as 1-2 decode steps."""
        for entry in [each for key, each in self._entries.items() if key[0] not in epochs]:
            self._remove(entry)

    def _nearest(self, epoch: int, tokens: Tokens) -> _Entry | None:
        """The entry that shares the most blocks of tokens, among those that can be trimmed."""
        key: Key | None = None
        for place in _blocks(epoch, tokens):
            here = self._places.get(place)
            if not here:
                break
            key = next(reversed(here))
        return self._entries[key] if key is not None else None

    def _longest_whole(self, epoch: int, tokens: Tokens) -> _Entry | None:
        """The longest entry that cannot be trimmed and whose tokens the prompt continues."""
        found: Tokens = ()
        for number, place in enumerate(_blocks(epoch, tokens) if self._whole else (), 1):
            start = number * BLOCK  # the rest is compared first: many may share all of their blocks
            for _, whole in self._whole.get(place, ()):
                size = len(whole)
                if len(found) < size < len(tokens) and whole[start:] == tokens[start:size]:
                    found = whole if whole == tokens[:size] else found
        return self._entries[epoch, found] if found else None

    def _remove(self, entry: _Entry) -> None:
        del self._entries[entry.key]
        self.num_bytes -= entry.num_bytes
        places = self._found_by(entry)
        for place in entry.places:
            del places[place][entry.key]
            if not places[place]:
                del places[place]

    def _found_by(self, entry: _Entry) -> dict[int, dict[Key, None]]:
        return self._places if entry.trimmable else self._whole


def copied(cache: Sequence[Any]) -> list[Any]:
    """New cache objects with the same arrays; trimming them leaves the old ones as they are."""
    return [
        CacheList(*copied(layer.caches)) if isinstance(layer, CacheList) else copy.copy(layer)
        for layer in cache
    ]


def trimmed(cache: Sequence[Any], num_tokens: int) -> list[Any]:
    """A copy without the last ``num_tokens`` tokens, for a cache that can be trimmed."""
    found = copied(cache)
    if num_tokens:
        trim_prompt_cache(found, num_tokens)
    return found


def _blocks(epoch: int, tokens: Sequence[int]) -> Iterator[int]:
    """A hash for every whole block of tokens, which also covers all tokens before the block."""
    chain = epoch
    for start in range(0, len(tokens) - BLOCK + 1, BLOCK):
        chain = hash((chain, *tokens[start : start + BLOCK]))
        yield chain
