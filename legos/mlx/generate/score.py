"""Exact log-probabilities of whole answers, for the evaluation of small games.

Each prompt with an answer is one row, and all tokens of the answer are scored in one pass. A score
is computed one block of rows at a time at the end of engine steps; several scores take turns.
A score uses the weights that it started with until it ends.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import mlx.core as mx
import numpy as np
from mlx_lm.models.cache import make_prompt_cache

from legos.data.batch import row_blocks
from legos.data.request import Request
from legos.errors import EngineError, RequestError
from legos.mlx.generate.adapter_table import LiveAdapter
from legos.mlx.generate.multi_lora.slots import AdapterSlots
from legos.mlx.generate.prefill import pad_rows
from legos.mlx.model.forward import CausalModel
from legos.mlx.model.worker import answer

__all__ = ["Score", "ScoreQueue"]

LOGITS = 1 << 23  # logits of one slice of the output head: 32 MiB in float32
MIN_POSITIONS = 64  # positions of a slice; with fewer, reading the head's weights dominates
Row = tuple[int, ...]
Position = tuple[int, int]  # row and column in a block
Read = tuple[int, int, tuple[int, ...]]
"""A prompt's and an answer's index, and the tokens one of which comes next in that answer."""


@dataclass(slots=True)
class _LongRow:
    """A row that is longer than a block and is computed chunk by chunk."""

    row: Row
    cache: list[Any]
    done: int = 0  # number of tokens computed


class Score:
    """One request for scores: the rows still to compute, and the sums so far.

    Attributes:
        future: receives the log-probabilities; cancelling it ends the score.
        adapter: name of the adapter to score with.
        live: the weights that it uses, set when the scheduler accepts it.
    """

    live: LiveAdapter

    def __init__(
        self,
        prompts: Sequence[tuple[Row, Sequence[Row]]],
        *,
        end_ids: tuple[int, ...],
        adapter: str,
        refusal: Callable[[Request], str | None],
    ) -> None:
        """Store the request; nothing is computed yet.

        Args:
            prompts: each prompt and its continuations, token ids.
            end_ids: end-of-text ids; one of them must follow a continuation that is a prefix of
                another one.
            adapter: name of the adapter to score with.
            refusal: returns why a prompt with its continuation cannot be served, or None.
        """
        self.future: Future[list[list[float]]] = Future()
        self.adapter = adapter
        self._prompts = prompts
        self._end_ids = end_ids
        self._refusal = refusal
        self._planned = 0
        self._rows: dict[Row, dict[int, list[Read]]] = {}  # row to compute -> column -> reads
        self._first: dict[tuple[Row, tuple[Row, ...]], int] = {}  # index of the first equal prompt
        self._sums: list[list[float]] = []
        self._long: _LongRow | None = None

    def advance(self, forward: CausalModel, max_tokens: int) -> None:
        """Compute some rows; after the last one, set the future's result.

        Args:
            forward: the model.
            max_tokens: maximum number of padded tokens of the forward pass.

        Raises:
            RequestError: a prompt or continuation cannot be scored.
        """
        if self._long is None:
            self._plan(max_tokens)
            block = next(row_blocks(list(self._rows), max_tokens, length=len), [])
            if block and len(block[-1]) > max_tokens:
                self._long = _LongRow(block[0], make_prompt_cache(forward.model))
            elif block:
                reads = {
                    (index, column): found
                    for index, row in enumerate(block)
                    for column, found in self._rows.pop(row).items()
                }
                self._take(forward, forward.trunk(pad_rows(block)[0]), reads)
        if self._long is not None:
            self._go_on(self._long, forward, max_tokens)
        if not self._rows and self._planned == len(self._prompts):
            first = (self._first[prompt, tuple(answers)] for prompt, answers in self._prompts)
            answer(self.future, [self._sums[index] for index in first])

    def _go_on(self, long: _LongRow, forward: CausalModel, max_tokens: int) -> None:
        """Compute the next chunk of a long row."""
        piece = long.row[long.done : long.done + max_tokens]
        hidden = forward.trunk(mx.array([piece]), cache=long.cache)
        columns = range(long.done, long.done + len(piece))
        found = self._rows[long.row]
        reads = {(0, column - long.done): found[column] for column in columns if column in found}
        mx.eval([layer.state for layer in long.cache])
        self._take(forward, hidden, reads)
        long.done += len(piece)
        if long.done >= len(long.row):
            del self._rows[long.row]
            self._long = None

    def _plan(self, max_tokens: int) -> None:
        """Make the rows of as many prompts as fill a block; equal prompts are computed once."""
        waiting = sum(map(len, self._rows))
        while waiting < max_tokens and self._planned < len(self._prompts):
            index = self._planned
            prompt, answers = self._prompts[index]
            if self._first.setdefault((prompt, tuple(answers)), index) == index:
                for row, column, read in self._reads(index, prompt, answers):
                    if row not in self._rows:
                        waiting += len(row)
                    self._rows.setdefault(row, {}).setdefault(column, []).append(read)
            self._sums.append([0.0] * len(answers))
            self._planned += 1

    def _reads(
        self, index: int, prompt: Row, answers: Sequence[Row]
    ) -> Iterator[tuple[Row, int, Read]]:
        """For each token of each answer, the row and the column whose logits predict it."""
        for asked in ((*prompt, *max(answers, key=len, default=())), *answers):
            reason = self._refusal(Request(prompt_ids=asked, max_tokens=1)) if asked else None
            if reason is not None or not prompt:
                raise RequestError(f"cannot score: {reason or 'the prompt is empty'}")
        ordered = sorted(set(answers))  # an answer comes right before those that it is a prefix of
        begun = {a for a, b in pairwise(ordered) if b[: len(a)] == a}
        for number, tokens in enumerate(answers):
            following: list[Row] = [(token,) for token in tokens]
            if tokens in begun:
                following.append(self._end_ids)
            row = prompt + tokens[: max(0, len(following) - 1)]
            for offset, next_ids in enumerate(following):
                yield row, len(prompt) - 1 + offset, (index, number, next_ids)

    def _take(
        self, forward: CausalModel, hidden: mx.array, reads: Mapping[Position, Sequence[Read]]
    ) -> None:
        """Add the next tokens' log-probabilities to the sums of their answers, slice by slice."""
        size = max(MIN_POSITIONS, LOGITS // forward.num_vocabulary)
        for start in range(0, len(reads), size):
            part = list(reads.items())[start : start + size]
            rows, columns = (np.array([at[axis] for at, _ in part], np.int32) for axis in (0, 1))
            logits = forward.head(hidden[mx.array(rows), mx.array(columns)]).astype(mx.float32)
            logprobs = logits - mx.logsumexp(logits, axis=1, keepdims=True)
            each = [(at, read) for at, (_, found) in enumerate(part) for read in found]
            positions = np.array([at for at, (_, _, ids) in each for _ in ids], np.int32)
            tokens = np.array([token for _, (_, _, ids) in each for token in ids], np.int32)
            values = iter(np.array(logprobs[mx.array(positions), mx.array(tokens)]))
            for _, (index, number, ids) in each:
                share = np.logaddexp.reduce([next(values) for _ in ids])
                self._sums[index][number] += float(share)


class ScoreQueue:
    """Scores in progress, computed in turns of one block; only for the thread of the tree."""

    def __init__(self, forward: CausalModel, slots: AdapterSlots) -> None:
        self._forward = forward
        self._slots = slots
        self._scores: deque[Score] = deque()

    def __len__(self) -> int:
        return len(self._scores)

    @property
    def lives(self) -> set[LiveAdapter]:
        """The weights that scores use."""
        return {score.live for score in self._scores}

    def add(self, score: Score) -> None:
        """Add a score; its ``live`` weights must be set."""
        self._scores.append(score)

    def move(self, old: LiveAdapter, new: LiveAdapter) -> None:
        """Make the scores that use some weights continue with a copy of them."""
        for score in self._scores:
            if score.live is old:
                score.live = new

    def advance(self, max_tokens: int) -> None:
        """Compute one block of the next score; an error ends only that score."""
        while self._scores and self._scores[0].future.done():
            self._scores.popleft()  # it was cancelled
        if not self._scores:
            return
        score = self._scores[0]
        try:
            with self._slots.rows([score.live.slot]):  # one slot works for any number of rows
                score.advance(self._forward, max_tokens)
        except Exception as error:
            answer(score.future, error)
        self._scores.popleft()
        if not score.future.done():
            self._scores.append(score)

    def fail(self, error: EngineError) -> None:
        """Answer all scores with an error; callable on any thread."""
        for score in tuple(self._scores):
            answer(score.future, error)
