"""The batches of one optimiser step, taken apart into distinct rows and put together again.

How samples were packed into batches says nothing about what is worth computing together, so the
backend reads all rows of a step, plans its own passes, and makes one batch of samples for each.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from legos.data.batch import PLACE_FIELDS, SAMPLE_FIELDS, Batch, pack
from legos.data.sample import Sample
from legos.errors import RecordError
from legos.mlx.train.passes import Pass
from legos.mlx.train.trie import Trie

__all__ = ["StepRows", "pass_batch", "probe_batch", "shorter_samples", "step_rows"]

Ints = NDArray[np.int32]
Source = tuple[int, int]  # batch, row of the batch


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRows:
    """The distinct rows of a step, each cut after the last place that is read, and their origin."""

    tokens: tuple[Ints, ...]  # of each row
    sources: tuple[tuple[Source, ...], ...]  # of each row: every batch row that holds it


def step_rows(batches: Sequence[Batch]) -> StepRows:
    """All distinct rows of a step that have a place."""
    found: dict[bytes, tuple[Ints, list[Source]]] = {}
    for number, batch in enumerate(batches):
        for row, length in enumerate(_lengths(batch).tolist()):
            if length:
                tokens = batch.input_ids[row, :length]
                found.setdefault(tokens.tobytes(), (tokens, []))[1].append((number, row))
    return StepRows(
        tokens=tuple(tokens for tokens, _ in found.values()),
        sources=tuple(tuple(sources) for _, sources in found.values()),
    )


def probe_batch(
    batches: Sequence[Batch], row: Ints, num_tokens: int, *, num_vocabulary: int
) -> Batch:
    """Rows like one of a step, read at as many places, that share no prefix.

    Args:
        batches: of the step.
        row: one of its rows.
        num_tokens: of all rows together, about; fewer than the row has: the row's beginning.
        num_vocabulary: token ids are below it.
    """
    num_places = 1
    for batch in batches:
        for number in np.flatnonzero(_lengths(batch) == len(row)):
            if np.array_equal(batch.input_ids[number, : len(row)], row):
                num_places = max(num_places, int((batch.place_row == number).sum()))
    length = min(len(row), num_tokens)
    count = min(num_places, length)
    first, *rest = row[:length].tolist()
    samples = [
        Sample(
            token_ids=((first + number) % num_vocabulary, *rest, first),
            positions=tuple(range(length + 1 - count, length + 1)),
            logprobs=(-1.0,) * count,
            versions=(0,) * count,
            advantages=(1.0,) * count,
            legal=((),) * count,
        )
        for number in range(max(1, num_tokens // length))
    ]
    weights = [1.0 / (count * len(samples))] * len(samples)
    (batch,) = pack(samples, weights, max_tokens=max(num_tokens, length))
    return batch


def shorter_samples(batches: Sequence[Batch], longest: int) -> list[Batch]:
    """The batches without samples that read a place behind more than ``longest`` tokens.

    Rows and places that no other sample reads go with them, and batches of which nothing is left.
    """
    kept: list[Batch] = []
    for batch in batches:
        behind = (batch.place_column + 1)[batch.sample_place]
        samples = np.flatnonzero((np.where(batch.mask, behind, 0) <= longest).all(axis=1))
        if not len(samples):
            continue
        mask = batch.mask[samples]
        places = np.unique(batch.sample_place[samples][mask])
        rows, place_row = np.unique(batch.place_row[places], return_inverse=True)
        number = np.zeros(len(batch.place_row), np.int32)
        number[places] = np.arange(len(places))
        parts: dict[str, Any] = {
            **{name: getattr(batch, name)[places] for name in PLACE_FIELDS},
            **{name: getattr(batch, name)[samples] for name in (*SAMPLE_FIELDS, "mask")},
        }
        parts["place_row"] = place_row.reshape(-1).astype(np.int32)
        parts["sample_place"] = np.where(mask, number[parts["sample_place"]], 0)
        kept.append(Batch(input_ids=batch.input_ids[rows], **parts))
    return kept


def pass_batch(batches: Sequence[Batch], step: StepRows, trie: Trie, one: Pass) -> Batch:
    """The samples of one pass as a batch of its own.

    Its rows are those of the pass's blocks, one block after the other, and then what is carried;
    its places stand in the order of rows and columns, and those that read the same distribution are
    one.

    Args:
        batches: of the step.
        step: their rows.
        trie: of those rows.
        one: which of them, and where their tokens are computed.

    Raises:
        RecordError: a sample has places in more than one row.
    """
    row_of: dict[int, NDArray[np.int64]] = {}
    for row in one.rows:
        for number, source in step.sources[row]:
            if number not in row_of:
                row_of[number] = np.full(len(batches[number].input_ids), -1, np.int64)
            row_of[number][source] = row
    parts: list[dict[str, Any]] = []
    num_places = 0
    for number in sorted(row_of):
        parts.append(_part(batches[number], row_of[number], num_places))
        num_places += len(parts[-1]["place_row"])
    merged = {name: _stacked(name, [part[name] for part in parts]) for name in parts[0]}
    return Batch(input_ids=_stacked_rows(trie, one), **_located(merged, trie, one))


def _lengths(batch: Batch) -> NDArray[np.int64]:
    """[R] tokens of each row up to the last place that is read."""
    lengths = np.zeros(len(batch.input_ids), np.int64)
    np.maximum.at(lengths, batch.place_row, batch.place_column + 1)
    return lengths


def _stacked_rows(trie: Trie, one: Pass) -> Ints:
    """[all R, longest T] the rows of all blocks, and the segments carried."""
    carried = [trie.segments[number].tokens[None] for number in one.carried]
    return _stacked("input_ids", [*(block.input_ids for block in one.blocks), *carried])


def _located(fields_of: dict[str, Any], trie: Trie, one: Pass) -> dict[str, Any]:
    """Put places where the pass computes them, in order, equal ones once.

    Args:
        fields_of: of a batch but for its rows; place_row and place_column are the step's.
        trie: of the step.
        one: the pass.
    """
    segments = [*(number for block in one.blocks for number in block.segments), *one.carried]
    place_of = {number: row for row, number in enumerate(segments)}
    rows, columns = fields_of["place_row"], fields_of["place_column"]
    new_rows, new_columns = np.empty_like(rows), np.empty_like(columns)
    for row in one.rows:
        here = np.flatnonzero(rows == row) if len(one.rows) > 1 else slice(None)
        path = trie.path(trie.row_segment[row])
        starts = np.array([trie.segments[segment].start for segment in path])
        level = np.searchsorted(starts, columns[here], side="right") - 1
        new_rows[here] = np.array([place_of[segment] for segment in path])[level]
        new_columns[here] = columns[here] - starts[level]
    keys = np.column_stack(
        [
            new_rows,
            new_columns,
            fields_of["place_restricted"],
            fields_of["place_temperature"].view(np.int32),
            fields_of["place_legal"],
        ]
    )
    _, kept, number = np.unique(keys, axis=0, return_index=True, return_inverse=True)
    located = {**fields_of, "place_row": new_rows, "place_column": new_columns}
    for name in located:
        if name.startswith("place_"):
            located[name] = located[name][kept]
    located["sample_place"] = number.astype(np.int32).reshape(-1)[fields_of["sample_place"]]
    return located


def _part(batch: Batch, row_of: NDArray[np.int64], first_place: int) -> dict[str, Any]:
    """The fields of a batch's places and samples on chosen rows, places numbered from a first one.

    Args:
        batch: whole.
        row_of: [R] the step's row of each row, -1 where not chosen.
        first_place: number of the first place.
    """
    step_row = row_of[batch.place_row]
    places = np.flatnonzero(step_row >= 0)
    first = batch.mask.argmax(axis=1)  # where a sample has no token at all, its first column
    anchor = batch.sample_place[np.arange(batch.num_samples), first]
    samples = np.flatnonzero(step_row[anchor] >= 0)
    apart = batch.mask & (batch.place_row[batch.sample_place] != batch.place_row[anchor][:, None])
    if apart.any():
        raise RecordError(
            f"sample {int(apart.any(axis=1).argmax())} of a batch has places in several rows; "
            "a sample is one row"
        )
    number = np.zeros(len(step_row), np.int32)
    number[places] = np.arange(first_place, first_place + len(places))
    part: dict[str, Any] = {}
    for field in fields(batch):
        value = getattr(batch, field.name)
        if field.name.startswith("place_"):
            part[field.name] = value[places]
        elif field.name == "sample_place":
            part[field.name] = np.where(batch.mask, number[value], 0)[samples]
        elif field.name != "input_ids":
            part[field.name] = value[samples]
    part["place_row"] = step_row[places].astype(np.int32)
    return part


def _stacked(name: str, values: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """One array of several along the first axis; narrower ones are padded at the right."""
    if len(values) == 1:
        return values[0]
    if values[0].ndim == 1:
        return np.concatenate(values)
    width = max(value.shape[1] for value in values)
    fill = -1 if name == "place_legal" else 0
    return np.concatenate(
        [np.pad(v, ((0, 0), (0, width - v.shape[1])), constant_values=fill) for v in values]
    )
