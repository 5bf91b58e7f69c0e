"""The engine: continuous batching in which every distinct row of tokens is computed once.

Sequences whose tokens so far are equal, under the same weights, share one row. A row is prefilled
once, and each of its sequences draws its own next token from the row's distribution; where they
draw different tokens the row forks. Games that repeat a few prompts thousands of times, groups of
samples of one prompt, and plain batches are all the same case.

A request is *inside* from its submission until it is answered. It waits under its tokens for a
forward pass, is decoded with the rows, and may wait again where its row forked into more rows than
fit. Whatever happens, leaving is one act, so that every number is delivered exactly once. Once a
second, and before it rests, the engine checks that the scheduler holds everybody who is inside.

All methods named ``_x`` run on the worker that owns the module tree.
"""

import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import TypeVar

import mlx.core as mx
import mlx.nn as nn

from legos.data.limits import EngineLimits
from legos.data.names import POLICY, adapter_name
from legos.data.request import Progress, Request, Result
from legos.errors import EngineError, RequestError
from legos.mlx.generate.scheduler import Outcome, Scheduler
from legos.mlx.generate.score import Score
from legos.mlx.generate.sequences import SequenceState, refusal
from legos.mlx.model.worker import InlineWorker, Worker, answer
from legos.protocols import Deliver
from legos.weights.adapter import Adapter, AdapterInfo

__all__ = ["MlxEngine"]

logger = logging.getLogger(__name__)
CHECK_S = 1.0  # between two looks for lost requests
Tokens = tuple[int, ...]
Message = tuple[Deliver, Sequence[tuple[int, Request]] | frozenset[int]] | Score
"""Requests that come in, or the numbers of those to be cancelled; or a score."""
T = TypeVar("T")


