"""An engine without a model that answers from a function, at once or on ``release``."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future

from legos.data.message import FinishReason
from legos.data.names import POLICY
from legos.data.request import Generated, Progress, Request
from legos.errors import AdapterError
from legos.protocols import Deliver
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
        self, answer: Callable[[Request], Sequence[int]] = echo, *, hold: bool = False
    ) -> None:
        """Make an engine.

        Args:
            answer: gives the token ids for a request; an exception that it raises is delivered.
            hold: keep requests until ``release`` is called.
        """
        self._answer = answer
        self._hold = hold
        self.requests: list[Request] = []
        self.held: list[tuple[int, Request, Deliver]] = []
        self.cancelled: list[int] = []
        self.live: dict[str, AdapterInfo] = {}

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
            if request.stream and isinstance(result, Generated):
                for index in range(len(result.token_ids)):
                    deliver([(number, _progress(result, index))])
            deliver([(number, result)])

    def stream(self, num_tokens: int = 1) -> None:
        """Deliver the first ``num_tokens`` tokens of every held request that is streamed."""
        for number, request, deliver in self.held:
            result = self._result(request)
            if request.stream and isinstance(result, Generated):
                for index in range(num_tokens):
                    deliver([(number, _progress(result, index))])

    def cancel(self, numbers: Sequence[int], deliver: Deliver) -> None:
        """Deliver the held requests of these numbers as cancelled, without tokens."""
        self.cancelled += numbers
        kept: list[tuple[int, Request, Deliver]] = []
        for item in self.held:
            if item[0] in numbers and item[2] == deliver:
                deliver([(item[0], self._generated((), "cancelled", item[1]))])
            else:
                kept.append(item)
        self.held = kept

    def load_adapter(self, adapter: Adapter) -> "Future[AdapterInfo]":
        """Make an adapter live at once."""
        future: Future[AdapterInfo] = Future()
        self.live[adapter.name] = adapter.info
        future.set_result(adapter.info)
        return future

    def drop_adapter(self, name: str) -> "Future[None]":
        """Remove an adapter at once."""
        future: Future[None] = Future()
        if self.live.pop(name, None) is None:
            future.set_exception(AdapterError(f"adapter {name!r} is not live; live: {self.live}"))
        else:
            future.set_result(None)
        return future

    def versions(self) -> Mapping[str, int]:
        """Live adapters: name -> policy version."""
        return {name: info.version for name, info in self.live.items()}

    def adapters(self) -> Mapping[str, AdapterInfo]:
        """Live adapters by name."""
        return dict(self.live)

    def stats(self) -> Mapping[str, float]:
        """Number of requests received, and number of requests held."""
        return {"requests_total": len(self.requests), "waiting": len(self.held)}

    def score(
        self,
        prompts: Sequence[tuple[tuple[int, ...], Sequence[tuple[int, ...]]]],
        *,
        end_ids: Sequence[int],
        adapter: str = POLICY,
    ) -> "Future[list[list[float]]]":
        """The log-probability of a continuation: ``LOGPROB`` for each token."""
        future: Future[list[list[float]]] = Future()
        future.set_result([[LOGPROB * len(answer) for answer in answers] for _, answers in prompts])
        return future

    def _result(self, request: Request) -> Generated | Exception:
        try:
            tokens = tuple(self._answer(request))
        except Exception as error:  # a test may want any error delivered
            return error
        kept = tokens[: request.max_tokens]
        reason: FinishReason = "stop" if len(kept) == len(tokens) else "length"
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
        info = self.live.get(request.adapter)
        version = max((live.version for live in self.live.values()), default=0)
        version = version if info is None else info.version
        others = range(request.num_alternatives - 1)
        return Generated(
            token_ids=token_ids,
            logprobs=(LOGPROB,) * count,
            versions=(version,) * count,
            legal=(),
            finish_reason=reason,
            raw_logprobs=(2 * LOGPROB,) * count if request.raw_logprobs else (),
            alternatives=tuple(
                ((token, LOGPROB), *((other, LOGPROB - 1 - other) for other in others))
                for token in token_ids
            )
            if request.num_alternatives
            else (),
        )


def _progress(whole: Generated, index: int) -> Progress:
    """One token of an answer."""
    one = slice(index, index + 1)
    return Progress(**{name: getattr(whole, name)[one] for name in Progress.__struct_fields__})
