"""Exact log-probabilities of whole answers, for the evaluation of small games.

Each prompt with an answer is one row, and all tokens of the answer are scored in one pass. A score
is computed one block of rows at a time at the end of engine steps; several scores take turns.
A score uses the weights that it started with until it ends.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import mlx.core as mx
import numpy as np
from mlx_lm.models.cache import make_prompt_cache

from legos.errors import EngineError, RequestError
from legos.mlx.generate.adapter_table import LiveAdapter
from legos.mlx.generate.multi_lora.slots import AdapterSlots
from legos.mlx.generate.prefill import pad_rows
from legos.mlx.model.forward import CausalModel
from legos.mlx.model.worker import answer
from legos.records.batch import row_blocks
from legos.records.request import Request

__all__ = ["Score", "ScoreQueue"]

LOGITS = 1 << 23  # logits of one slice of the output head: 32 MiB in float32
MIN_POSITIONS = 64  # positions of a slice; with fewer, reading the head's weights dominates
READS = 8  # log-probabilities that are read in less time than one token is computed
Ids = tuple[int, ...]
Position = tuple[int, int]  # row and column in a block
Read = tuple[list[float], int, Ids]
"""The log-probabilities of an answer's tokens, the index of one, and the tokens that it may be."""
_Planned = tuple[int, Ids, Ids, list[float], Sequence[Ids]]
"""The number of a prompt, the prompt, the answer's tokens that are computed, the log-probabilities
to find, and the tokens that can follow the prompt and each of the computed ones."""