class MlxEngine:
    """Generates for one model and its live adapters; safe to call from any thread.

    Attributes:
        spans: when the device computed, while recording is on.
        swaps: adapters loaded so far.
    """

    def __init__(
        self,
        worker: Worker,
        model: nn.Module,
        *,
        num_vocabulary: int,
        context: int,
        limits: EngineLimits | None = None,
    ) -> None:
        """Take over a module tree that the worker's thread has built, without LoRA.

        Args:
            worker: runs everything that touches the tree.
            model: the tree.
            num_vocabulary: V; prompts with other token ids are refused.
            context: longest prompt plus completion, tokens.
            limits: what may be used; the defaults of ``EngineLimits`` where none are given.
        """
        self._worker = worker
        self._model = model
        self._num_vocabulary = num_vocabulary
        self._context = context
        self._scheduler = worker.call(
            lambda: Scheduler(
                model,
                num_vocabulary=num_vocabulary,
                limits=limits or EngineLimits(),
                clock=worker.clock,
            )
        ).result()
        self._inbox: deque[Message] = deque()
        self._inside: set[SequenceState] = set()
        self._closed = False
        self._checked = 0.0
        self._accepted = self._answered = 0
        self._drawn: Counter[str] = Counter()  # tokens of requests that have ended, by adapter
        self.swaps = 0
        self.worked_s = 0.0
        self.spans = self._scheduler.sampler.spans
        worker.set_tick(self._tick)

    @property
    def rows_computed(self) -> int:
        """Rows that went through the model so far, prefill and decode."""
        return self._scheduler.rows_computed

    def tokens_generated(self, adapter: str) -> "Future[int]":
        """Tokens drawn so far for one adapter, whatever its version, counted between two steps."""
        worker = InlineWorker() if self._closed else self._worker  # no step runs any more
        return worker.call(self._tokens_drawn, adapter)

    @property
    def alive(self) -> bool:
        """Whether requests can still be answered."""
        return not self._closed and self._worker.alive

    @property
    def turn(self) -> int | None:
        """The number of the step or call that runs now; None between two."""
        return self._worker.turn

    def stats(self) -> Mapping[str, float]:
        """What it has done and holds now: counts end in ``_total``, sizes in ``_bytes``.

        Raises:
            EngineError: it is closed, or its thread has died.
        """
        if not self.alive:
            raise EngineError("the engine was closed, or its thread has died")
        return {
            "requests_running": len(self._inside),
            "requests_waiting": self._scheduler.num_waiting + len(self._inbox),
            "requests_accepted_total": self._accepted,
            "requests_answered_total": self._answered,
            **self._scheduler.stats(),
            "adapter_swaps_total": self.swaps,
            "worked_seconds_total": self.worked_s,
            "active_memory_bytes": mx.get_active_memory(),
            "unused_memory_bytes": mx.get_cache_memory(),
            "peak_memory_bytes": mx.get_peak_memory(),
        }

    def submit(self, requests: Sequence[tuple[int, Request]], deliver: Deliver) -> None:
        """Queue requests; each number is delivered once, from the worker's thread.

        Once the engine is closed it is delivered with ``EngineError``, from the calling thread.
        """
        self._post((deliver, requests))

    def cancel(self, numbers: Sequence[int], deliver: Deliver) -> None:
        """End requests early; each is delivered as it is, with finish reason "cancelled"."""
        self._post((deliver, frozenset(numbers)))

    def load_adapter(self, adapter: Adapter) -> "Future[AdapterInfo]":
        """Make an adapter live under its name between two steps.

        The future raises ``AdapterError`` where it does not fit; what was live before stays.
        """
        return self._worker.call(self._load, adapter)

    def drop_adapter(self, name: str) -> "Future[None]":
        """Forget a named adapter; requests that run on it end under it, later ones are refused.

        The future raises ``AdapterError`` where no adapter of that name is live.
        """
        return self._worker.call(self._drop, name)

    def versions(self) -> Mapping[str, int]:
        """LiveAdapter adapter name -> policy version."""
        return {name: info.version for name, info in self._scheduler.adapters.infos.items()}

    def adapters(self) -> Mapping[str, AdapterInfo]:
        """LiveAdapter adapter name -> its version and digest."""
        return self._scheduler.adapters.infos

    def loaded(self) -> Collection[Adapter]:
        """The live adapters themselves."""
        return self._scheduler.adapters.loaded.values()

    def unanswered(self, deliver: Deliver) -> set[int]:
        """The numbers of a receiver that are inside, or on their way in.

        From any thread. One that is being taken in at this moment may be missing.
        """
        waiting = [m for m in tuple(self._inbox) if not isinstance(m, Score) and m[0] == deliver]
        coming = {n for _, asked in waiting if not isinstance(asked, frozenset) for n, _ in asked}
        return coming | {m.number for m in tuple(self._inside) if m.deliver == deliver}

    def score(
        self,
        prompts: Sequence[tuple[Tokens, Sequence[Tokens]]],
        *,
        end_ids: Sequence[int],
        adapter: str = POLICY,
    ) -> "Future[list[list[float]]]":
        """Log-probability (nats, temperature 1) of each continuation as the whole answer.

        Args:
            prompts: prompt token ids, and the continuations to score after it. A continuation that
                is the beginning of another one is scored with the end of text after it.
            end_ids: the model's end-of-text ids.
            adapter: whose probabilities. A score ends under the weights it began with.

        Returns:
            A future; cancelling it ends the score. It raises ``RequestError`` for what cannot be
            scored, ``EngineError`` where the engine is closed or dies.
        """
        score = Score(
            prompts,
            end_ids=tuple(end_ids),
            adapter=adapter,
            refusal=lambda request: self._refusal(request, room=1),
        )
        self._post(score)
        return score.future

    def run(self, work: Callable[[nn.Module], T]) -> "Future[T]":
        """Run a function of the module tree on the engine's thread; for benches and checks."""
        return self._worker.call(work, self._model)

    def close(self) -> None:
        """End; every waiting request is answered with ``EngineError``. A second time: nothing."""
        if not self._closed:
            self._closed = True
            self._worker.call(self._end).result()
            self._worker.close()

    def abandon(self) -> None:
        """Give up an engine whose thread no longer answers; nothing is waited for.

        Whoever waits for a score, a load or a drop gets ``EngineError``, as do later requests.
        Those who wait for completions are to be told by the caller, who may ask another engine.
        """
        self._closed = True
        self._worker.abandon()
        self._scheduler.fail_scores(EngineError("the engine was given up"))
        self._refuse_inbox()

    def _tokens_drawn(self, adapter: str) -> int:
        inside = (
            len(one.tokens) for one in self._inside if adapter_name(one.request.adapter) == adapter
        )
        return self._drawn[adapter] + sum(inside)

    def _load(self, adapter: Adapter) -> AdapterInfo:
        self._scheduler.load(adapter, self._inside)
        self.swaps += 1
        return adapter.info

    def _drop(self, name: str) -> None:
        self._scheduler.adapters.drop(name)
        self._scheduler.tidy(self._inside)

    def _post(self, message: Message) -> None:
        """Have the next step take something in."""
        self._inbox.append(message)
        if self._closed:
            self._refuse_inbox()
        else:
            self._worker.wake()

    def _tick(self) -> bool:
        """Take in what came, compute, answer; True while work is left."""
        if self._closed:
            self._end()
            return False
        began = time.monotonic()
        told: list[Outcome] = []
        try:
            self._accept(told)
            if self._scheduler:
                self._scheduler.step(lambda: bool(self._inbox) or self._closed, told)
        except Exception as error:
            logger.exception(
                "a step of the engine failed; its requests are answered with the error"
            )
            failure = EngineError(f"a step of the engine failed: {error!r}")
            told += [(sequence, failure) for sequence in self._inside]
            self._scheduler.clear()
        self._answer(told)
        self._find_lost()
        self.worked_s += time.monotonic() - began
        return bool(self._scheduler or self._inbox)

    def _accept(self, told: list[Outcome]) -> None:
        """Take in what was submitted; what was cancelled goes."""
        cancelled: set[tuple[Deliver, int]] = set()
        for message in self._messages():
            if isinstance(message, Score):
                try:
                    self._scheduler.add_score(message)
                except RequestError as error:
                    answer(message.future, error)
                continue
            deliver, requests = message
            if isinstance(requests, frozenset):
                cancelled |= {(deliver, number) for number in requests}
                continue
            for number, request in requests:
                sequence = SequenceState(number, request, deliver)
                self._inside.add(sequence)
                self._accepted += 1
                reason = self._refusal(request, sequence)
                if reason is None:
                    self._scheduler.add(sequence)
                else:
                    told.append((sequence, RequestError(reason)))
        if cancelled:
            gone = {m for m in self._inside if (m.deliver, m.number) in cancelled}
            self._scheduler.remove(gone)
            told += [(sequence, sequence.generated("cancelled")) for sequence in gone]

    def _refusal(
        self, request: Request, sequence: SequenceState | None = None, *, room: int = 0
    ) -> str | None:
        """Why a request cannot be served, or None; finds a sequence's adapter."""
        try:
            if sequence is not None:
                sequence.live = self._scheduler.adapters.find(request.adapter)
            return refusal(
                request, num_vocabulary=self._num_vocabulary, context=self._context + room
            )
        except RequestError as error:
            return str(error)
        except Exception as error:  # one bad request never stops the engine
            return f"the request is broken: {error!r}"

    def _answer(self, told: Sequence[Outcome]) -> None:
        """Hand out what there is; a sequence that has all it will get leaves, once."""
        by_receiver: dict[Deliver, list[tuple[int, Result]]] = {}
        for sequence, result in told:
            if sequence in self._inside:
                if not isinstance(result, Progress):
                    self._inside.remove(sequence)
                    self._answered += 1
                    adapter = adapter_name(sequence.request.adapter)
                    self._drawn[adapter] += len(sequence.tokens)
                    self._scheduler.left(sequence)
                by_receiver.setdefault(sequence.deliver, []).append((sequence.number, result))
        for deliver, results in by_receiver.items():
            try:
                deliver(results)
            except Exception:
                logger.exception("a receiver of results failed; the engine goes on")
        if self._scheduler.adapters.any_retired:
            self._scheduler.tidy(self._inside)

    def _find_lost(self) -> None:
        """Answer those whom the scheduler holds no more, which is a defect, with an error."""
        now = time.monotonic()
        if self._scheduler and now < self._checked + CHECK_S:
            return
        self._checked = now
        lost = self._inside - self._scheduler.held() if self._inside else ()
        if lost:
            error = EngineError(
                f"the engine lost {len(lost)} of its requests, which is a defect; ask again"
            )
            sizes = [(len(m.request.prompt_ids), m.request.max_tokens) for m in lost]
            logger.error("%s; (prompt tokens, max_tokens): %s", error, sorted(sizes)[:8])
            self._answer([(sequence, error) for sequence in lost])

    def _end(self) -> None:
        """Answer everybody inside, and whoever came before the worker closed."""
        self._scheduler.clear()
        closed = EngineError("the engine was closed")
        self._scheduler.fail_scores(closed)
        self._answer([(sequence, closed) for sequence in self._inside])
        self._refuse_inbox()

    def _refuse_inbox(self) -> None:
        """Answer what nobody will take in any more; from any thread."""
        closed = EngineError("the engine was closed")
        for message in self._messages():
            if isinstance(message, Score):
                answer(message.future, closed)
                continue
            deliver, requests = message
            if not isinstance(requests, frozenset):
                deliver([(number, closed) for number, _ in requests])

    def _messages(self) -> Iterator[Message]:
        """Everything in the inbox, each message to one thread alone."""
        while True:
            try:
                yield self._inbox.popleft()
            except IndexError:
                return
