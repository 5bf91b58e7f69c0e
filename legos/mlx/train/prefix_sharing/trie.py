"""The token trie of an optimiser step: which prefixes its rows share, and which are worth sharing.

A segment is a run of tokens that is computed once. Its parent is the segment before it, so a row is
a path from a segment without parent down to the segment in which the row ends.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise, starmap
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from legos.records.batch import num_common
from legos.records.step import MICRO_BATCH_TOKENS

Ints = NDArray[np.int32]
NO_PARENT = -1
MIN_LENGTH = 8  # tokens; to pass on a shorter prefix costs more than to compute it again
MIN_SAVED = 64  # tokens that sharing one prefix must save, for its copies of keys and values
CALL_TOKENS = 128  # a call of the model costs about as much as this many padded tokens
PIECE, PIECES = 256, 4  # tokens of a piece at least, and pieces of a segment at most
MIN_SHARE = 0.1  # fraction of all tokens that sharing must save; otherwise no prefix is shared


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A run of tokens that is computed once."""

    tokens: Ints  # [L] its own token ids
    parent: int  # index of the segment before it, or NO_PARENT
    start: int  # number of tokens before it

    @property
    def end(self) -> int:
        """Number of tokens up to its end."""
        return self.start + len(self.tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trie:
    """Segments, parents before children, and the segment in which each row ends."""

    segments: tuple[Segment, ...]
    row_segment: tuple[int, ...]  # [R] the row is a prefix of the path down to this segment

    def path(self, segment: int) -> list[int]:
        """The segments from the first token of a row down to this one, inclusive."""
        found = [segment]
        while (parent := self.segments[found[-1]].parent) != NO_PARENT:
            found.append(parent)
        return found[::-1]

    @property
    def num_tokens(self) -> int:
        """Number of tokens that are computed."""
        return sum(len(segment.tokens) for segment in self.segments)


def token_trie(
    rows: Sequence[Ints], *, share: bool = True, max_tokens: int = MICRO_BATCH_TOKENS
) -> Trie:
    """Build the trie of the rows, and share every prefix that is worth it.

    A row that is a prefix of another row has no segment of its own. A branch of the trie becomes a
    boundary between segments where that saves enough tokens. A prefix costs a copy of its keys and
    values for every row that continues it; a level of the trie costs one more call of the layers
    in each pass, however many prefixes it has. So many prefixes that save little each are shared,
    where all of them together save more than these calls.

    Args:
        rows: [R] distinct rows of token ids, none of them empty.
        share: False shares no prefix and cuts no row (for architectures whose cache cannot be
            split).
        max_tokens: padded tokens of a pass.
    """
    segments = tuple(Segment(tokens=row, parent=NO_PARENT, start=0) for row in rows)
    alone = Trie(segments=segments, row_segment=tuple(range(len(rows))))
    if not share:
        return alone
    tree = _sorted(rows)
    tries = (_share(tree, least) for least in (MIN_SAVED, CALL_TOKENS))
    shared = min(tries, key=partial(_cost, max_tokens))
    saved = alone.num_tokens - shared.num_tokens
    return _in_pieces(shared if saved >= MIN_SHARE * alone.num_tokens else alone)


def _cost(max_tokens: int, trie: Trie) -> int:
    """What the passes of a trie cost, in tokens."""
    levels = max(len(trie.path(segment)) for segment in trie.row_segment)
    passes = -(-trie.num_tokens // max_tokens)
    return trie.num_tokens + CALL_TOKENS * levels * passes


def _in_pieces(trie: Trie) -> Trie:
    """The trie with long segments cut into pieces, each of which continues the one before it.

    The attention of a segment in training computes the scores of all pairs of its tokens, of which
    the causal mask discards half. A piece computes none to the tokens after it, and no row is
    longer than before. Every piece holds a copy of the keys and values before it, so few are made.
    """
    segments: list[Segment] = []
    last: list[int] = []  # index of the last piece of each segment
    for whole in trie.segments:
        parent = NO_PARENT if whole.parent == NO_PARENT else last[whole.parent]
        start = whole.start
        count = min(-(-len(whole.tokens) // PIECE), PIECES)
        for tokens in np.array_split(whole.tokens, count):
            segments.append(Segment(tokens=tokens, parent=parent, start=start))
            parent, start = len(segments) - 1, start + len(tokens)
        last.append(parent)
    ends = tuple(last[segment] for segment in trie.row_segment)
    return Trie(segments=tuple(segments), row_segment=ends)


class _Sorted(NamedTuple):
    """Rows in the order of their tokens, in which those with a common prefix are adjacent."""

    order: Sequence[int]  # [R] index of each row
    rows: Sequence[Ints]  # [R]
    common: NDArray[np.int64]  # [R] tokens in common with the row before


def _sorted(rows: Sequence[Ints]) -> _Sorted:
    order = sorted(range(len(rows)), key=lambda index: rows[index].astype(">i4").tobytes())
    ordered = [rows[index] for index in order]
    common = np.array([0, *starmap(num_common, pairwise(ordered))], np.int64)
    return _Sorted(order, ordered, common)


def _share(tree: _Sorted, least: int) -> Trie:
    """The trie in which every shared prefix saves at least so many tokens.

    From the root on, a prefix is shared where that saves enough if no longer one is shared; then,
    from the leaves on, those are dissolved that save too little beside the longer ones.
    """
    order, ordered, common = tree
    segments: list[Segment] = []
    ends = [NO_PARENT] * len(ordered)  # in sorted order; NO_PARENT: ends where the next row does
    work = [(0, len(ordered), 0, NO_PARENT)]  # rows low..high share `start` tokens, up to `parent`
    while work:
        low, high, start, parent = work.pop()
        if high - low == 1:
            ends[low] = len(segments)
            segments.append(Segment(tokens=ordered[low][start:], parent=parent, start=start))
            continue
        inside = common[low + 1 : high]
        fork = int(inside.min())
        cuts = [low, *(low + 1 + np.flatnonzero(inside == fork)).tolist(), high]
        whole = len(ordered[low]) == fork  # the first row is a prefix of all others
        branches = list(pairwise(cuts))[int(whole) :]
        others = high - low - int(whole) - 1 if len(branches) > 1 else 0
        if fork - start >= MIN_LENGTH and (fork - start) * others >= least:
            own = Segment(tokens=ordered[low][start:fork], parent=parent, start=start)
            if whole:
                ends[low] = len(segments)
            start, parent = fork, len(segments)
            segments.append(own)
        work += [(*branch, start, parent) for branch in reversed(branches)]
    row_segment = [0] * len(ordered)
    for place in reversed(range(len(order))):
        if ends[place] == NO_PARENT:
            ends[place] = ends[place + 1]
        row_segment[order[place]] = ends[place]
    return _dissolved(segments, row_segment, least)


def _dissolved(segments: Sequence[Segment], row_segment: Sequence[int], least: int) -> Trie:
    """The trie without segments that save less; their tokens go to the segments after them."""
    after: dict[int, list[int]] = {}
    for number, segment in enumerate(segments):
        after.setdefault(segment.parent, []).append(number)
    dissolved: set[int] = set()
    for number in reversed(range(len(segments))):
        following = after.get(number)
        if following and len(segments[number].tokens) * (len(following) - 1) < least:
            dissolved.add(number)
            siblings = after[segments[number].parent]
            siblings.remove(number)
            siblings += following
    kept: list[Segment] = []
    place: dict[int, int] = {NO_PARENT: NO_PARENT}  # number -> index in what is kept
    for number, segment in enumerate(segments):
        if number in dissolved:
            continue
        tokens, parent = [segment.tokens], segment.parent
        while parent in dissolved:
            tokens.insert(0, segments[parent].tokens)
            parent = segments[parent].parent
        start = segment.end - sum(map(len, tokens))
        place[number] = len(kept)
        kept.append(Segment(tokens=np.concatenate(tokens), parent=place[parent], start=start))
    for number in reversed(range(len(segments))):  # a row that ends there is a prefix of others
        if number in dissolved:
            place[number] = place[after[number][0]]
    return Trie(segments=tuple(kept), row_segment=tuple(place[number] for number in row_segment))
