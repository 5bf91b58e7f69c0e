"""Pack the distinct rows of a step, one behind the other, into passes of few padded tokens.

R packed rows, T tokens of the longest one.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from legos.records.batch import Batch, make_batch
from legos.records.packing import StepRows, StepSamples

Ints = NDArray[np.int32]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """Rows that are computed together."""

    input_ids: Ints  # [R, T] token ids, padded with 0
    position_ids: Ints  # [R, T] positions; they start at 0 with each row, and are 0 in the padding
    places: dict[int, tuple[int, int]]  # row of the step -> packed row and first column


def plan_passes(rows: StepRows, *, max_tokens: int, one_row: bool = False) -> list[Pass]:
    """Pack rows, the longest first, each into the packed row with the most space.

    A pass is as wide as its longest row, so attention never computes more than padded rows would.

    Args:
        rows: the distinct rows of a step.
        max_tokens: number of padded tokens of a pass; a longer row has a pass of its own.
        one_row: make one packed row per pass, for attention whose cost does not depend on T.
    """
    order = sorted(range(len(rows.tokens)), key=lambda row: -len(rows.tokens[row]))
    space: list[tuple[int, int, int]] = []  # minus the free columns, pass, packed row
    plans: list[list[list[int]]] = []  # pass -> packed row -> rows
    widths: list[int] = []
    for row in order:
        length = len(rows.tokens[row])
        if space and -space[0][0] >= length:
            free, number, packed = heapq.heappop(space)
        else:
            if not plans or (len(plans[-1]) + 1) * widths[-1] > max_tokens:
                plans.append([])
                widths.append(max(length, max_tokens) if one_row else length)
            plans[-1].append([])
            free, number, packed = -widths[-1], len(plans) - 1, len(plans[-1]) - 1
        plans[number][packed].append(row)
        heapq.heappush(space, (free + length, number, packed))
    return [_pass(rows, plan) for plan in plans]


def _pass(rows: StepRows, plan: Sequence[Sequence[int]]) -> Pass:
    lengths = [sum(len(rows.tokens[row]) for row in packed) for packed in plan]
    input_ids = np.zeros((len(plan), max(lengths)), np.int32)
    position_ids = np.zeros_like(input_ids)
    places: dict[int, tuple[int, int]] = {}
    for number, packed in enumerate(plan):
        start = 0
        for row in packed:
            tokens = rows.tokens[row]
            end = start + len(tokens)
            input_ids[number, start:end] = tokens
            position_ids[number, start:end] = np.arange(len(tokens))
            places[row] = (number, start)
            start = end
    return Pass(input_ids=input_ids, position_ids=position_ids, places=places)


def pass_batch(step: StepSamples, rows: StepRows, one: Pass) -> tuple[Batch, list[int]]:
    """The samples of one pass as a batch, and their indices in the step."""
    members: list[int] = []
    read_at: list[list[tuple[int, int]]] = []
    for row, (number, start) in one.places.items():
        for index in rows.samples[row]:
            members.append(index)
            positions = step.samples[index].positions
            read_at.append([(number, start + position - 1) for position in positions])
    batch = make_batch(
        one.input_ids,
        [step.samples[index] for index in members],
        [step.weights[index] for index in members],
        read_at,
    )
    return batch, members
