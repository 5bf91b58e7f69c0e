"""The engine: continuous batching in which every distinct row of tokens is computed once.

Requests whose tokens so far are equal, under the same weights, are *members* of one row. A row is
prefilled once, and each member draws its own next token from the row's distribution; where members
draw different tokens the row forks. Games that repeat a few prompts thousands of times, groups of
samples of one prompt, and plain batches are all the same case.

A request is *inside* from its submission until it is answered. It waits under its tokens for a
forward pass, is decoded with the rows, and may wait again where its row forked into more rows than
fit. Whatever happens, leaving is one act, so that every number is delivered exactly once.

    tick   take in what came · one token for every row · one chunk of what is being prefilled

All methods named ``_x`` run on the worker that owns the module tree.
"""

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

import mlx.core as mx
import mlx.nn as nn

from legos.data.request import Request, Result
from legos.errors import EngineError, RequestError
from legos.mlx.admission import measured_budget
from legos.mlx.forward import CausalModel
from legos.mlx.live import InFlight, LiveAdapters
from legos.mlx.members import Member, refusal
from legos.mlx.prefill import last_logits
from legos.mlx.prefix import PrefixCache
from legos.mlx.rows import DecodingRows, Fork
from legos.mlx.sampler import Drawn, Row, Sampler
from legos.mlx.score import score_rows
from legos.mlx.slots import AdapterSlots
from legos.mlx.waiting import Block, WaitingRows
from legos.mlx.worker import Worker
from legos.protocols import Deliver
from legos.weights.adapter import Adapter, AdapterInfo

__all__ = ["MlxEngine"]

