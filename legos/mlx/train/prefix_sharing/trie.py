"""The token trie of an optimiser step: which prefixes its rows share, and which are worth sharing.

A segment is a stretch of tokens that is computed once. Its parent is the segment that stands before
it, so a row is a path from a segment without parent down to the one it ends in.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

__all__ = ["NO_PARENT", "Segment", "Trie", "token_trie"]

Ints = NDArray[np.int32]
NO_PARENT = -1
MIN_LENGTH = 8  # tokens; a shorter prefix costs more to hand on than to compute again
MIN_SAVED = 128  # tokens that sharing one prefix must save, about what one more call costs
MIN_SHARE = 0.1  # of all tokens that sharing must save, else every row stands alone


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """Tokens that are computed once."""

    tokens: Ints  # [L] its own tokens
    parent: int  # number of the segment before it, or NO_PARENT
    start: int  # tokens before it

    @property
    def end(self) -> int:
        """Tokens up to and with its own."""
        return self.start + len(self.tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trie:
    """Segments, parents before children, and where each row ends."""

    segments: tuple[Segment, ...]
    row_segment: tuple[int, ...]  # [R] the row is a prefix of the path down to this segment

    def path(self, segment: int) -> list[int]:
        """The segments from the first token down to and with this one."""
        found = [segment]
        while (parent := self.segments[found[-1]].parent) != NO_PARENT:
            found.append(parent)
        return found[::-1]

    @property
    def num_tokens(self) -> int:
        """Tokens that are computed."""
        return sum(len(segment.tokens) for segment in self.segments)


def token_trie(rows: Sequence[Ints], *, share: bool = True) -> Trie:
    """Share every prefix of the rows that is worth it.

    A row that is a prefix of another one has no segment of its own. A branch of the trie becomes a
    boundary between segments where it saves enough tokens; each level costs one more pass through
    the layers and a copy of the prefix's keys and values for every row behind it.

    Args:
        rows: [R] distinct rows, none of them empty.
        share: False: every row stands alone (for architectures without a divisible cache).
    """
    alone = _stand_alone(rows)
    if not share or len(rows) < 2:
        return alone
    shared = _share(rows)
    saved = alone.num_tokens - shared.num_tokens
    return shared if saved >= MIN_SHARE * alone.num_tokens else alone


def _stand_alone(rows: Sequence[Ints]) -> Trie:
    segments = tuple(Segment(tokens=row, parent=NO_PARENT, start=0) for row in rows)
    return Trie(segments=segments, row_segment=tuple(range(len(rows))))


def _share(rows: Sequence[Ints]) -> Trie:
    order = sorted(range(len(rows)), key=lambda index: rows[index].astype(">i4").tobytes())
    ordered = [rows[index] for index in order]
    common = np.array([0, *(_common(a, b) for a, b in pairwise(ordered))], np.int64)
    segments: list[Segment] = []
    ends = [NO_PARENT] * len(rows)  # in sorted order; NO_PARENT: as the row after it
    work = [(0, len(rows), 0, NO_PARENT)]  # rows low..high share `start` tokens, up to `parent`
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
        if fork - start >= MIN_LENGTH and (fork - start) * (len(branches) - 1) >= MIN_SAVED:
            own = Segment(tokens=ordered[low][start:fork], parent=parent, start=start)
            if whole:
                ends[low] = len(segments)
            start, parent = fork, len(segments)
            segments.append(own)
        work += [(*branch, start, parent) for branch in reversed(branches)]
    row_segment = [0] * len(rows)
    for place in reversed(range(len(order))):
        if ends[place] == NO_PARENT:
            ends[place] = ends[place + 1]
        row_segment[order[place]] = ends[place]
    return Trie(segments=tuple(segments), row_segment=tuple(row_segment))


def _common(a: Ints, b: Ints) -> int:
    """Leading tokens that two rows have in common."""
    length = min(len(a), len(b))
    differ = a[:length] != b[:length]
    first = int(differ.argmax()) if length else 0
    return first if length and differ[first] else length
