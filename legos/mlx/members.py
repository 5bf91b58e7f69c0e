"""Requests on their way: what each has sampled so far, and when it ends."""

from legos.data.message import FinishReason
from legos.data.request import Generated, Request
from legos.protocols import Deliver

__all__ = ["Member"]


class Member:
    """One request inside the engine; members with equal tokens share one row."""

    __slots__ = (
        "deliver",
        "legal",
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
