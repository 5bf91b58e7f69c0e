"""Requests on their way: what each has sampled so far, and when it ends."""

import math
from collections.abc import Iterator

from legos.data.message import MIN_TEMPERATURE, FinishReason
from legos.data.request import Generated, Request
from legos.protocols import Deliver

__all__ = ["Member", "refusal"]


def refusal(request: Request, *, num_vocabulary: int, context: int) -> str | None:
    """Why a model cannot serve a request, or None.

    Args:
        request: what is asked.
        num_vocabulary: token ids are below it.
        context: longest prompt plus completion, tokens.
    """
    return next(_complaints(request, num_vocabulary, context), None)


def _complaints(request: Request, num_vocabulary: int, context: int) -> Iterator[str]:
    """What is wrong with a request; only the first one means anything."""
    prompt, choices = request.prompt_ids, request.choices
    if not prompt:
        yield "the prompt is empty; expected at least one token"
    if min(prompt) < 0 or max(prompt) >= num_vocabulary:
        bad = min(prompt) if min(prompt) < 0 else max(prompt)
        yield f"the prompt holds token {bad}; the vocabulary has {num_vocabulary}"
    if request.max_tokens < 1:
        yield f"max_tokens is {request.max_tokens}; expected at least 1"
    if len(prompt) + request.max_tokens > context:
        yield (
            f"{len(prompt)} prompt tokens and max_tokens {request.max_tokens} exceed the "
            f"context of {context}; shorten one of them"
        )
    if not (request.temperature == 0.0 or MIN_TEMPERATURE <= request.temperature < math.inf):
        yield f"temperature is {request.temperature}; expected 0, or at least {MIN_TEMPERATURE}"
    if not 0 <= request.seed < 1 << 64:
        yield f"seed is {request.seed}; expected 64 bits, without a sign"
    if request.restrict and choices is None:
        yield "restrict=True needs choices"
    if choices is not None and choices.largest >= num_vocabulary:
        yield f"a choice holds token {choices.largest}; the vocabulary has {num_vocabulary}"


class Member:
    """One request inside the engine; members with equal tokens share one row."""

    __slots__ = (
        "deliver",
        "epoch",
        "legal",
        "live",
        "logprobs",
        "node",
        "number",
        "request",
        "tokens",
        "versions",
    )

    def __init__(self, number: int, request: Request, deliver: Deliver) -> None:
        self.number = number
        self.request = request
        self.deliver = deliver
        self.node = request.choices
        self.tokens: tuple[int, ...] = ()
        self.logprobs: list[float] = []
        self.versions: list[int] = []
        self.legal: list[tuple[int, ...]] = []

    @property
    def allowed(self) -> tuple[int, ...] | None:
        """Token ids that may come next, or None for any."""
        if self.request.restrict and self.node is not None:
            return self.node.legal
        return None

    @property
    def last_draw(self) -> bool:
        """Whether the next token is the last one for sure, so that no cache need be kept."""
        return len(self.tokens) + 1 >= self.request.max_tokens

    def add(self, token: int, logprob: float, version: int) -> FinishReason | None:
        """Take a sampled token; returns the finish reason if it was the last one."""
        request = self.request
        self.tokens += (token,)
        self.logprobs.append(logprob)
        self.versions.append(version)
        if request.choices is not None:
            self.legal.append(self.node.legal if self.node else ())
            self.node = self.node.children.get(token) if self.node else None
            if self.node is not None and self.node.closed:
                return "stop"
        if token in request.end_ids:
            return "stop"
        if request.stops is not None and request.stops(self.tokens):
            return "stop"
        return "length" if len(self.tokens) >= request.max_tokens else None

    def generated(self, finish_reason: FinishReason) -> Generated:
        """What was sampled."""
        return Generated(
            token_ids=self.tokens,
            logprobs=tuple(self.logprobs),
            versions=tuple(self.versions),
            legal=tuple(self.legal),
            finish_reason=finish_reason,
        )