logger = logging.getLogger(__name__)
Tokens = tuple[int, ...]
Message = tuple[Deliver, Sequence[tuple[int, Request]] | frozenset[int]]
"""Requests that come in, or the numbers of those to be cancelled."""
Finished = list[tuple[Member, Result]]
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
        max_rows: int = 256,
        prefill_tokens: int = 4096,
        chunk_tokens: int = 512,
        cache_bytes: int = 1 << 30,
        prefix_bytes: int = 1 << 28,
        in_flight: InFlight = "switch",
    ) -> None:
        """Take over a module tree that the worker's thread has built, without LoRA.

        Args:
            worker: runs everything that touches the tree.
            model: the tree.
            num_vocabulary: V; prompts with other token ids are refused.
            context: longest prompt plus completion, tokens.
            max_rows: distinct rows decoded at once.
            prefill_tokens: padded prompt tokens of one forward pass while nothing is decoded.
            chunk_tokens: the same while rows are decoded, which wait for it.
            cache_bytes: keys and values of the rows being decoded.
            prefix_bytes: keys and values kept for prompts that begin with them; 0 keeps none.
            in_flight: what a new version does to running requests (see ``legos.mlx.live``).
        """
        self._worker = worker
        self._model = model
        self._forward = worker.call(CausalModel, model).result()
        self._num_vocabulary = num_vocabulary
        self._context = context
        self._prefill_tokens, self._chunk_tokens = prefill_tokens, chunk_tokens
        self._slots = worker.call(AdapterSlots, model).result()
        self._adapters = LiveAdapters(self._slots, in_flight=in_flight)
        self._sampler = Sampler(num_vocabulary)
        self._prefixes = PrefixCache(prefix_bytes)
        self._budget = worker.call(measured_budget, model, cache_bytes).result()
        self._inbox: deque[Message] = deque()
        self._inside: set[Member] = set()
        self._waiting = WaitingRows(
            self._forward, self._slots, self._prefixes, self._budget, prefill_tokens
        )
        self._rows = DecodingRows(self._slots, max_rows)
        self._heard: list[tuple[Member, Result]] = []
        self._closed = False
        self._tick_began: float | None = None
        self.swaps = 0
        self.spans = self._sampler.spans
        worker.set_tick(self._tick)

    @property
    def rows_computed(self) -> int:
        """Rows that went through the model so far, prefill and decode."""
        return self._waiting.rows_computed + self._rows.rows_computed

    @property
    def tokens_generated(self) -> int:
        """Tokens drawn so far; their number over ``rows_computed`` is what sharing saves."""
        return self._sampler.draws

    @property
    def alive(self) -> bool:
        """Whether requests can still be answered."""
        return not self._closed and self._worker.alive

    @property
    def busy_s(self) -> float:
        """Seconds since the step that runs now began; 0 between two steps."""
        began = self._tick_began
        return 0.0 if began is None else time.monotonic() - began

    def stats(self) -> Mapping[str, float]:
        """What it has done and holds now: counts end in ``_total``, sizes in ``_bytes``.

        Raises:
            EngineError: it is closed, or its thread has died.
        """
        if not self.alive:
            raise EngineError("the engine was closed, or its thread has died")
        return {
            "requests_running": len(self._inside),
            "requests_waiting": len(self._waiting) + len(self._inbox),
            "rows_decoding": len(self._rows),
            "rows_computed_total": self.rows_computed,
            "tokens_generated_total": self.tokens_generated,
            "prompt_tokens_total": self._waiting.tokens_asked,
            "prefill_tokens_total": self._waiting.tokens_computed,
            "prefix_tokens_total": self._waiting.tokens_reused,
            "prefix_entries": len(self._prefixes),
            "prefix_bytes": self._prefixes.num_bytes,
            "reserved_cache_bytes": self._budget.taken,
            "adapter_swaps_total": self.swaps,
            "active_memory_bytes": mx.get_active_memory(),
            "unused_memory_bytes": mx.get_cache_memory(),
            "peak_memory_bytes": mx.get_peak_memory(),
        }

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
        """Live adapter name -> policy version."""
        return {name: info.version for name, info in self._adapters.infos.items()}

    def adapters(self) -> Mapping[str, AdapterInfo]:
        """Live adapter name -> its version and digest."""
        return self._adapters.infos

    def score(
        self,
        prompts: Sequence[tuple[Tokens, Sequence[Tokens]]],
        *,
        end_ids: Sequence[int],
        adapter: str = "policy",
    ) -> "Future[list[list[float]]]":
        """Log-probability (nats, temperature 1) of each continuation as the whole answer.

        Args:
            prompts: prompt token ids, and the continuations to score after it. A continuation that
                is the beginning of another one is scored with the end of text after it.
            end_ids: the model's end-of-text ids.
            adapter: whose probabilities.
        """
        return self._worker.call(self._score, prompts, tuple(end_ids), adapter)

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
        """Give up an engine whose thread no longer answers; nothing is waited for."""
        self._closed = True
        self._worker.abandon()

    def _load(self, adapter: Adapter) -> AdapterInfo:
        live = self._adapters.load(adapter)
        self._waiting.interrupt(live)
        self._tidy()
        self.swaps += 1
        return adapter.info

    def _drop(self, name: str) -> None:
        self._adapters.drop(name)
        self._tidy()

    def _tidy(self) -> None:
        """Let go of weights that nobody speaks through, and of what they made."""
        self._adapters.free_unused({member.live for member in self._inside})
        self._prefixes.keep_only(self._adapters.epochs)

    def _score(
        self,
        prompts: Sequence[tuple[Tokens, Sequence[Tokens]]],
        end_ids: Tokens,
        adapter: str,
    ) -> list[list[float]]:
        slot = self._adapters.find(adapter).slot
        for prompt, answers in prompts:
            for answer in answers:
                whole = Request(prompt_ids=prompt + answer, max_tokens=1)
                reason = self._refusal(whole, room=1)
                if reason is not None or not prompt:
                    raise RequestError(f"cannot score: {reason or 'the prompt is empty'}")

        def logits(rows: Sequence[Tokens]) -> mx.array:
            with self._slots.rows([slot] * len(rows)):
                return last_logits(self._forward, rows)

        return score_rows(logits, prompts, end_ids, self._prefill_tokens)

    def _tick(self) -> bool:
        """Accept, decode one token of every row, prefill what waits; True while work is left."""
        if self._closed:
            self._end()
            return False
        self._tick_began = time.monotonic()
        finished: Finished = []
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
        self._tick_began = None
        return bool(self._rows or self._waiting or self._inbox)

    def _accept(self, finished: Finished) -> None:
        """Take in what was submitted; what was cancelled goes."""
        cancelled: set[tuple[Deliver, int]] = set()
        for deliver, requests in self._messages():
            if isinstance(requests, frozenset):
                cancelled |= {(deliver, number) for number in requests}
                continue
            for number, request in requests:
                member = Member(number, request, deliver)
                self._inside.add(member)
                reason = self._refusal(request, member)
                if reason is None:
                    self._waiting.add(member)
                else:
                    finished.append((member, RequestError(reason)))
        if cancelled:
            gone = {m for m in self._inside if (m.deliver, m.number) in cancelled}
            self._waiting.remove(gone)
            self._rows.remove(gone)
            finished += [(member, member.generated("cancelled")) for member in gone]

    def _refusal(
        self, request: Request, member: Member | None = None, *, room: int = 0
    ) -> str | None:
        """Why a request cannot be served, or None; finds a member's adapter."""
        try:
            if member is not None:
                member.live = self._adapters.find(request.adapter)
            return refusal(
                request, num_vocabulary=self._num_vocabulary, context=self._context + room
            )
        except RequestError as error:
            return str(error)
        except Exception as error:  # one bad request never stops the engine
            return f"the request is broken: {error!r}"

    def _start(self, finished: Finished) -> None:
        """Next tokens of what waits: of remembered rows at once, of others after a forward pass."""
        known = self._waiting.known(self._sampler)
        if known:
            self._advance(known, self._sampler.draw_known(known), finished)
        busy = bool(self._rows)
        max_tokens = self._chunk_tokens if busy else self._prefill_tokens
        while block := self._waiting.last_draws(max_tokens):
            self._begin(block, finished)
            if busy or self._inbox or self._closed:
                break
        block = self._waiting.prefilled(self._rows.room, max_tokens)
        if block is not None:
            self._begin(block, finished)

    def _begin(self, block: Block, finished: Finished) -> None:
        """Draw for freshly computed rows; those that go on are decoded, or wait for room."""
        drawn = self._sampler.draw(block.rows, block.logits, remember=True)
        self._keep(block.rows, block.cache)
        forks = self._advance(block.rows, drawn, finished)
        self._wait(self._rows.join(block.cache, forks, block.logits.shape[0]))

    def _decode(self, finished: Finished) -> None:
        """One more token for every member of every row."""
        rows = self._rows.listed()
        logits = self._rows.next_logits(self._forward)
        forks = self._advance(rows, self._sampler.draw(rows, logits, remember=False), finished)
        on = {index for index, _ in forks}
        self._keep([row for row in rows if row[2] not in on], self._rows.cache)
        self._wait(self._rows.fork(forks))

    def _keep(self, rows: Sequence[Row], cache: Sequence[Any]) -> None:
        """Keep keys and values of rows for prompts that begin with their tokens."""
        kept: list[Any] = []
        for (epoch, tokens), members, index in rows if cache else ():
            if members[0].live.epoch == epoch and self._prefixes.wants(epoch, tokens):
                row = [layer.extract(index) for layer in cache]
                self._prefixes.add(epoch, tokens, row)
                kept += [layer.state for layer in row]
        if kept:
            mx.eval(kept)

    def _advance(self, rows: Sequence[Row], drawn: Drawn, finished: Finished) -> list[Fork]:
        """Give every member its token; returns the rows that go on."""
        forks: dict[tuple[int, int], list[Member]] = {}
        tokens = zip(*drawn, strict=True)
        for _, members, index in rows:
            version = members[0].live.version
            for member in members:
                token, logprob = next(tokens)
                try:
                    reason = member.add(token, logprob, version)
                except Exception as error:  # the request's own stop test
                    finished.append((member, RequestError(f"its stop test failed: {error!r}")))
                    continue
                if member.request.stream:
                    self._heard.append((member, member.progress()))
                if reason is None:
                    forks.setdefault((index, token), []).append(member)
                else:
                    finished.append((member, member.generated(reason)))
        return [(index, members) for (index, _), members in forks.items()]

    def _wait(self, forks: Sequence[Fork]) -> None:
        """Have rows that do not fit computed again later."""
        for _, members in forks:
            for member in members:
                self._waiting.add(member)

    def _answer(self, finished: Finished) -> None:
        """Tell streams of their tokens, and let members leave, each once."""
        by_receiver: dict[Deliver, list[tuple[int, Result]]] = {}
        for member, progress in self._heard:
            if member in self._inside:
                by_receiver.setdefault(member.deliver, []).append((member.number, progress))
        self._heard.clear()
        for member, result in finished:
            if member in self._inside:
                self._inside.remove(member)
                self._budget.give_back(member)
                by_receiver.setdefault(member.deliver, []).append((member.number, result))
        for deliver, results in by_receiver.items():
            try:
                deliver(results)
            except Exception:
                logger.exception("a receiver of results failed; the engine goes on")
        if self._adapters.any_retired:
            self._tidy()

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
