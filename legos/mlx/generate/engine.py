"""The engine: continuous batching in which every distinct row of tokens is computed once.

Sequences with equal tokens so far and the same weights share one row. A row is prefilled once, and
each of its sequences samples its own next token from the row's distribution; where they sample
different tokens, the row forks. Games that repeat a few prompts thousands of times, groups of
samples of one prompt, and plain batches are all handled in this one way.

A request is *inside* from the step that accepts it until it is answered. It waits for a forward
pass, is decoded with the other rows, and may wait again where its row forked into more rows than
fit. Requests leave only through ``_answer``, so every number gets exactly one final result.

Unless their docstrings say otherwise, methods named ``_x`` run on the worker that owns the tree.
"""

import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import TypeVar

import mlx.core as mx
import mlx.nn as nn

from legos.device.worker import CLOSE_S, InlineWorker, Worker, taken
from legos.errors import DeviceError, EngineError, RequestError
from legos.mlx.generate.capabilities import Capabilities
from legos.mlx.generate.inbox import Message, deliver_all, num_requests, refuse_all
from legos.mlx.generate.request_check import RequestCheck
from legos.mlx.generate.scheduler import Outcome, Scheduler
from legos.mlx.generate.score import Score
from legos.mlx.generate.sequences import SequenceState
from legos.mlx.model.faults import clear_device, explained, faults_raised, is_fault
from legos.protocols import Deliver
from legos.records.limits import EngineLimits
from legos.records.names import POLICY, adapter_name
from legos.records.request import Progress, Request
from legos.weights.adapter import Adapter, AdapterInfo

logger = logging.getLogger(__name__)
T = TypeVar("T")