@dataclass(slots=True)
class _Row:
    """Tokens to compute, and the answers that each of their positions predicts a token of."""

    ids: Ids
    reads: dict[int, list[Read]] = field(default_factory=dict[int, list[Read]])  # by column
    cache: list[Any] | None = None  # of a row that is computed chunk by chunk
    done: int = 0  # number of tokens computed

    def __len__(self) -> int:
        return len(self.ids)


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
        prompts: Sequence[tuple[Ids, Sequence[Ids]]],
        *,
        end_ids: Ids,
        adapter: str,
        by_token: bool = False,
        refusal: Callable[[Request], str | None],
    ) -> None:
        """Store the request; nothing is computed yet.

        Args:
            prompts: each prompt and its continuations, token ids.
            end_ids: end-of-text ids; one of them must follow a continuation that is a prefix of
                another one.
            adapter: name of the adapter to score with.
            by_token: score each token of the one continuation of each prompt.
            refusal: returns why a prompt with its continuation cannot be served, or None.
        """
        self.future: Future[list[list[float]]] = Future()
        self.adapter = adapter
        self._prompts = prompts
        self._end_ids = end_ids
        self._by_token = by_token
        self._refusal = refusal
        self._rows: dict[tuple[int, Ids], _Row] = {}  # by prompt, and the tokens after it
        self._unplanned = self._answers()
        self._next: _Planned | None = None  # the next answer, where it did not fit a block
        self._all_planned = False
        self._found: dict[tuple[Ids, tuple[Ids, ...]], list[list[float]]] = {}
        """Planned prompt and answers -> log-probabilities of the tokens of each answer."""
        self._long: _Row | None = None  # a row that is longer than a block

    def advance(self, forward: CausalModel, max_tokens: int) -> None:
        """Compute some rows; after the last one, set the future's result.

        Args:
            forward: the model.
            max_tokens: maximum number of padded tokens of the forward pass.

        Raises:
            RequestError: a prompt, a continuation or the end-of-text ids cannot be scored.
        """
        if self._long is None:
            self._plan(max_tokens)
            self._check_ends(forward.num_vocabulary)
            block = next(row_blocks(list(self._rows), max_tokens, length=self._length), [])
            rows = [self._rows.pop(key) for key in block]
            if rows and len(rows[-1]) > max_tokens:
                self._long = rows[0]
                self._long.cache = make_prompt_cache(forward.model)
            elif rows:
                reads = {
                    (index, column): found
                    for index, row in enumerate(rows)
                    for column, found in row.reads.items()
                }
                self._take(forward, forward.trunk(pad_rows([row.ids for row in rows])[0]), reads)
        if self._long is not None:
            self._go_on(self._long, forward, max_tokens)
        if self._all_planned and not self._rows and self._long is None:
            found = [self._found[prompt, tuple(answers)] for prompt, answers in self._prompts]
            sums = [one[0] if self._by_token else [*map(sum, one)] for one in found]
            answer(self.future, sums)

    def _length(self, key: tuple[int, Ids]) -> int:
        return len(self._rows[key])

    def _go_on(self, long: _Row, forward: CausalModel, max_tokens: int) -> None:
        """Compute the next chunk of a long row."""
        piece = long.ids[long.done : long.done + max_tokens]
        hidden = forward.trunk(mx.array([piece]), cache=long.cache)
        columns = range(long.done, long.done + len(piece))
        found = long.reads
        reads = {(0, column - long.done): found[column] for column in columns if column in found}
        mx.eval([layer.state for layer in long.cache or ()])
        self._take(forward, hidden, reads)
        long.done += len(piece)
        if long.done >= len(long):
            self._long = None

    def _plan(self, max_tokens: int) -> None:
        """Make the rows of as many answers as fill a block; the next block goes on with the rest.

        Answers that differ in their last token alone share a row.
        """
        room = max_tokens - sum(map(len, self._rows.values()))
        reads = READS * max_tokens
        while True:
            self._next = self._next or next(self._unplanned, None)
            if self._next is None:
                self._all_planned = True
                return
            at, prompt, tokens, found, following = self._next
            row = self._rows.get((at, tokens))
            if (room if row is None else reads) <= 0:
                return
            if row is None:
                row = self._rows[at, tokens] = _Row(prompt + tokens)
                room -= len(row)
            for index, next_ids in enumerate(following):
                read = found, index, next_ids
                row.reads.setdefault(len(prompt) - 1 + index, []).append(read)
            reads -= len(following)
            self._next = None

    def _answers(self) -> Iterator[_Planned]:
        """Check and yield each different answer of each different prompt, those of a row together.

        Raises:
            RequestError: a prompt or an answer cannot be scored.
        """
        same: dict[Ids, int] = {}
        known: dict[tuple[int, Ids, bool], list[float]] = {}
        for prompt, answers in self._prompts:
            key = prompt, tuple(answers)
            if key in self._found:
                continue
            if not prompt:
                raise RequestError("cannot score: the prompt is empty")
            if self._by_token and (len(answers) != 1 or not answers[0]):
                raise RequestError(
                    f"cannot score by token: a prompt has {len(answers)} answers, one of them "
                    "empty perhaps; give each prompt one answer"
                )
            self._check((*prompt, *max(answers, key=len, default=())))
            at = same.setdefault(prompt, len(same))
            ordered = sorted(set(answers))  # one comes right before those that it is a prefix of
            begun = {a for a, b in pairwise(ordered) if b[: len(a)] == a}
            rows: dict[Ids, list[Ids]] = {}  # computed tokens -> the answers that they predict
            for tokens in ordered:
                self._check(tokens or prompt)
                name = at, tokens, tokens in begun
                if name not in known:
                    known[name] = [0.0] * (len(tokens) + (tokens in begun))
                    rows.setdefault(tokens if tokens in begun else tokens[:-1], []).append(tokens)
            self._found[key] = [known[at, tokens, tokens in begun] for tokens in answers]
            for computed, predicted in rows.items():
                for tokens in predicted:
                    following: list[Ids] = [(token,) for token in tokens]
                    if tokens in begun:
                        following.append(self._end_ids)
                    if following:
                        found = known[at, tokens, tokens in begun]
                        yield at, prompt, computed, found, following

    def _check(self, ids: Ids) -> None:
        reason = self._refusal(Request(prompt_ids=ids, max_tokens=1))
        if reason is not None:
            raise RequestError(f"cannot score: {reason}")

    def _check_ends(self, num_vocabulary: int) -> None:
        for token in self._end_ids:
            if not 0 <= token < num_vocabulary:
                raise RequestError(
                    f"cannot score: token {token} cannot end an answer; the vocabulary has "
                    f"{num_vocabulary}"
                )

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
            numbers = np.array(logprobs[mx.array(positions), mx.array(tokens)])
            if not np.isfinite(numbers).all():
                raise EngineError(
                    "the model's logits are not numbers; its weights or adapter are bad"
                )
            values = iter(numbers)
            for _, (found, index, ids) in each:
                found[index] = float(np.logaddexp.reduce([next(values) for _ in ids]))


class ScoreQueue:
    """Scores in progress, computed in turns of one block; only for the thread of the tree."""

    def __init__(self, forward: CausalModel, slots: AdapterSlots) -> None:
        self._forward = forward
        self._slots = slots
        self._scores: deque[Score] = deque()

    def __len__(self) -> int:
        return len(self._scores)

    @property
    def slots_used(self) -> set[int]:
        """The slots that scores use."""
        return {score.live.slot for score in self._scores}

    def add(self, score: Score) -> None:
        """Add a score; its ``live`` weights must be set."""
        self._scores.append(score)

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
