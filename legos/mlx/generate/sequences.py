"""Requests in progress: the tokens that each has sampled so far, and when it ends."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from legos.errors import LegosError, RequestError
from legos.mlx.generate.adapter_table import LiveAdapter
from legos.mlx.generate.sampling.filters import SamplingParams, Seen
from legos.protocols import Deliver
from legos.records.choices import ChoiceNode
from legos.records.message import Alternatives, FinishReason
from legos.records.request import Generated, GrammarState, Progress, Request

UNPROCESSED = (1.0, None)  # the setting that samples the model's own distribution


@dataclass(slots=True, eq=False)
class SequenceState:
    """One request inside the engine; sequences with equal tokens share one row."""

    number: int
    request: Request
    deliver: Deliver
    tokens: list[int] = field(init=False)  # sampled so far
    logprobs: list[float] = field(init=False)
    versions: list[int] = field(init=False)
    legal: list[tuple[int, ...]] = field(init=False)
    raw_logprobs: list[float] = field(init=False)
    alternatives: list[Alternatives] = field(init=False)
    failure: LegosError | None = None  # why no token could be sampled for it, set by the sampler
    live: LiveAdapter = field(init=False)  # the weights that it uses
    epoch: int = -1  # epoch of all weights that computed its row; -1: they differ, or none did
    node: ChoiceNode | None = field(init=False)  # the choices' tree after its tokens
    setting: tuple[Any, ...] = field(init=False)
    """Everything besides the row's tokens and logits that its next distribution depends on;
    sequences of one row with equal settings share a distribution."""
    needs_host: bool = field(init=False)
    """Whether its next distribution, or what is recorded with a token, depends on more than the
    row's logits, so that the host has to read every token before the next step."""
    _restarted: int = -1  # number of its tokens when the device last failed
    _grammar: GrammarState | None = None
    _seen: Seen | None = None
    _reported: int = 0  # number of tokens that ``progress`` has returned

    def __post_init__(self) -> None:
        """Start before the first token."""
        # `field(default_factory=list[float])` would take ten times as long, for every request.
        self.tokens, self.logprobs, self.versions, self.legal = [], [], [], []
        self.raw_logprobs, self.alternatives = [], []
        self.node = self.request.choices
        self.setting = self._setting()
        request = self.request
        self.needs_host = bool(
            request.restrict
            or request.grammar is not None
            or (request.filters is not None and request.filters.penalised)
            or request.num_alternatives
            or (request.raw_logprobs and self.setting != UNPROCESSED)
        )

    @property
    def allowed(self) -> tuple[int, ...] | None:
        """Token ids that the choices allow next; None: all."""
        if self.request.restrict and self.node is not None:
            return self.node.legal
        return None

    @property
    def last_draw(self) -> bool:
        """Whether the next token is certainly the last one, so that no cache is needed."""
        return self.remaining <= 1

    @property
    def remaining(self) -> int:
        """Number of tokens that may still be sampled."""
        return self.request.max_tokens - len(self.tokens)

    @property
    def may_start_again(self) -> bool:
        """Whether it has got further since the device last failed."""
        return len(self.tokens) > self._restarted

    def start_again(self) -> None:
        """Discard what was recorded for a token that was not added."""
        self._restarted = len(self.tokens)
        self.failure = None
        del self.raw_logprobs[len(self.tokens) :]
        del self.alternatives[len(self.tokens) :]

    def params(self) -> SamplingParams:
        """How to make the distribution of its next token.

        Raises:
            RequestError: the grammar fails, or allows no token.
        """
        request = self.request
        if request.grammar is None:
            allowed = self.allowed
        else:
            try:
                self._grammar = self._grammar or request.grammar.begin()
                allowed = np.asarray(self._grammar.allowed(), np.bool_)
            except Exception as error:
                raise RequestError(f"its grammar failed: {error!r}") from error
            if not allowed.any():
                raise RequestError(
                    f"its grammar allows no token after {len(self.tokens)}; loosen the schema"
                )
        return SamplingParams(request.temperature, allowed, request.filters, self._history())

    def add(self, token: int, logprob: float, version: int) -> FinishReason | None:
        """Append a sampled token; returns the finish reason if it was the last one.

        Raises:
            LegosError: no token could be sampled, or the request's grammar or stop test failed.
        """
        if self.failure is not None:
            raise self.failure
        request = self.request
        self.tokens.append(token)
        self.logprobs.append(logprob)
        self.versions.append(version)
        if self._seen is not None:
            self._seen.add(token)
        if request.choices is not None:
            node = self.node
            self.legal.append(node.legal if node else ())
            self.node = node = node.children.get(token) if node else None
            if node is not None and not node.children:
                return "stop"
        if token in request.end_ids:
            return "stop"
        if self._grammar is not None and self._advance(self._grammar, token):
            return "stop"
        if request.stops is not None and self._stopped():
            return "stop"
        if len(self.tokens) >= request.max_tokens:
            return "length"
        if request.restrict:
            self.setting = self._setting()
        return None

    def generated(self, finish_reason: FinishReason) -> Generated:
        """The completion, as a record."""
        return Generated(
            token_ids=tuple(self.tokens),
            logprobs=tuple(self.logprobs),
            versions=tuple(self.versions),
            raw_logprobs=tuple(self.raw_logprobs),
            alternatives=tuple(self.alternatives),
            legal=tuple(self.legal),
            finish_reason=finish_reason,
        )

    def progress(self) -> Progress | None:
        """The tokens sampled since the last call; None where there are none."""
        start, self._reported = self._reported, len(self.tokens)
        if start == self._reported:
            return None
        return Progress(
            token_ids=tuple(self.tokens[start:]),
            logprobs=tuple(self.logprobs[start:]),
            versions=tuple(self.versions[start:]),
            raw_logprobs=tuple(self.raw_logprobs[start:]),
            alternatives=tuple(self.alternatives[start:]),
        )

    def _setting(self) -> tuple[Any, ...]:
        request = self.request
        if request.filters is None and request.grammar is None:
            return request.temperature, self.allowed
        own = None if request.grammar is None else self
        start = len(request.prompt_ids)  # penalties treat prompt and completion differently
        return request.temperature, self.allowed, request.filters, start, own

    def _history(self) -> Seen | None:
        """The tokens that penalties apply to; None where the request has no penalties.

        Tokens of the prompt count for the repetition penalty only.
        """
        filters = self.request.filters
        if filters is None or not filters.penalised:
            return None
        if self._seen is None:
            repeated = filters.repetition_penalty != 1.0
            self._seen = Seen(self.request.prompt_ids if repeated else (), self.tokens)
        return self._seen

    def _advance(self, grammar: GrammarState, token: int) -> bool:
        """Advance the grammar by one token; True if the text is complete."""
        try:
            grammar.advance(token)
            closed = grammar.closed
        except Exception as error:
            raise RequestError(f"its grammar failed at token {token}: {error!r}") from error
        return closed

    def _stopped(self) -> bool:
        try:
            return bool(self.request.stops and self.request.stops(self.tokens))
        except Exception as error:
            raise RequestError(f"its stop test failed: {error!r}") from error
