"""The engine: continuous batching in which every distinct row of tokens is computed once.

Requests whose tokens so far are equal are *members* of one row. A row is prefilled once, and each
member draws its own next token from the row's distribution; where members draw different tokens the
row forks. Games that repeat a few prompts thousands of times, groups of samples of one prompt, and
plain batches are all the same case. Distributions are remembered for as long as the weights stand,
so a prompt that comes again is not computed again.

All methods named ``_x`` run on the worker that owns the module tree.
"""

import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from legos.data.request import Generated, Request
from legos.errors import AdapterError, EngineError, RequestError
from legos.mlx.draw import distributions, draw, namespace
from legos.mlx.forward import CausalModel
from legos.mlx.lora import check_fits, lora_arrays, set_lora_arrays
from legos.mlx.members import Member
from legos.mlx.prefill import prefill
from legos.mlx.score import score_rows
from legos.mlx.spans import Spans
from legos.mlx.worker import Worker
from legos.protocols import Deliver
from legos.weights.adapter import Adapter, AdapterInfo

__all__ = ["MlxEngine"]

logger = logging.getLogger(__name__)
Result = Generated | Exception
T = TypeVar("T")
KNOWN_BYTES = 64 << 20  # of remembered distributions


class MlxEngine:
    """Generates for one model and its live adapter; safe to call from any thread."""

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
        self._forward = CausalModel(model)
        self._num_vocabulary = num_vocabulary
        self._context = context
        self._max_rows = max_rows
        self._prefill_tokens = prefill_tokens
        self._xp = namespace(num_vocabulary)
        self._live: AdapterInfo | None = None
        self._inbox: deque[tuple[Deliver, Sequence[tuple[int, Request]] | frozenset[int]]] = deque()
        self._waiting: dict[tuple[int, ...], list[Member]] = {}
        self._rows: list[list[Member]] = []
        self._cache: list[Any] = []
        self._known: OrderedDict[Any, tuple[Any, Any]] = OrderedDict()
        self._known_limit = KNOWN_BYTES // (8 * num_vocabulary) if self._xp is np else 0
        self.spans = Spans()
        self.tokens_generated = 0
        self.rows_computed = 0  # rows that went through the model, prefill and decode
        self.draws = 0  # tokens drawn; draws / rows_computed is what sharing saves
        worker.set_tick(self._tick)

    def submit(self, requests: Sequence[tuple[int, Request]], deliver: Deliver) -> None:
        """Queue requests; each number is delivered once, from the worker's thread."""
        self._inbox.append((deliver, requests))
        self._worker.wake()

    def cancel(self, numbers: Sequence[int], deliver: Deliver) -> None:
        """End requests early; each is delivered as it is, with finish reason "cancelled"."""
        self._inbox.append((deliver, frozenset(numbers)))
        self._worker.wake()

    def load_adapter(self, adapter: Adapter) -> "Future[AdapterInfo]":
        """Make an adapter live between two steps; running requests go on under it.

        The future raises ``AdapterError`` where it does not fit; what was live before stays.
        """
        return self._worker.call(self._load, adapter)

    def drop_adapter(self, name: str) -> "Future[None]":
        """Forget a named adapter: requests get the base model until another is loaded.

        The future raises ``AdapterError`` where no adapter of that name is live.
        """
        return self._worker.call(self._drop, name)

    def versions(self) -> Mapping[str, int]:
        """Live adapter name -> policy version."""
        return {self._live.name: self._live.version} if self._live else {}

    def score(
        self,
        prompts: Sequence[tuple[tuple[int, ...], Sequence[tuple[int, ...]]]],
        *,
        end_ids: Sequence[int],
    ) -> "Future[list[list[float]]]":
        """Log-probability (nats, temperature 1) of each continuation as the whole answer.

        Args:
            prompts: prompt token ids, and the continuations to score after it. A continuation that
                is the beginning of another one is scored with the end of text after it.
            end_ids: the model's end-of-text ids.
        """
        rows = self._prefill_tokens
        return self._worker.call(score_rows, self._forward, prompts, tuple(end_ids), rows)

    def run(self, work: Callable[[nn.Module], T]) -> "Future[T]":
        """Run a function of the module tree on the engine's thread; for benches and checks."""
        return self._worker.call(work, self._model)

    def close(self) -> None:
        """End; every waiting request is answered with ``EngineError``."""
        self._worker.call(self._fail_all, EngineError("the engine was closed")).result()
        self._worker.close()

    def _load(self, adapter: Adapter) -> AdapterInfo:
        arrays = {name: mx.array(array) for name, array in adapter.arrays.items()}
        check_fits(arrays, lora_arrays(self._model), name=f"{adapter.name} v{adapter.version}")
        mx.eval(list(arrays.values()))
        set_lora_arrays(self._model, arrays)
        self._known.clear()
        self._live = adapter.info
        return self._live

    def _drop(self, name: str) -> None:
        if self._live is None or self._live.name != name:
            raise AdapterError(f"adapter {name!r} is not live; live: {dict(self.versions())}")
        zeros = {key: mx.zeros_like(array) for key, array in lora_arrays(self._model).items()}
        mx.eval(list(zeros.values()))
        set_lora_arrays(self._model, zeros)
        self._known.clear()
        self._live = None

    def _tick(self) -> bool:
        """Accept, decode one token of every row, prefill what waits; True while work is left."""
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
            self._fail_all(EngineError(f"a step of the engine failed: {error!r}"))
        _deliver(finished)
        return bool(self._rows or self._waiting or self._inbox)

    def _accept(self, finished: list[tuple[Member, Result]]) -> None:
        while self._inbox:
            deliver, requests = self._inbox.popleft()
            if isinstance(requests, frozenset):
                self._cancel(deliver, requests, finished)
                continue
            for number, request in requests:
                member = Member(number, request, deliver)
                reason = self._refusal(request)
                if reason is None:
                    self._waiting.setdefault(request.prompt_ids, []).append(member)
                else:
                    finished.append((member, RequestError(reason)))

    def _cancel(
        self, deliver: Deliver, numbers: frozenset[int], finished: list[tuple[Member, Result]]
    ) -> None:
        """Take members out of whatever row they share; a row without members goes."""

        def staying(members: list[Member]) -> list[Member]:
            mine = [m for m in members if m.number in numbers and m.deliver == deliver]
            finished.extend((member, member.generated("cancelled")) for member in mine)
            return [m for m in members if m not in mine]

        waiting = {tokens: staying(members) for tokens, members in self._waiting.items()}
        self._waiting = {tokens: members for tokens, members in waiting.items() if members}
        rows = [staying(members) for members in self._rows]
        kept = [index for index, members in enumerate(rows) if members]
        self._keep(self._cache, kept, len(rows))
        self._rows = [rows[index] for index in kept]
        if not self._rows:
            self._cache = []

    def _refusal(self, request: Request) -> str | None:
        """Why a request cannot be served, or None."""
        prompt = request.prompt_ids
        if not prompt:
            return "the prompt is empty; expected at least one token"
        if min(prompt) < 0 or max(prompt) >= self._num_vocabulary:
            return (
                f"the prompt holds token {max(prompt)}; the vocabulary has {self._num_vocabulary}"
            )
        if len(prompt) + request.max_tokens > self._context:
            return (
                f"{len(prompt)} prompt tokens and max_tokens {request.max_tokens} exceed the "
                f"context of {self._context}; shorten one of them"
            )
        if request.adapter not in self.versions():
            return f"adapter {request.adapter!r} is not live; live: {dict(self.versions())}"
        return None

    def _start(self, finished: list[tuple[Member, Result]]) -> None:
        """First tokens: of remembered rows at once, of new rows after a forward pass."""
        final: list[tuple[int, ...]] = []
        longer: list[tuple[int, ...]] = []
        ready: list[tuple[tuple[int, ...], list[Member], int]] = []
        for tokens, members in self._waiting.items():
            if not all(member.last_draw for member in members):
                longer.append(tokens)
            elif all(self._key(tokens, member) in self._known for member in members):
                ready.append((tokens, members, -1))
            else:
                final.append(tokens)
        room = self._max_rows - len(self._rows)
        blocks = prefill(
            self._forward, final, longer[: max(room, 0)], max_tokens=self._prefill_tokens
        )
        for tokens, _, _ in ready:
            del self._waiting[tokens]
        self._draw_rows(ready, None, finished)
        for block in blocks:
            self.rows_computed += len(block.rows)
            members = [self._waiting.pop(tokens) for tokens in block.rows]
            started = [(t, m, i) for i, (t, m) in enumerate(zip(block.rows, members, strict=True))]
            forks = self._draw_rows(started, block.logits, finished)
            if block.cache:
                self._join(block.cache, forks, len(block.rows))

    def _decode(self, finished: list[tuple[Member, Result]]) -> None:
        """One more token for every member of every row."""
        inputs = mx.array([members[0].tokens[-1] for members in self._rows])
        logits = self._forward.next_logits(inputs, self._cache)
        self.rows_computed += len(self._rows)
        rows = [
            (members[0].request.prompt_ids + members[0].tokens, members, index)
            for index, members in enumerate(self._rows)
        ]
        forks = self._draw_rows(rows, logits, finished)
        self._rows = [members for _, members in forks]
        self._keep(self._cache, [index for index, _ in forks], len(rows))
        if not self._rows:
            self._cache = []

    def _join(self, cache: list[Any], forks: list[tuple[int, list[Member]]], count: int) -> None:
        """Add freshly prefilled rows, forked as their members drew, to the rows being decoded."""
        if not forks:
            return
        self._keep(cache, [index for index, _ in forks], count)
        if self._cache:
            for old, new in zip(self._cache, cache, strict=True):
                old.extend(new)
        else:
            self._cache = cache
        self._rows += [members for _, members in forks]

    @staticmethod
    def _keep(cache: list[Any], indices: list[int], count: int) -> None:
        """Drop and fork cache rows: row i afterwards is row ``indices[i]`` before."""
        if indices and indices != list(range(count)):
            for layer in cache:
                layer.filter(indices)

    def _draw_rows(
        self,
        rows: Sequence[tuple[tuple[int, ...], list[Member], int]],
        logits: mx.array | None,
        finished: list[tuple[Member, Result]],
    ) -> list[tuple[int, list[Member]]]:
        """Draw one token for each member; returns the rows that go on: (index, members) each.

        Args:
            rows: tokens, members, and index into ``logits``, or -1 where all are remembered.
            logits: [B, V] of the rows.
            finished: where members that end are put.
        """
        if not rows:
            return []
        keys, which, members = self._plan(rows)
        logprobs, cumulative = self._distributions(keys, logits)
        tokens, chosen = draw(
            self._xp,
            logprobs,
            cumulative,
            which=np.array(which),
            seeds=[member.request.seed for member in members],
            positions=[len(member.tokens) for member in members],
        )
        self.draws += len(members)
        self.tokens_generated += len(members)
        version = self._live.version if self._live else 0
        going: dict[tuple[int, int], list[Member]] = {}
        number = 0
        for _, sharing, index in rows:
            for member in sharing:
                reason = member.add(tokens[number], chosen[number], version)
                if reason is None:
                    going.setdefault((index, tokens[number]), []).append(member)
                else:
                    finished.append((member, member.generated(reason)))
                number += 1
        return [(index, sharing) for (index, _), sharing in going.items()]

    def _plan(
        self, rows: Sequence[tuple[tuple[int, ...], list[Member], int]]
    ) -> tuple[dict[Any, tuple[int, Member]], list[int], list[Member]]:
        """Distinct distributions in order, the distribution of each member, and the members."""
        keys: dict[Any, tuple[int, Member]] = {}
        numbers: dict[Any, int] = {}
        which: list[int] = []
        members: list[Member] = []
        for tokens, sharing, index in rows:
            for member in sharing:
                key = self._key(tokens, member)
                if key not in numbers:
                    numbers[key] = len(numbers)
                    keys[key] = (index, member)
                which.append(numbers[key])
                members.append(member)
        return keys, which, members

    def _distributions(
        self, keys: Mapping[Any, tuple[int, Member]], logits: mx.array | None
    ) -> tuple[Any, Any]:
        """[D, V] log-probabilities and cumulative probabilities, some of them remembered."""
        xp = self._xp
        if logits is None:
            pairs = [self._known[key] for key in keys]
            return xp.stack([p[0] for p in pairs]), xp.stack([p[1] for p in pairs])
        rows = [index for index, _ in keys.values()]
        if rows != list(range(logits.shape[0])):
            logits = logits[mx.array(rows)]
        with self.spans:
            values = np.array(logits) if xp is np else logits
        made = distributions(
            xp,
            values,
            [member.request.temperature for _, member in keys.values()],
            [member.allowed for _, member in keys.values()],
        )
        for number, (key, (_, member)) in enumerate(keys.items()):
            if self._known_limit and member.last_draw:
                self._known[key] = (made[0][number], made[1][number])
        while len(self._known) > self._known_limit:
            self._known.popitem(last=False)
        return made

    @staticmethod
    def _key(tokens: tuple[int, ...], member: Member) -> Any:
        """What a distribution depends on, the weights aside."""
        return tokens, member.request.temperature, member.allowed

    def _fail_all(self, error: EngineError) -> None:
        """Answer every request inside with an error and start over empty."""
        self._accept([])
        inside = [m for sharing in (*self._rows, *self._waiting.values()) for m in sharing]
        self._rows, self._cache, self._waiting = [], [], {}
        _deliver([(member, error) for member in inside])


def _deliver(finished: Sequence[tuple[Member, Result]]) -> None:
    """Hand results to whoever submitted, one call each."""
    by_receiver: dict[int, tuple[Deliver, list[tuple[int, Result]]]] = {}
    for member, result in finished:
        receiver = by_receiver.setdefault(id(member.deliver), (member.deliver, []))
        receiver[1].append((member.number, result))
    for deliver, results in by_receiver.values():
        deliver(results)
