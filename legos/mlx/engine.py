"""The engine: continuous batching in which every distinct row of tokens is computed once.

Requests whose tokens so far are equal are *members* of one row. A row is prefilled once, and each
member draws its own next token from the row's distribution; where members draw different tokens the
row forks. Games that repeat a few prompts thousands of times, groups of samples of one prompt, and
plain batches are all the same case.

A request is *inside* from its submission until it is answered. It waits under its tokens for a
forward pass, is decoded with the rows, and may wait again where its row forked into more rows than
fit. Whatever happens, leaving is one act, so that every number is delivered exactly once.

All methods named ``_x`` run on the worker that owns the module tree.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import TypeVar

import mlx.core as mx
import mlx.nn as nn

from legos.data.request import Request, Result
from legos.errors import AdapterError, EngineError, LegosError, RequestError
from legos.mlx.forward import CausalModel
from legos.mlx.lora import check_fits, lora_arrays, set_lora_arrays
from legos.mlx.members import Member, refusal
from legos.mlx.prefill import Prefilled, prefill
from legos.mlx.rows import DecodingRows, Fork
from legos.mlx.sampler import Drawn, Row, Sampler
from legos.mlx.score import score_rows
from legos.mlx.worker import Worker
from legos.protocols import Deliver
from legos.weights.adapter import Adapter, AdapterInfo

__all__ = ["MlxEngine"]

logger = logging.getLogger(__name__)
Tokens = tuple[int, ...]
Message = tuple[Deliver, Sequence[tuple[int, Request]] | frozenset[int]]
"""Requests that come in, or the numbers of those to be cancelled."""
T = TypeVar("T")


class MlxEngine:
    """Generates for one model and its live adapter; safe to call from any thread.

    Attributes:
        rows_computed: rows that went through the model so far, prefill and decode.
        spans: when the device computed, while recording is on.
    """

    def __init__(
        self,
        worker: Worker,
        model: nn.Module,
        *,
        num_vocabulary: int,
        context: int,
        max_rows: int = 256,
        prefill_tokens: int = 4096,
    ) -> None:
        """Take over a module tree that the worker's thread has built, LoRA already in it.

        Args:
            worker: runs everything that touches the tree.
            model: the tree.
            num_vocabulary: V; prompts with other token ids are refused.
            context: longest prompt plus completion, tokens.
            max_rows: distinct rows decoded at once.
            prefill_tokens: padded prompt tokens of one forward pass.
        """
        self._worker = worker
        self._model = model
        self._forward = worker.call(CausalModel, model).result()
        self._num_vocabulary = num_vocabulary
        self._context = context
        self._max_rows = max_rows
        self._prefill_tokens = prefill_tokens
        self._sampler = Sampler(num_vocabulary)
        self._live: AdapterInfo | None = None
        self._inbox: deque[Message] = deque()
        self._inside: set[Member] = set()
        self._waiting: dict[Tokens, list[Member]] = {}
        self._rows = DecodingRows()
        self._closed = False
        self.rows_computed = 0
        self.spans = self._sampler.spans
        worker.set_tick(self._tick)

    @property
    def tokens_generated(self) -> int:
        """Tokens drawn so far; their number over ``rows_computed`` is what sharing saves."""
        return self._sampler.draws

    def submit(self, requests: Sequence[tuple[int, Request]], deliver: Deliver) -> None:
        """Queue requests; each number is delivered once, from the worker's thread.

        Once the engine is closed it is delivered with ``EngineError``, from the calling thread.
        """
        self._inbox.append((deliver, requests))
        if self._closed:
            self._refuse_inbox()
        else:
            self._worker.wake()

    def cancel(self, numbers: Sequence[int], deliver: Deliver) -> None:
        """End requests early; each is delivered as it is, with finish reason "cancelled"."""
        self._inbox.append((deliver, frozenset(numbers)))
        self._worker.wake()

    def load_adapter(self, adapter: Adapter) -> "Future[AdapterInfo]":
        """Make an adapter live between two steps; running requests for its name go on under it.

        Those for another name are answered with ``RequestError``: one adapter is live at a time.
        The future raises ``AdapterError`` where it does not fit; what was live before stays.
        """
        return self._worker.call(self._load, adapter)

    def drop_adapter(self, name: str) -> "Future[None]":
        """Forget a named adapter; running requests for it are answered with ``RequestError``.

        The future raises ``AdapterError`` where no adapter of that name is live.
        """
        return self._worker.call(self._drop, name)

    def versions(self) -> Mapping[str, int]:
        """Live adapter name -> policy version."""
        live = self._live
        return {live.name: live.version} if live else {}

    def score(
        self,
        prompts: Sequence[tuple[Tokens, Sequence[Tokens]]],
        *,
        end_ids: Sequence[int],
    ) -> "Future[list[list[float]]]":
        """Log-probability (nats, temperature 1) of each continuation as the whole answer.

        Args:
            prompts: prompt token ids, and the continuations to score after it. A continuation that
                is the beginning of another one is scored with the end of text after it.
            end_ids: the model's end-of-text ids.
        """
        return self._worker.call(self._score, prompts, tuple(end_ids))

    def run(self, work: Callable[[nn.Module], T]) -> "Future[T]":
        """Run a function of the module tree on the engine's thread; for benches and checks."""
        return self._worker.call(work, self._model)

    def close(self) -> None:
        """End; every waiting request is answered with ``EngineError``. A second time: nothing."""
        if not self._closed:
            self._closed = True
            self._worker.call(self._end).result()
            self._worker.close()

    def _load(self, adapter: Adapter) -> AdapterInfo:
        arrays = {name: mx.array(array) for name, array in adapter.arrays.items()}
        check_fits(arrays, lora_arrays(self._model), name=f"{adapter.name} v{adapter.version}")
        mx.eval(list(arrays.values()))
        self._switch(arrays, adapter.info)
        return adapter.info

    def _drop(self, name: str) -> None:
        if self._live is None or self._live.name != name:
            raise AdapterError(f"adapter {name!r} is not live; live: {dict(self.versions())}")
        zeros = {key: mx.zeros_like(array) for key, array in lora_arrays(self._model).items()}
        mx.eval(list(zeros.values()))
        self._switch(zeros, None)

    def _switch(self, arrays: Mapping[str, mx.array], live: AdapterInfo | None) -> None:
        """Other weights from here on."""
        set_lora_arrays(self._model, dict(arrays))
        self._sampler.forget()
        self._live = live
        name = live.name if live else None
        lost = {member for member in self._inside if member.request.adapter != name}
        if lost:
            error = RequestError(f"its adapter was replaced while it ran; live: {self.versions()}")
            self._remove(lost)
            self._answer([(member, error) for member in lost])

    def _score(
        self, prompts: Sequence[tuple[Tokens, Sequence[Tokens]]], end_ids: Tokens
    ) -> list[list[float]]:
        for prompt, answers in prompts:
            for answer in answers:
                whole = Request(prompt_ids=prompt + answer, max_tokens=1)
                reason = refusal(
                    whole, num_vocabulary=self._num_vocabulary, context=self._context + 1
                )
                if reason is not None or not prompt:
                    raise RequestError(f"cannot score: {reason or 'the prompt is empty'}")
        return score_rows(self._forward, prompts, end_ids, self._prefill_tokens)

    def _tick(self) -> bool:
        """Accept, decode one token of every row, prefill what waits; True while work is left."""
        if self._closed:
            self._end()
            return False
        finished: list[tuple[Member, Result]] = []
        try:
            self._accept(finished)
            if self._rows:
                self._decode(finished)
            if self._waiting:
                self._start(finished)
        except Exception as error:
            logger.exception(
                "a step of the engine failed; its requests are answered with the error"
            )
            failure = EngineError(f"a step of the engine failed: {error!r}")
            finished += [(member, failure) for member in self._inside]
            self._rows.clear()
            self._waiting.clear()
        self._answer(finished)
        return bool(self._rows or self._waiting or self._inbox)

    def _accept(self, finished: list[tuple[Member, Result]]) -> None:
        """Take in what was submitted; what was cancelled goes."""
        cancelled: set[tuple[Deliver, int]] = set()
        for deliver, requests in self._messages():
            if isinstance(requests, frozenset):
                cancelled |= {(deliver, number) for number in requests}
                continue
            for number, request in requests:
                member = Member(number, request, deliver)
                self._inside.add(member)
                reason = self._refusal(request)
                if reason is None:
                    self._waiting.setdefault(request.prompt_ids, []).append(member)
                else:
                    finished.append((member, RequestError(reason)))
        if cancelled:
            gone = {m for m in self._inside if (m.deliver, m.number) in cancelled}
            self._remove(gone)
            finished += [(member, member.generated("cancelled")) for member in gone]

    def _refusal(self, request: Request) -> str | None:
        """Why a request cannot be served, or None."""
        if request.adapter not in self.versions():
            return f"adapter {request.adapter!r} is not live; live: {dict(self.versions())}"
        try:
            return refusal(request, num_vocabulary=self._num_vocabulary, context=self._context)
        except Exception as error:  # one bad request never stops the engine
            return f"the request is broken: {error!r}"

    def _start(self, finished: list[tuple[Member, Result]]) -> None:
        """Next tokens of what waits: of remembered rows at once, of others after a forward pass."""
        final: list[Tokens] = []
        longer: list[Tokens] = []
        known: list[Row] = []
        for tokens, members in self._waiting.items():
            if not all(member.last_draw for member in members):
                longer.append(tokens)
            elif self._sampler.knows(tokens, members):
                known.append((tokens, members, -1))
            else:
                final.append(tokens)
        if known:
            drawn = self._sampler.draw_known(known)
            for tokens, _, _ in known:
                del self._waiting[tokens]
            self._advance(known, drawn, finished)
        room = max(self._max_rows - len(self._rows), 0)
        for block in prefill(self._forward, final, longer[:room], max_tokens=self._prefill_tokens):
            self._begin(block, finished)
            if self._inbox or self._closed:
                break

    def _begin(self, block: Prefilled, finished: list[tuple[Member, Result]]) -> None:
        """Draw for freshly computed rows; those that go on are decoded, or wait for room."""
        self.rows_computed += len(block.rows)
        rows = [(t, self._waiting[t], index) for index, t in enumerate(block.rows)]
        drawn = self._sampler.draw(rows, block.logits, remember=True)
        for tokens in block.rows:
            del self._waiting[tokens]
        forks = self._advance(rows, drawn, finished)
        room = max(self._max_rows - len(self._rows), 0) if block.cache else 0
        self._rows.join(block.cache, forks[:room], len(rows))
        self._wait(forks[room:])

    def _decode(self, finished: list[tuple[Member, Result]]) -> None:
        """One more token for every member of every row."""
        logits = self._rows.next_logits(self._forward)
        self.rows_computed += len(self._rows)
        rows = self._rows.listed()
        forks = self._advance(rows, self._sampler.draw(rows, logits, remember=False), finished)
        self._rows.fork(forks[: self._max_rows])
        self._wait(forks[self._max_rows :])

    def _advance(
        self, rows: Sequence[Row], drawn: Drawn, finished: list[tuple[Member, Result]]
    ) -> list[Fork]:
        """Give every member its token; returns the rows that go on."""
        version = self._live.version if self._live else 0
        forks: dict[tuple[int, int], list[Member]] = {}
        tokens = zip(*drawn, strict=True)
        for _, members, index in rows:
            for member in members:
                token, logprob = next(tokens)
                try:
                    reason = member.add(token, logprob, version)
                except LegosError as error:  # its draw, its grammar or its stop test failed
                    finished.append((member, error))
                    continue
                if reason is None:
                    forks.setdefault((index, token), []).append(member)
                else:
                    finished.append((member, member.generated(reason)))
        return [(index, members) for (index, _), members in forks.items()]

    def _wait(self, forks: Sequence[Fork]) -> None:
        """Have rows that do not fit computed again later."""
        for _, members in forks:
            tokens = members[0].request.prompt_ids + members[0].tokens
            self._waiting.setdefault(tokens, []).extend(members)

    def _remove(self, gone: set[Member]) -> None:
        """Take members out of wherever they are; they are still to be answered."""
        for tokens, members in list(self._waiting.items()):
            members[:] = [member for member in members if member not in gone]
            if not members:
                del self._waiting[tokens]
        self._rows.remove(gone)

    def _answer(self, finished: Sequence[tuple[Member, Result]]) -> None:
        """Let members leave, each once, and hand their results to whoever submitted them."""
        by_receiver: dict[Deliver, list[tuple[int, Result]]] = {}
        for member, result in finished:
            if member in self._inside:
                self._inside.remove(member)
                by_receiver.setdefault(member.deliver, []).append((member.number, result))
        for deliver, results in by_receiver.items():
            try:
                deliver(results)
            except Exception:
                logger.exception("a receiver of results failed; the engine goes on")

    def _end(self) -> None:
        """Answer everybody inside, and whoever came before the worker closed."""
        self._rows.clear()
        self._waiting.clear()
        closed = EngineError("the engine was closed")
        self._answer([(member, closed) for member in self._inside])
        self._refuse_inbox()

    def _refuse_inbox(self) -> None:
        """Answer what nobody will take in any more; from any thread."""
        for deliver, requests in self._messages():
            if not isinstance(requests, frozenset):
                closed = EngineError("the engine was closed")
                deliver([(number, closed) for number, _ in requests])

    def _messages(self) -> Iterator[Message]:
        """Everything in the inbox, each message to one thread alone."""
        while True:
            try:
                yield self._inbox.popleft()
            except IndexError:
                return