class MlxEngine:
    """Generates for one model and its live adapters; safe to call from any thread.

    Attributes:
        capabilities: what the model's caches support.
        swaps: number of adapters loaded so far.
        worked_s: seconds spent in steps so far.
    """

    def __init__(
        self,
        worker: Worker,
        model: nn.Module,
        *,
        num_vocabulary: int,
        context: int,
        limits: EngineLimits | None = None,
        capabilities: Capabilities | None = None,
    ) -> None:
        """Take over a module tree that the worker's thread has built, without LoRA.

        Args:
            worker: runs every call that uses the tree.
            model: the module tree.
            num_vocabulary: vocabulary size V; prompts with other token ids are refused.
            context: maximum number of prompt and completion tokens together.
            limits: limits of rows, tokens and memory; None: the defaults of ``EngineLimits``.
            capabilities: those of another engine of the same model; None: they are probed.
        """
        self._worker = worker
        self._model = model
        self._check = RequestCheck(num_vocabulary=num_vocabulary, context=context)
        make = partial(
            Scheduler, num_vocabulary=num_vocabulary, clock=worker.clock, capabilities=capabilities
        )
        self._scheduler = worker.call(make, model, limits or EngineLimits()).result()
        self.capabilities = self._scheduler.capabilities
        self._inbox: deque[Message] = deque()  # messages for the next step
        self._inside: set[SequenceState] = set()
        self._closed = False
        self.swaps = self._accepted = self._answered = 0
        self._drawn: Counter[str] = Counter()  # adapter -> tokens sampled by finished requests
        self.worked_s = 0.0
        worker.set_tick(self._tick)

    def tokens_generated(self, adapter: str) -> "Future[int]":
        """Tokens sampled so far for all versions of one adapter, counted between two steps."""
        worker = InlineWorker() if self._closed else self._worker  # no step runs after closing
        return worker.call(self._tokens_drawn, adapter)

    def stats(self) -> Mapping[str, float]:
        """Counters and gauges of the engine: counters end in ``_total``, sizes in ``_bytes``.

        Raises:
            EngineError: the engine is closed, or its thread has died.
        """
        if self._closed or not self._worker.alive:
            raise EngineError("the engine was closed, or its thread has died")
        return {
            "requests_running": len(self._inside),
            "requests_waiting": len(self._scheduler.waiting) + num_requests(self._inbox),
            "requests_accepted_total": self._accepted,
            "requests_answered_total": self._answered,
            **self._scheduler.stats(),
            "adapter_swaps_total": self.swaps,
            "worked_seconds_total": self.worked_s,
            "computing": self._worker.turn is not None,
            "active_memory_bytes": mx.get_active_memory(),
            "unused_memory_bytes": mx.get_cache_memory(),
            "peak_memory_bytes": mx.get_peak_memory(),
        }

    def submit(self, requests: Sequence[tuple[int, Request]], deliver: Deliver) -> None:
        """Queue requests; the worker's thread delivers one final result for each number.

        After the engine is closed, the calling thread delivers an ``EngineError`` for each number.
        """
        self._post((deliver, requests))

    def cancel(self, numbers: Sequence[int], deliver: Deliver) -> None:
        """End requests early; each is delivered with its tokens so far and reason "cancelled"."""
        self._post((deliver, frozenset(numbers)))

    def load_adapter(self, adapter: Adapter) -> "Future[AdapterInfo]":
        """Make an adapter live under its name between two steps.

        Running requests for the name go on with it, those for ``NAME@VERSION`` with theirs.

        The future raises ``AdapterError`` where the adapter does not fit, and ``DeviceError`` where
        the device failed; nothing is changed then.
        """
        return self._worker.call(self._load, adapter)

    def drop_adapter(self, name: str) -> "Future[None]":
        """Remove an adapter by name; running requests finish with it, later ones are refused.

        The future raises ``AdapterError`` where no adapter of that name is live.
        """
        return self._worker.call(self._drop, name)

    def versions(self) -> Mapping[str, int]:
        """Name of each live adapter -> its policy version."""
        return {name: info.version for name, info in self._scheduler.adapters.infos.items()}

    def adapters(self) -> Mapping[str, AdapterInfo]:
        """Name of each live adapter -> its version and digest."""
        return self._scheduler.adapters.infos

    def score(
        self,
        prompts: Sequence[tuple[tuple[int, ...], Sequence[tuple[int, ...]]]],
        *,
        end_ids: Sequence[int],
        adapter: str = POLICY,
        by_token: bool = False,
    ) -> "Future[list[list[float]]]":
        """Log-probability (nats, temperature 1) of each continuation as the whole answer.

        Args:
            prompts: prompt token ids, and the continuations to score after it. A continuation that
                is a prefix of another one is scored with an end-of-text token after it.
            end_ids: the model's end-of-text ids.
            adapter: its name; a score ends with the weights that it started with.
            by_token: score each token of the only continuation of each prompt.

        Returns:
            A future; cancelling it ends the score. It raises ``RequestError`` where a prompt or
            continuation cannot be scored, ``EngineError`` where the engine is closed or dies.
        """
        score = Score(
            prompts=prompts,
            end_ids=tuple(dict.fromkeys(end_ids)),  # their probabilities are added up
            adapter=adapter,
            by_token=by_token,
            shares=self.capabilities.shares_prefix,
            refusal=partial(self._refusal, room=1),
        )
        self._post(score)
        return score.future

    def run(self, work: Callable[[nn.Module], T]) -> "Future[T]":
        """Run a function of the module tree on the engine's thread; for benches and checks."""
        return self._worker.call(work, self._model)

    def close(self) -> None:
        """Stop; every waiting request is answered with ``EngineError``. Safe to call twice."""
        if not self._closed:
            self._closed = True
            try:
                self._worker.call(self._end).result(CLOSE_S)
            except TimeoutError:
                self._give_up()
            else:
                self._worker.close()

    def _tokens_drawn(self, adapter: str) -> int:
        inside = (m for m in self._inside if adapter_name(m.request.adapter) == adapter)
        return self._drawn[adapter] + sum(len(sequence.tokens) for sequence in inside)

    def _load(self, adapter: Adapter) -> AdapterInfo:
        self._answer_after(self._scheduler.collect)
        with faults_raised():
            self._scheduler.adapters.load(adapter)
        for sequence in self._inside:
            if sequence.live.epoch != sequence.epoch:
                sequence.epoch = -1
        self._tidy()
        self.swaps += 1
        return adapter.info

    def _drop(self, name: str) -> None:
        self._scheduler.adapters.drop(name)
        self._tidy()

    def _tidy(self) -> None:
        self._scheduler.tidy(self._inside)
        if isinstance(self._worker, InlineWorker):  # of a run that goes on exactly after a restart
            self._scheduler.forget()

    def _post(self, message: Message) -> None:
        """Queue a message for the next step; callable on any thread."""
        self._inbox.append(message)
        if self._closed:
            refuse_all(self._inbox)
        else:
            self._worker.wake()

    def _tick(self) -> bool:
        """Accept new messages, compute one step and answer; True while work is left."""
        if self._closed:
            self._end()
            return False
        began = time.monotonic()
        self._answer_after(self._step)
        self.worked_s += time.monotonic() - began
        return bool(self._scheduler or self._inbox)

    def _step(self, outcomes: list[Outcome]) -> None:
        if self._inbox:
            self._scheduler.collect(outcomes)
            self._accept(outcomes)
        if self._scheduler:
            self._scheduler.step(lambda: bool(self._inbox) or self._closed, outcomes)

    def _answer_after(self, compute: Callable[[list[Outcome]], None]) -> None:
        """Compute, and answer with the outcomes; an error is an outcome of all requests inside."""
        outcomes: list[Outcome] = []
        try:
            compute(outcomes)
        except Exception as error:
            self._fail(error, outcomes)
        self._answer(outcomes)

    def _fail(self, error: Exception, outcomes: list[Outcome]) -> None:
        """Start requests again if the device has failed; answer all others with an error.

        A request starts again as often as it has got further in between.
        """
        self._scheduler.clear()
        ended = {sequence for sequence, result in outcomes if not isinstance(result, Progress)}
        left = sorted(self._inside - ended, key=lambda sequence: sequence.number)
        fault = is_fault(error)
        reason = explained(error) if fault else repr(error)
        again = [one for one in left if fault and one.may_start_again]
        if again:
            logger.warning("%s; %d requests start again", reason, len(again))
            clear_device()
            self._scheduler.start_again(again)
            left = [one for one in left if one not in again]
        else:
            logger.error("a step of the engine failed; its requests get the error", exc_info=error)
        failure = (DeviceError if fault else EngineError)(f"a step of the engine failed: {reason}")
        outcomes += [(sequence, failure) for sequence in left]

    def _accept(self, outcomes: list[Outcome]) -> None:
        """Accept submitted requests and remove cancelled ones; their results go to ``outcomes``."""
        cancelled: set[tuple[Deliver, int]] = set()
        for message in taken(self._inbox):
            if isinstance(message, Score):
                self._scheduler.add_score(message)
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
                    self._scheduler.waiting.add(sequence)
                else:
                    outcomes.append((sequence, RequestError(reason)))
        if cancelled:
            ended = {m for m in self._inside if (m.deliver, m.number) in cancelled}
            self._scheduler.remove(ended)
            outcomes += [(sequence, sequence.generated("cancelled")) for sequence in ended]

    def _refusal(
        self, request: Request, sequence: SequenceState | None = None, *, room: int = 0
    ) -> str | None:
        """Why a request cannot be served, or None; sets the weights of ``sequence`` if given."""
        try:
            if sequence is not None:
                sequence.live = self._scheduler.adapters.find(request.adapter)
            return self._check.refusal(request, room=room)
        except RequestError as error:
            return str(error)
        except Exception as error:  # one bad request never stops the engine
            return f"the request is broken: {error!r}"

    def _answer(self, outcomes: Sequence[Outcome]) -> None:
        """Deliver results; a sequence with a final result leaves the engine."""
        claimed: list[Outcome] = []
        for sequence, result in outcomes:
            if sequence not in self._inside:
                continue
            claimed.append((sequence, result))
            if not isinstance(result, Progress):
                self._inside.remove(sequence)
                self._answered += 1
                if sequence.tokens:  # otherwise any name may come, or no name at all
                    adapter = adapter_name(sequence.request.adapter)
                    self._drawn[adapter] += len(sequence.tokens)
                self._scheduler.budget.give_back(sequence)
        deliver_all(claimed)
        if self._scheduler.adapters.retired:
            self._scheduler.tidy(self._inside)

    def _give_up(self) -> None:
        """On the closing thread: answer all requests, whose step never ends."""
        self._worker.abandon()
        closed, inside = EngineError("the engine was closed; its step does not end"), self._inside
        self._inside = set()  # so the step delivers nothing if it ends after all
        self._scheduler.scores.fail(closed)
        deliver_all([(sequence, closed) for sequence in inside])
        refuse_all(self._inbox)

    def _end(self) -> None:
        """Answer all requests, inside or still queued, with an error."""
        self._scheduler.clear()
        closed = EngineError("the engine was closed")
        self._scheduler.scores.fail(closed)
        self._answer([(sequence, closed) for sequence in self._inside])
        refuse_all(self._inbox)
