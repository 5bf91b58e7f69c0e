"""Plan the passes of a step: which segments of the trie are computed together, in what order.

A pass is one forward and backward pass within the token budget. It consists of blocks, each one
call of the model on segments of similar length; a block comes after those that its rows continue.

R rows of a block, T tokens of its longest row.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from legos.mlx.train.prefix_sharing.trie import CALL_TOKENS, NO_PARENT, Segment, Trie
from legos.records.batch import pad_rows

Ints = NDArray[np.int32]


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Segments that one call of the model computes."""

    input_ids: Ints  # [R, T] token ids, right-padded with 0
    numbers: tuple[int, ...]  # [R] number of each row's segment in the trie
    segments: tuple[Segment, ...]  # [R] the segments; those of one parent are adjacent
    continued: tuple[int, ...]  # rows whose keys and values later blocks of the pass need


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """Blocks that are computed together, and the rows of the step whose loss they give."""

    blocks: tuple[Block, ...]
    rows: tuple[int, ...]
    carried: Mapping[int, int]
    """Prefix segments computed outside of this pass, parents first -> parent, or NO_PARENT."""

    @property
    def num_tokens(self) -> int:
        """Number of tokens with padding, shared ones counted once."""
        return sum(block.input_ids.size for block in self.blocks)


def plan_passes(trie: Trie, *, max_tokens: int, max_keys: int | None = None) -> list[Pass]:
    """Split the step's segments into passes of at most ``max_tokens`` padded tokens.

    Rows with a common prefix stay together as far as the budget allows. A prefix that several
    passes continue is carried: its forward pass runs once before them all, its backward pass once
    after them all. A row that alone exceeds the budget is its own pass.

    Args:
        trie: segments and rows of the step.
        max_tokens: budget of padded tokens, shared ones counted once.
        max_keys: budget of prefix tokens whose keys and values are copied, once for each row that
            continues them; a pass of a single row may exceed it. None: no limit.
    """
    ends = set(trie.row_segment)
    targets = [segment for segment in _depth_first(trie) if segment in ends]
    carried: set[int] = set()
    while True:
        parts = _partition(trie, targets, carried, max_tokens, max_keys)
        uses = Counter(number for part in parts for number in _needed(trie, part, carried))
        repeated = {number for number, count in uses.items() if count > 1}
        if not repeated:
            return [_pass(trie, part, carried) for part in parts]
        carried |= repeated


def pass_of_carried(trie: Trie, segment: int) -> Pass:
    """The pass of one carried segment; all segments before it are carried too."""
    before = {number: trie.segments[number].parent for number in trie.path(segment)[:-1]}
    return Pass(blocks=(make_block(trie, [segment], {segment}),), rows=(), carried=before)


def _partition(
    trie: Trie,
    targets: Sequence[int],
    carried: set[int],
    max_tokens: int,
    max_keys: int | None,
) -> list[Sequence[int]]:
    """Split the targets, in order, into parts that each fit into one pass."""
    parts: list[Sequence[int]] = []
    first = 0
    while first < len(targets):
        count = _fitting(trie, targets[first:], carried, max_tokens, max_keys)
        parts.append(targets[first : first + count])
        first += count
    return parts


def _pass(trie: Trie, targets: Sequence[int], carried: set[int]) -> Pass:
    """The pass of all rows that end in the target segments."""
    ends = set(targets)
    before = sorted({n for target in targets for n in trie.path(target) if n in carried})
    return Pass(
        blocks=_blocks(trie, _needed(trie, targets, carried)),
        rows=tuple(row for row, segment in enumerate(trie.row_segment) if segment in ends),
        carried={number: trie.segments[number].parent for number in before},
    )


