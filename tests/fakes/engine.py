"""An engine without a model that answers from a function, at once or on ``release``."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from fakes.futures import answered
from legos.errors import AdapterError
from legos.protocols import Deliver
from legos.records.message import FinishReason
from legos.records.names import POLICY
from legos.records.request import Generated, Progress, Request
from legos.weights.adapter import Adapter, AdapterInfo

__all__ = ["FakeEngine", "echo"]

LOGPROB = -1.0  # log-probability of every token, nats


def echo(request: Request) -> Sequence[int]:
    """Answer with the prompt's tokens."""
    return request.prompt_ids


class FakeEngine:
    """Implements the engine's protocol on the calling thread.

    A streamed request gets its tokens one by one, and then the whole completion.

    Attributes:
        requests: every request so far, in order.
        held: requests that wait for ``release``: (number, request, receiver).
        cancelled: numbers that were cancelled, in order.
        live: adapters by name.
    """

    def __init__(
        self,
        answer: Callable[[Request], Sequence[int] | Generated] = echo,
        *,
        hold: bool = False,
    ) -> None:
        """Make an engine.

        Args:
            answer: gives the token ids for a request, or the whole result; an exception that it
                raises is delivered.
            hold: keep requests until ``release`` is called.
        """
        self._answer = answer
        self._hold = hold
        self._drawn: Counter[str] = Counter()
        self.requests: list[Request] = []
        self.held: list[tuple[int, Request, Deliver]] = []
        self.cancelled: list[int] = []
        self.live: dict[str, Adapter] = {}

    def submit(self, requests: Sequence[tuple[int, Request]], deliver: Deliver) -> None:
        """Answer the requests, or hold them."""
        self.requests += [request for _, request in requests]
        self.held += [(number, request, deliver) for number, request in requests]
        if not self._hold:
            self.release()

    def release(self) -> None:
        """Answer all held requests."""
        held, self.held = self.held, []
        for number, request, deliver in held:
            result = self._result(request)
            if isinstance(result, Generated):
                self._drawn[request.adapter] += len(result.token_ids)
                self._stream(number, request, deliver, result, len(result.token_ids))
            deliver([(number, result)])

    def stream(self, num_tokens: int = 1) -> None:
        """Deliver the first ``num_tokens`` tokens of every held request that is streamed."""
        for number, request, deliver in self.held:
            result = self._result(request)
            if isinstance(result, Generated):
                self._stream(number, request, deliver, result, num_tokens)

    def cancel(self, numbers: Sequence[int], deliver: Deliver) -> None:
        """Deliver the held requests of these numbers as cancelled, without tokens."""
        self.cancelled += numbers
        ended = [one for one in self.held if one[0] in numbers and one[2] == deliver]
        self.held = [one for one in self.held if one not in ended]
        for number, request, _ in ended:
            deliver([(number, self._generated((), "cancelled", request))])

    @answered
    def load_adapter(self, adapter: Adapter) -> AdapterInfo:
        """Make an adapter live at once."""
        self.live[adapter.name] = adapter
        return adapter.info

    @answered
    def drop_adapter(self, name: str) -> None:
        """Remove an adapter at once; the future raises ``AdapterError`` for unknown names."""
        if self.live.pop(name, None) is None:
            raise AdapterError(f"adapter {name!r} is not live; live: {[*self.live]}")

    def versions(self) -> Mapping[str, int]:
        """Live adapters: name -> policy version."""
        return {name: adapter.version for name, adapter in self.live.items()}

    def adapters(self) -> Mapping[str, AdapterInfo]:
        """Live adapters: name -> version and digest."""
        return {name: adapter.info for name, adapter in self.live.items()}

    def stats(self) -> Mapping[str, float]:
        """Number of requests received and held, and of tokens delivered."""
        return {
            "requests_accepted_total": len(self.requests),
            "requests_running": len(self.held),
            "tokens_generated_total": self._drawn.total(),
        }

    @answered
    def tokens_generated(self, adapter: str) -> int:
        """Number of tokens delivered so far for one adapter name."""
        return self._drawn[adapter]

    def close(self) -> None:
        """Do nothing: there is no thread to end."""

    @answered
    def score(
        self,
        prompts: Sequence[tuple[tuple[int, ...], Sequence[tuple[int, ...]]]],
        *,
        end_ids: Sequence[int],
        adapter: str = POLICY,
        by_token: bool = False,
    ) -> list[list[float]]:
        """The log-probability of a continuation: ``LOGPROB`` for each token."""
        if by_token:
            return [[LOGPROB] * len(answer) for _, (answer,) in prompts]
        return [[LOGPROB * len(answer) for answer in answers] for _, answers in prompts]

    def _result(self, request: Request) -> Generated | Exception:
        try:
            answer = self._answer(request)
        except Exception as error:  # a test may want any error delivered
            return error
        if isinstance(answer, Generated):
            return answer
        kept = tuple(answer[: request.max_tokens])
        reason: FinishReason = "stop" if len(kept) == len(answer) else "length"
        if request.stops is not None:
            ends = (end for end in range(1, len(kept) + 1) if request.stops(kept[:end]))
            stopped = next(ends, None)
            if stopped is not None:
                kept, reason = kept[:stopped], "stop"
        return self._generated(kept, reason, request)

    def _generated(
        self, token_ids: tuple[int, ...], reason: FinishReason, request: Request
    ) -> Generated:
        count = len(token_ids)
        versions = self.versions()
        version = versions.get(request.adapter, max(versions.values(), default=0))
        top = 2 * LOGPROB
        others = [(other, top - 1 - other) for other in range(request.num_alternatives - 1)]
        listed = token_ids if request.num_alternatives else ()
        return Generated(
            token_ids=token_ids,
            logprobs=(LOGPROB,) * count,
            versions=(version,) * count,
            finish_reason=reason,
            raw_logprobs=(2 * LOGPROB,) * count if request.raw_logprobs else (),
            alternatives=tuple(((token, top), *others) for token in listed),
        )

    def _stream(
        self, number: int, request: Request, deliver: Deliver, whole: Generated, num_tokens: int
    ) -> None:
        """Deliver the first tokens of an answer one by one, if the request is streamed."""
        for index in range(num_tokens if request.stream else 0):
            one = slice(index, index + 1)
            fields = {name: getattr(whole, name)[one] for name in Progress.__struct_fields__}
            deliver([(number, Progress(**fields))])
