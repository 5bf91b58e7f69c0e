"""Exact log-probabilities of whole answers, for the evaluation of small games.

Each prompt with an answer is one row, and all tokens of the answer are scored in one pass. Answers
that differ in their last token alone share a row, and the tokens that all rows of a block begin
with are computed once. A score is computed one block of rows at a time at the end of engine steps;
several scores take turns. A score uses the weights that it started with until it ends.
"""

from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice, pairwise

import mlx.core as mx
import numpy as np
from mlx_lm.models.cache import make_prompt_cache

from legos.device.worker import answer
from legos.errors import EngineError, RequestError
from legos.mlx.generate.adapter_table import LiveAdapter
from legos.mlx.generate.multi_lora.slots import AdapterSlots
from legos.mlx.generate.sampling.sampler import NOT_NUMBERS
from legos.mlx.generate.shared_prefix import (
    MIN_SAVED,
    computed_prefix,
    continued,
    num_shared,
)
from legos.mlx.model.faults import faults_raised
from legos.mlx.model.forward import CausalModel
from legos.records.batch import pad_rows, row_blocks
from legos.records.request import Request

LOGITS = 1 << 23  # logits of one slice of the output head: 32 MiB in float32
MIN_POSITIONS = 64  # positions of a slice; with fewer, reading the head's weights dominates
Ids = tuple[int, ...]
Found = list[float]
"""Log-probabilities of the tokens of one answer."""
Last = tuple[Found, Ids]
"""Where the log-probabilities of an answer go, and the tokens that its last one may be."""


@dataclass(slots=True, eq=False)
class _Row:
    """A prompt and the tokens that some answers have in common: all, or all but the last one."""

    ids: Ids
    start: int  # number of tokens of the prompt
    lasts: list[Last]
    done: int = 0  # number of tokens computed

    def __len__(self) -> int:
        return len(self.ids)

    def following(self, column: int) -> list[tuple[list[Found], Ids]]:
        """What is scored after a column, the row's next token or ``lasts``: for which answers."""
        if column + 1 < self.start:
            return []
        if column + 1 < len(self.ids):
            return [([found for found, _ in self.lasts], self.ids[column + 1 : column + 2])]
        return [([found], tokens) for found, tokens in self.lasts]