def _depth_first(trie: Trie) -> list[int]:
    """All segments in depth-first order, subtrees with shorter rows first."""
    children: dict[int, list[int]] = {}
    longest = [segment.end for segment in trie.segments]
    for number in reversed(range(len(trie.segments))):
        parent = trie.segments[number].parent
        children.setdefault(parent, []).append(number)
        if parent != NO_PARENT:
            longest[parent] = max(longest[parent], longest[number])
    ordered: list[int] = []
    work = [NO_PARENT]
    while work:
        number = work.pop()
        if number != NO_PARENT:
            ordered.append(number)
        below = sorted(children.get(number, ()), key=lambda child: (longest[child], child))
        work += reversed(below)
    return ordered


def _fitting(
    trie: Trie,
    targets: Sequence[int],
    carried: set[int],
    max_tokens: int,
    max_keys: int | None,
) -> int:
    """The number of first targets that fit into one pass, at least one."""

    def fits(count: int) -> bool:
        levels = _levels(trie, _needed(trie, targets[:count], carried))
        keys = [len(level) * max(trie.segments[n].start for n in level) for level in levels]
        if max_keys is not None and sum(keys) > max_keys:
            return False
        lengths = [[len(trie.segments[number].tokens) for number in level] for level in levels]
        return (
            sum(rows * length for level in lengths for rows, length in _cuts(level)) <= max_tokens
        )

    if fits(len(targets)):
        return len(targets)
    low, high = 1, len(targets)  # low fits or is 1, high does not
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _needed(trie: Trie, targets: Sequence[int], carried: set[int]) -> list[int]:
    """The targets and all segments before them that are not carried, each once."""
    needed: dict[int, None] = {}
    for target in targets:
        number = target
        while number != NO_PARENT and number not in needed and number not in carried:
            needed[number] = None
            number = trie.segments[number].parent
    return list(needed)


def _levels(trie: Trie, needed: Sequence[int]) -> list[list[int]]:
    """The segments at each depth of the trie, sorted by length and parent."""
    of_depth: dict[int, list[int]] = {}
    for number in needed:
        of_depth.setdefault(len(trie.path(number)), []).append(number)
    levels = [of_depth[depth] for depth in sorted(of_depth)]
    segments = trie.segments
    return [
        sorted(level, key=lambda n: (len(segments[n].tokens), segments[n].parent, n))
        for level in levels
    ]


def _cuts(lengths: Sequence[int]) -> list[tuple[int, int]]:
    """Split sorted lengths into blocks with the least total cost of padding and calls.

    Args:
        lengths: lengths of the segments, tokens, ascending.

    Returns:
        Number of rows and padded length of each block, shortest first.
    """
    distinct, counts = np.unique(np.asarray(lengths, np.int64), return_counts=True)
    before = np.concatenate([[0], np.cumsum(counts)])
    best = np.zeros(len(distinct) + 1)
    cut = np.zeros(len(distinct) + 1, np.int64)
    for end in range(1, len(distinct) + 1):
        cost = best[:end] + (before[end] - before[:end]) * distinct[end - 1]
        cut[end] = int(cost.argmin())
        best[end] = cost[cut[end]] + CALL_TOKENS
    blocks: list[tuple[int, int]] = []
    end = len(distinct)
    while end:
        start = int(cut[end])
        blocks.append((int(before[end] - before[start]), int(distinct[end - 1])))
        end = start
    return blocks[::-1]


def _blocks(trie: Trie, needed: Sequence[int]) -> tuple[Block, ...]:
    has_children = {trie.segments[number].parent for number in needed}
    blocks: list[Block] = []
    for level in _levels(trie, needed):
        first = 0
        for count, _ in _cuts([len(trie.segments[number].tokens) for number in level]):
            members = sorted(
                level[first : first + count], key=lambda n: (trie.segments[n].parent, n)
            )
            blocks.append(make_block(trie, members, has_children))
            first += count
    return tuple(blocks)


def make_block(trie: Trie, members: Sequence[int], has_children: set[int]) -> Block:
    """The block of some segments, of which those with children are continued."""
    segments = tuple(trie.segments[number] for number in members)
    return Block(
        input_ids=pad_rows([segment.tokens for segment in segments]),
        numbers=tuple(members),
        segments=segments,
        continued=tuple(row for row, number in enumerate(members) if number in has_children),
    )
