"""Exact log-probabilities of whole answers: what an evaluation of a small game reads.

A score is computed a block of rows at a time, between the steps of those who decode, and several
scores have their blocks in turn. It speaks to its end through the weights that it began with.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future

import mlx.core as mx
import numpy as np

from legos.data.request import Request
from legos.errors import EngineError, RequestError
from legos.mlx.generate.live import Live
from legos.mlx.generate.prefill import Prefill, last_logits, row_blocks
from legos.mlx.generate.slots import AdapterSlots
from legos.mlx.model.forward import CausalModel
from legos.mlx.model.worker import answer

__all__ = ["Score", "ScoreQueue"]

Row = tuple[int, ...]
Term = tuple[int, int, tuple[int, ...]]
"""A prompt's and an answer's index, and the tokens one of which comes next in that answer."""


class Score:
    """One request for scores: its rows, and what is known of its answers.

    Attributes:
        future: holds the log-probabilities in the end; whoever cancels it ends the score.
        adapter: whose probabilities.
        live: the weights it speaks through, once it was taken in.
    """

    live: Live

    def __init__(
        self,
        prompts: Sequence[tuple[Row, Sequence[Row]]],
        *,
        end_ids: tuple[int, ...],
        adapter: str,
        refusal: Callable[[Request], str | None],
    ) -> None:
        """Prepare nothing yet.

        Args:
            prompts: prompt, and its continuations.
            end_ids: ids that end a text; a continuation that begins another one must be ended by
                one.
            adapter: whose probabilities.
            refusal: why a prompt with its continuation cannot be served, or None.
        """
        self.future: Future[list[list[float]]] = Future()
        self.adapter = adapter
        self._prompts = prompts
        self._end_ids = end_ids
        self._refusal = refusal
        self._planned = 0
        self._rows: dict[Row, list[Term]] = {}  # that are still to be computed
        self._sums: list[list[float]] = []
        self._prefill: tuple[Row, Prefill] | None = None  # of a row too long for one block

    def advance(self, forward: CausalModel, max_tokens: int) -> None:
        """Compute some rows, and answer the future after the last.

        Args:
            forward: the model.
            max_tokens: padded tokens of the forward pass.

        Raises:
            RequestError: a prompt or continuation cannot be scored.
        """
        if self._prefill is None:
            self._plan(max_tokens)
            block = next(row_blocks(list(self._rows), max_tokens), [])
            if not block or len(block[-1]) <= max_tokens:
                if block:
                    self._take(block, last_logits(forward, block))
                self._end()
                return
            self._prefill = block[0], Prefill(forward, block, [([], 0)], step=max_tokens)
        row, prefill = self._prefill
        if prefill.advance(max_tokens):
            self._prefill = None
            self._take([row], prefill.logits())
            self._end()

    def _plan(self, max_tokens: int) -> None:
        """Make the rows of as many prompts as fill a block."""
        waiting = sum(map(len, self._rows))
        while waiting < max_tokens and self._planned < len(self._prompts):
            index = self._planned
            prompt, answers = self._prompts[index]
            for row, term in self._terms(index, prompt, answers):
                if row not in self._rows:
                    waiting += len(row)
                self._rows.setdefault(row, []).append(term)
            self._sums.append([0.0] * len(answers))
            self._planned += 1

    def _terms(self, index: int, prompt: Row, answers: Sequence[Row]) -> Iterator[tuple[Row, Term]]:
        """Every row whose next token is asked for, and by which answer."""
        for asked in ((*prompt, *max(answers, key=len, default=())), *answers):
            reason = self._refusal(Request(prompt_ids=asked, max_tokens=1)) if asked else None
            if reason is not None or not prompt:
                raise RequestError(f"cannot score: {reason or 'the prompt is empty'}")
        begun = {tokens[:length] for tokens in answers for length in range(len(tokens))}
        for number, tokens in enumerate(answers):
            for length, token in enumerate(tokens):
                yield prompt + tokens[:length], (index, number, (token,))
            if tokens in begun:
                yield prompt + tokens, (index, number, self._end_ids)

    def _take(self, rows: Sequence[Row], logits: mx.array) -> None:
        """Add what comes next in these rows to the answers; an answer's rows come by length."""
        terms = [(place, term) for place, row in enumerate(rows) for term in self._rows.pop(row)]
        places = np.array([place for place, (_, _, next_ids) in terms for _ in next_ids], np.int32)
        tokens = np.array([token for _, (_, _, next_ids) in terms for token in next_ids], np.int32)
        logprobs = logits - mx.logsumexp(logits, axis=1, keepdims=True)
        found = iter(np.array(logprobs[mx.array(places), mx.array(tokens)]))
        for _, (index, number, next_ids) in terms:
            share = np.logaddexp.reduce([next(found) for _ in next_ids])
            self._sums[index][number] += float(share)

    def _end(self) -> None:
        if not self._rows and self._planned == len(self._prompts):
            answer(self.future, self._sums)


class ScoreQueue:
    """Scores on their way, a block of each in turn; for the thread of the tree."""

    def __init__(self, forward: CausalModel, slots: AdapterSlots) -> None:
        self._forward = forward
        self._slots = slots
        self._scores: deque[Score] = deque()

    def __len__(self) -> int:
        return len(self._scores)

    @property
    def lives(self) -> set[Live]:
        """The weights that scores speak through."""
        return {score.live for score in self._scores}

    def add(self, score: Score) -> None:
        """Take a score in; its adapter is found already."""
        self._scores.append(score)

    def move(self, old: Live, new: Live) -> None:
        """Have the scores of some weights go on under a copy of them."""
        for score in self._scores:
            if score.live is old:
                score.live = new

    def advance(self, max_tokens: int) -> None:
        """Compute a block of the score whose turn it is; a score that fails, fails alone."""
        while self._scores and self._scores[0].future.done():
            self._scores.popleft()  # it was cancelled
        if not self._scores:
            return
        score = self._scores[0]
        try:
            with self._slots.rows([score.live.slot]):  # whose arrays serve any number of rows
                score.advance(self._forward, max_tokens)
        except Exception as error:
            answer(score.future, error)
        self._scores.popleft()
        if not score.future.done():
            self._scores.append(score)

    def fail(self, error: EngineError) -> None:
        """Answer everybody with an error; from any thread."""
        for score in tuple(self._scores):
            answer(score.future, error)