@dataclass(slots=True, eq=False, kw_only=True)
class Score:
    """One request for scores, and what was found so far."""

    prompts: Sequence[tuple[Ids, Sequence[Ids]]]  # each prompt and its continuations, token ids
    end_ids: Ids
    """End-of-text ids; one of them must follow a continuation that is a prefix of another one."""
    adapter: str  # name of the adapter to score with
    by_token: bool  # whether to score each token of the one continuation of each prompt
    shares: bool  # whether the model can compute what rows begin with once
    refusal: Callable[[Request], str | None]  # why a prompt with its continuation is not served
    future: Future[list[list[float]]] = field(default_factory=Future[list[list[float]]])
    """Receives the log-probabilities; cancelling it ends the score."""
    live: LiveAdapter = field(init=False)  # its weights, set when the scheduler accepts it
    steps: Generator[None, int] = field(init=False)  # what ``begin`` returns, which has begun
    _found: dict[tuple[Ids, tuple[Ids, ...]], list[Found]] = field(default_factory=dict)
    """Planned prompt and answers -> log-probabilities of each answer."""

    def begin(self, forward: CausalModel) -> Generator[None, int]:
        """Compute some rows at a time; after the last one, set the future's result.

        The generator is sent the maximum number of padded tokens of each forward pass. It raises
        ``RequestError`` where a prompt, a continuation or the end-of-text ids cannot be scored.
        """
        max_tokens = yield
        plan = self._plan()
        rows = [*islice(plan, 1)]
        while rows:
            room = max_tokens - sum(map(len, rows))
            while room > 0 and (row := next(plan, None)) is not None:
                rows.append(row)
                room -= len(row)
            block = next(row_blocks(rows, max_tokens, length=len))
            rows = [row for row in rows if row not in block]
            if len(block[-1]) <= max_tokens:
                self._compute(forward, block)
            else:
                yield from self._in_chunks(forward, block[0], max_tokens)
            rows = rows or [*islice(plan, 1)]
            if rows:
                max_tokens = yield
        found = [self._found[prompt, tuple(answers)] for prompt, answers in self.prompts]
        answer(self.future, [one[0] if self.by_token else [*map(sum, one)] for one in found])

    def _compute(self, forward: CausalModel, block: Sequence[_Row]) -> None:
        """Compute a block; what all its rows begin with, such as the rules of a game, once."""
        cache, shared = None, num_shared([row.ids[: row.start - 1] for row in block])
        if self.shares and shared * (len(block) - 1) >= MIN_SAVED:
            prefix = computed_prefix(forward, block[0].ids[:shared])
            cache = continued([prefix], [0] * len(block), shared)
            for row in block:
                row.done = shared
        rests = [row.ids[row.done :] for row in block]
        self._take(forward, forward.trunk(mx.array(pad_rows(rests)), cache=cache), block)

    def _in_chunks(self, forward: CausalModel, row: _Row, max_tokens: int) -> Generator[None, int]:
        """Compute a row that is longer than a block, one chunk at a time."""
        cache = make_prompt_cache(forward.model)
        while True:
            piece = row.ids[row.done : row.done + max_tokens]
            hidden = forward.trunk(mx.array([piece]), cache=cache)
            mx.eval([layer.state for layer in cache])
            self._take(forward, hidden, [row])
            if row.done >= len(row):
                return
            max_tokens = yield

    def _plan(self) -> Iterator[_Row]:
        """Check each different prompt with its answers, and yield its rows.

        Raises:
            RequestError: a prompt or an answer cannot be scored.
        """
        for token in self.end_ids:
            if (reason := self.refusal(Request(prompt_ids=(token,), max_tokens=1))) is not None:
                raise RequestError(f"cannot score: token {token} cannot end an answer: {reason}")
        for prompt, answers in sorted(self.prompts):  # rows of a block then begin alike
            key = prompt, tuple(answers)
            if key in self._found:
                continue
            if not prompt:
                raise RequestError("cannot score: the prompt is empty")
            if self.by_token and (len(answers) != 1 or not answers[0]):
                raise RequestError(
                    f"cannot score by token: a prompt has {len(answers)} answers, one of them "
                    "empty perhaps; give each prompt one answer"
                )
            self._check((*prompt, *max(answers, key=len, default=())))
            ordered = sorted(set(answers))  # one comes right before those that it is a prefix of
            begun = {a for a, b in pairwise(ordered) if b[: len(a)] == a}
            found: dict[Ids, Found] = {tokens: [] for tokens in ordered}
            rows: dict[Ids, list[Last]] = {}  # tokens to compute -> the answers that have them
            for tokens in ordered:
                self._check(tokens or prompt)
                if tokens in begun:
                    rows.setdefault(tokens, []).append((found[tokens], self.end_ids))
                elif tokens:
                    rows.setdefault(tokens[:-1], []).append((found[tokens], tokens[-1:]))
            self._found[key] = [found[tokens] for tokens in answers]
            for computed, lasts in rows.items():
                yield _Row(prompt + computed, len(prompt), lasts)

    def _check(self, ids: Ids) -> None:
        reason = self.refusal(Request(prompt_ids=ids, max_tokens=1))
        if reason is not None:
            raise RequestError(f"cannot score: {reason}")

    def _take(self, forward: CausalModel, hidden: mx.array, rows: Sequence[_Row]) -> None:
        """Take the log-probabilities of the next tokens from hidden states, slice by slice."""
        size = max(MIN_POSITIONS, LOGITS // forward.num_logits)
        places = [
            (number, column, following)
            for number, row in enumerate(rows)
            for column in range(min(hidden.shape[1], len(row) - row.done))
            if (following := row.following(row.done + column))
        ]
        for first in range(0, len(places), size):
            part = places[first : first + size]
            numbers, columns = (np.array([one[axis] for one in part], np.int32) for axis in (0, 1))
            logits = forward.head(hidden[mx.array(numbers), mx.array(columns)]).astype(mx.float32)
            logprobs = logits - mx.logsumexp(logits, axis=1, keepdims=True)
            each = [(at, *one) for at, (_, _, following) in enumerate(part) for one in following]
            positions = np.array([at for at, _, ids in each for _ in ids], np.int32)
            tokens = np.array([token for _, _, ids in each for token in ids], np.int32)
            read = np.array(logprobs[mx.array(positions), mx.array(tokens)])
            if not np.isfinite(read).all():
                raise EngineError(NOT_NUMBERS)
            values = iter(read)
            for _, answers, ids in each:
                value = float(np.logaddexp.reduce([next(values) for _ in ids]))
                for found in answers:
                    found.append(value)
        for row in rows:
            row.done += min(hidden.shape[1], len(row) - row.done)


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
        score.steps = score.begin(self._forward)
        next(score.steps)
        self._scores.append(score)

    def advance(self, max_tokens: int) -> None:
        """Compute one block of the next score; an error ends only that score."""
        while self._scores and self._scores[0].future.done():
            self._scores.popleft()  # it was cancelled
        if not self._scores:
            return
        score = self._scores[0]
        try:
            # One slot works for any number of rows.
            with faults_raised(), self._slots.rows([score.live.slot]), suppress(StopIteration):
                score.steps.send(max_tokens)
        except Exception as error:
            answer(score.future, error)
        self._scores.popleft()
        if not score.future.done():
            self._scores.append(score)

    def fail(self, error: EngineError) -> None:
        """Answer all scores with an error; callable on any thread."""
        for score in tuple(self._scores):
            answer(score.future, error)
