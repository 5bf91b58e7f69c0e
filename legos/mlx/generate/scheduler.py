"""The scheduler: decides which rows the model computes next, and gives sequences their tokens.

    step   decode one token of every row · sample rows with cached distributions · prefill one
           chunk · compute scores for as long as all of this took

Decoding never waits for more than a chunk each of last draws and of prefill, so a long prompt does
not stall other requests.

A decode step is launched, and then read: the host waits for its tokens. Where nothing else can
start and no sequence needs the host, a step is left unread until the next one has been launched
from its lazy tokens, so that the device never waits for the host. Draws depend on seed and position
alone, so the tokens are the same. Whatever changes the rows or the weights calls ``collect`` first.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from copy import copy
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from legos.device.adaptive import AdaptiveLimit
from legos.device.worker import answer
from legos.errors import LegosError, RequestError
from legos.mlx.generate.adapter_table import AdapterTable
from legos.mlx.generate.batch_cache import BatchCache
from legos.mlx.generate.capabilities import Capabilities, probe
from legos.mlx.generate.kv_budget import KeyValueBudget
from legos.mlx.generate.multi_lora.slots import AdapterSlots
from legos.mlx.generate.prefill_queue import Block, PrefillQueue
from legos.mlx.generate.prefix_cache import PrefixCache
from legos.mlx.generate.rows import DecodingRows, Fork, LaunchedStep
from legos.mlx.generate.sampling.sampler import Drawn, Row, Sampler
from legos.mlx.generate.score import Score, ScoreQueue
from legos.mlx.generate.sequences import SequenceState
from legos.mlx.model.cache_parts import extract_rows
from legos.mlx.model.forecast import prefill_tokens
from legos.mlx.model.forward import CausalModel
from legos.mlx.model.machine import cache_sizes, most_rows, num_bytes, usable_bytes
from legos.records.limits import EngineLimits
from legos.records.request import Result

Outcome = tuple[SequenceState, Result]
"""A sequence and what is delivered for it: some tokens, or its final result."""
RECOVERY = 1024  # steps after a fault until the KV cache may be twice as large again


class Scheduler:
    """Runs sequences through the model; only the thread that owns the tree may use it.

    Attributes:
        capabilities: what the model's caches support.
        adapters: the live adapters; one is loaded only while all steps are read.
        waiting: the sequences that wait for a forward pass.
        scores: the scores in progress.
        budget: the bytes that are reserved for keys and values.
        sampler: samples the next tokens.
    """

    def __init__(
        self,
        model: nn.Module,
        limits: EngineLimits,
        *,
        num_vocabulary: int,
        clock: Callable[[], float],
        capabilities: Capabilities | None = None,
    ) -> None:
        """Take over a module tree without LoRA.

        Args:
            model: the module tree.
            limits: limits of rows, tokens and memory.
            num_vocabulary: vocabulary size V; token ids from there on are never sampled.
            clock: measures how long scores and the rest of a step take.
            capabilities: of the same model, if they are known; None: they are probed.

        Raises:
            ModelError: the architecture cannot be served in batches.
        """
        self._limits = limits
        self._forward = CausalModel(model, num_vocabulary)
        usable, weights = limits.memory_bytes or usable_bytes(), num_bytes(model.parameters())
        free = usable - weights
        max_rows = most_rows(limits.max_rows, weights, usable)
        cache_bytes, prefix_bytes = cache_sizes(limits, free)
        self._slots = AdapterSlots(model)
        self.capabilities = capabilities = capabilities or probe(self._forward, self._slots)
        self._prefill_tokens = prefill_tokens(capabilities.sizes, limits, free)
        self.adapters = AdapterTable(self._slots)
        self.sampler = Sampler(num_vocabulary, xp=mx if limits.decode_ahead == "on" else None)
        self._ahead = limits.decode_ahead != "off" and self.sampler.on_device
        self._unread: LaunchedStep | None = None  # the last step, if it is not read yet
        self._prefixes = PrefixCache(prefix_bytes, token_bytes=capabilities.sizes.token_bytes)
        self.budget = KeyValueBudget(cache_bytes, capabilities)
        self._cache_bytes = AdaptiveLimit(cache_bytes, recovery=RECOVERY)
        cache = BatchCache(model, max_slots=max_rows, space_of=self.budget.space_of)
        self._rows = DecodingRows(self._slots, cache, max_rows)
        self.waiting = PrefillQueue(
            forward=self._forward,
            slots=self._slots,
            rows=self._rows,
            prefixes=self._prefixes,
            budget=self.budget,
            chunk_tokens=limits.chunk_tokens,
            capabilities=capabilities,
            most_forks=max(max_rows // 4, 1),
        )
        self.scores = ScoreQueue(self._forward, self._slots)
        self._score_tokens = limits.chunk_tokens  # tokens of the next block of scores when idle
        self._clock = clock
        self._score_budget_s = 0.0  # time that scores may take while there are other requests

    def __bool__(self) -> bool:
        """Whether there is work to do."""
        return self._busy or bool(self.scores)

    @property
    def _busy(self) -> bool:
        """Whether any sequence is decoded or waits."""
        return bool(self._rows or self.waiting)

    def stats(self) -> Mapping[str, float]:
        """Counters and gauges."""
        taken = self.budget.taken
        return {
            "scores_running": len(self.scores),
            "rows_decoding": len(self._rows),
            "rows_computed_total": self.waiting.rows_computed + self._rows.rows_computed,
            "tokens_generated_total": self.sampler.draws,
            "prompt_tokens_total": self.waiting.tokens_asked,
            "prefill_tokens_total": self.waiting.tokens_computed,
            "prefix_tokens_total": self.waiting.tokens_reused,
            "prefix_entries": len(self._prefixes),
            "prefix_bytes": self._prefixes.num_bytes,
            "reserved_cache_bytes": taken,
            "cache_full_share": taken / max(self.budget.limit, 1),
        }

    def tidy(self, inside: Collection[SequenceState]) -> None:
        """Free weights that nothing uses, and the prefixes computed with them.

        ``inside`` are the sequences that run or wait, those of an unread step among them.
        """
        used = {sequence.live.slot for sequence in inside}
        self.adapters.free_unused(used | self.scores.slots_used | self.waiting.slots_used)
        self._prefixes.keep_only(self.adapters.epochs)

    def remove(self, ended: Collection[SequenceState]) -> None:
        """Remove sequences from the queue and from the rows; the caller answers them.

        All steps must be read.
        """
        self.waiting.remove(ended)
        self._rows.remove(ended)
        self._release_if_idle()

    def _release_if_idle(self) -> None:
        """Release the memory of the rows where no sequence is left."""
        if not self._busy:
            self._rows.clear()

    def clear(self) -> None:
        """Remove all sequences, and all that earlier steps have computed."""
        self._unread = None
        self._rows.clear()
        self.waiting.clear()
        self.forget()

    def forget(self) -> None:
        """Remove all that earlier steps have computed, so that later ones compute it anew."""
        self._prefixes.keep_only(())
        self.sampler.known.clear()
        self._slots.forget()

    def start_again(self, sequences: Iterable[SequenceState]) -> None:
        """After the device has failed: prefill sequences again, for a while with half the cache."""
        self._cache_bytes.fault()
        for sequence in sequences:
            sequence.start_again()
            self.waiting.add(sequence)

    def add_score(self, score: Score) -> None:
        """Queue a score, or answer it with an error where its adapter is not live."""
        try:
            score.live = copy(self.adapters.find(score.adapter))  # it ends with these weights
        except RequestError as error:
            answer(score.future, error)
        else:
            self.scores.add(score)

    def step(self, interrupted: Callable[[], bool], results: list[Outcome]) -> None:
        """Decode one token of every row, prefill some waiting rows, and compute some scores.

        Args:
            interrupted: whether new messages wait for the step to end.
            results: the results of the step are appended, also where it fails half-way.
        """
        began = self._clock()
        self.budget.limit = self._cache_bytes.value
        self._put_back(results)
        if self._rows:
            self._decode(results)
        self._draw_known(results)
        busy = bool(self._rows)
        max_tokens = self._limits.chunk_tokens if busy else self._prefill_tokens
        while block := self.waiting.last_draws(max_tokens):
            self._begin(block, results)
            self._draw_known(results)
            if busy or interrupted():
                break
        block = self.waiting.prefilled(self._rows.room, max_tokens)
        if block is not None:
            self._begin(block, results)
        self._release_if_idle()
        if self.scores:
            self._score(began, alone=not (results or self._busy))
        self._cache_bytes.success()

    def _draw_known(self, results: list[Outcome]) -> None:
        """Sample the last tokens of waiting rows whose distribution is cached."""
        known = self.waiting.known(self.sampler)
        if known:
            versions = [sequences[0].live.version for _, sequences, _ in known]
            self._advance(known, versions, self.sampler.draw_known(known), results)

    def _score(self, began: float, *, alone: bool) -> None:
        """Compute scores for as long as the rest of the step took.

        Args:
            began: time at which the step started.
            alone: whether there are no other requests. Blocks then start small and double in each
                step, so that a new request waits little.
        """
        if alone:
            self._score_budget_s = 0.0
            self.scores.advance(self._score_tokens)
            self._score_tokens = min(2 * self._score_tokens, self._prefill_tokens)
            return
        self._score_tokens = self._limits.chunk_tokens
        now = self._clock()
        self._score_budget_s = min(self._score_budget_s, 0.0) + now - began
        while self.scores and self._score_budget_s > 0.0:
            self.scores.advance(self._limits.chunk_tokens)
            before, now = now, self._clock()
            self._score_budget_s -= now - before

    def _begin(self, block: Block, results: list[Outcome]) -> None:
        """Sample for newly prefilled rows; unfinished ones join the decoding batch, or wait."""
        forks: Sequence[Fork] = ()
        if block.rows:
            drawn = self.sampler.read(self.sampler.draw(block.rows, block.logits))
            self._keep(block.rows, block.cache.layers if block.cache else ())
            forks = self._advance(block.rows, block.versions, drawn, results)
        if block.cache is not None:
            forks = self._rows.join(block.cache, block.rows, forks)
        self._wait(forks)

    def collect(self, results: list[Outcome]) -> None:
        """Read the last step if it is unread; its results are appended."""
        step, self._unread = self._unread, None
        if step is not None:
            self._read(step, results)
            self._release_if_idle()

    def _put_back(self, results: list[Outcome]) -> None:
        """Let the youngest sequences wait where the next token of all rows does not fit."""
        self.budget.longest_row = self._rows.cache.longest + 2
        if self.budget.taken > self.budget.limit:
            self.collect(results)
            late = self.budget.excess(self._rows.sequences)
            self._rows.remove(late)
            self._wait([(0, late)])

    def _decode(self, results: list[Outcome]) -> None:
        """Launch one more step of every row, and read the last step that can be read."""
        before, self._unread = self._unread, None
        refill = before is None and self.waiting.can_start(self._rows.room)
        step = self._rows.launch(self._forward, self.sampler, before, refill=refill)
        if before is not None:
            self._read(before, results, following=step)
        if self._rows and self._can_stay_unread(step):
            self._unread = step
        elif self._rows:
            self._read(step, results)

    def _can_stay_unread(self, step: LaunchedStep) -> bool:
        """Whether the next step will have the same rows, unless one draws an end, and no others."""
        return (
            self._ahead
            and not (self.scores or self.waiting.can_start(self._rows.room))
            and not any(len(m) > 1 or m[0].needs_host or m[0].last_draw for _, m, _ in step.rows)
        )

    def _read(
        self, step: LaunchedStep, results: list[Outcome], *, following: LaunchedStep | None = None
    ) -> None:
        """Give every sequence its token of a step.

        Args:
            step: the step.
            results: the results are appended.
            following: the next step, if it has been launched; it loses the rows that have ended.
        """
        before = {slot: len(sequences[0].tokens) for _, sequences, slot in step.rows}
        drawn = self.sampler.read(step.draws)
        forks = self._advance(step.rows, step.versions, drawn, results)
        on = {slot for slot, _ in forks}
        ended: list[Row] = []
        for _, sequences, slot in step.rows:
            first = sequences[0]
            if slot not in on and first.failure is None:
                cached = first.tokens[: before[slot] if following is None else None]
                tokens = (*first.request.prompt_ids, *cached)
                ended.append(((first.epoch, tokens), sequences, slot))
        self._keep(ended, self._rows.cache.layers, answers=True)
        if following is not None and 0 < len(forks) < len(step.rows):
            following.keep(on)
        self._wait(self._rows.fork(forks))

    def _advance(
        self,
        rows: Sequence[Row],
        versions: Sequence[int],
        drawn: Drawn,
        results: list[Outcome],
    ) -> list[Fork]:
        """Give every sequence its token; returns the forks of the rows that continue."""
        forks: dict[tuple[int, int], list[SequenceState]] = {}
        tokens = zip(*drawn, strict=True)
        for (_, sequences, index), version in zip(rows, versions, strict=True):
            for sequence in sequences:
                token, logprob = next(tokens)
                try:
                    reason = sequence.add(token, logprob, version)
                except LegosError as error:  # its sampling, its grammar or its stop test failed
                    results.append((sequence, error))
                    continue
                if sequence.request.stream and (progress := sequence.progress()) is not None:
                    results.append((sequence, progress))
                if reason is None:
                    forks.setdefault((index, token), []).append(sequence)
                else:
                    results.append((sequence, sequence.generated(reason)))
        return [(index, sequences) for (index, _), sequences in forks.items()]

    def _keep(self, rows: Sequence[Row], cache: Sequence[Any], *, answers: bool = False) -> None:
        """Add keys and values of rows to the prefix cache."""
        wants = self._prefixes.wants_answer if answers else self._prefixes.wants
        kept = {
            key: (index, len(sequences[0].request.prompt_ids) if answers else None)
            for key, sequences, index in (rows if cache else ())
            if key and sequences[0].live.epoch == key[0] and wants(*key)
        }
        copies = extract_rows(cache, [index for index, _ in kept.values()])
        for (key, (_, start)), row in zip(kept.items(), copies, strict=True):
            self._prefixes.add(*key, row, answer=start)

    def _wait(self, forks: Sequence[Fork]) -> None:
        """Put the sequences of rows that do not fit back into the queue."""
        for _, sequences in forks:
            for sequence in sequences:
                self.waiting.add(sequence)
