"""Loss, sums and LoRA gradients of one optimiser step; shared prefixes are computed once."""

import logging
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import mlx.core as mx
import mlx.nn as nn
import msgspec
import numpy as np
from mlx.utils import tree_flatten
from mlx_lm.models.cache import make_prompt_cache

from legos.device.adaptive import AdaptiveLimit
from legos.device.gradients import Arrays, Others, StepResult
from legos.errors import Stopped, TrainerError
from legos.losses.objective import Objective
from legos.mlx.model.faults import recovered
from legos.mlx.model.forecast import Sizes, chunk_positions
from legos.mlx.model.forward import CausalModel
from legos.mlx.model.load import num_token_ids
from legos.mlx.model.lora import adapted_layers, other_lora, set_lora_arrays
from legos.mlx.model.machine import usable_bytes
from legos.mlx.train.gradient_check import check_gradients
from legos.mlx.train.linear_attention.delta_rule import compute_in_chunks
from legos.mlx.train.memory import MemoryPlan, usual_tokens
from legos.mlx.train.pace import LEAST, PassPace
from legos.mlx.train.passes import PassGradients, Policy, Runner
from legos.mlx.train.prefix_sharing.plan import Pass, plan_passes
from legos.mlx.train.prefix_sharing.trie import Trie, token_trie
from legos.mlx.train.processes import MlxProcesses
from legos.records.count import Count
from legos.records.limits import TrainingSize
from legos.records.packing import StepSamples, step_rows
from legos.records.step import BackendConfig, Stop, never

logger = logging.getLogger(__name__)
RELEASED = 0.9  # memory is planned again where less than this share of the planned bytes is held
NO_LIMIT = 2**31 - 1  # tokens that always fit
RECOVERY = 32  # steps after a fault until a pass may be twice as large
T = TypeVar("T")


class StepGradients:
    """Computes the gradients of optimiser steps on one module tree; see ``DeviceGradients``.

    Attributes:
        memory: the plan of the memory of a step; None before the first step.
        shares: whether rows share prefixes; False where the architecture does not allow it.
        num_vocabulary: token ids of samples are below it.
        passes: those of the step that is computed.
    """

    xp: Any = mx

    def __init__(
        self,
        model: nn.Module,
        config: BackendConfig | None = None,
        *,
        max_places: int | None = None,
        group: MlxProcesses | None = None,
        held_bytes: Callable[[], int] = mx.get_active_memory,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Find out how the model can be run.

        Args:
            model: the module tree with LoRA.
            config: settings of the backend; None: the defaults. Without ``micro_batch_tokens``,
                see ``usual_tokens``. Below ``memory_limit_bytes``, passes get smaller, and rows
                that do not fit alone are left out.
            max_places: logit positions whose logits are in memory at once; None: see
                ``chunk_positions``.
            group: processes that share the work of the same steps; None: this process only.
            held_bytes: returns the bytes that are allocated while neither a step of this class nor
                one of an engine is computed.
            clock: returns a time in seconds.

        Raises:
            TrainerError: the model cannot be trained; see ``check_gradients``.
        """
        config = config or BackendConfig()
        checkpointing, ceiling = config.gradient_checkpointing, config.memory_limit_bytes
        self._model = model
        _avoid_inference_kernels(model)
        forward = CausalModel(model, config.num_vocabulary)
        self.num_vocabulary = min(num_token_ids(model), forward.num_vocabulary)
        self._group = group or MlxProcesses(None)
        shares = check_gradients(model, forward, checkpointing=checkpointing)
        self.shares = bool(self._group.smallest(shares))  # all processes plan from the same trie
        self.memory: MemoryPlan | None = None
        self._sizes = replace(Sizes.of(model), whole=forward.trunk is model)
        self._size = TrainingSize(layers=len(adapted_layers(model)), checkpointing=checkpointing)
        self._ceiling_bytes = usable_bytes() if ceiling is None else ceiling
        tokens = config.micro_batch_tokens
        tokens = tokens or usual_tokens(self._sizes, self._size, self._ceiling_bytes)
        self._tokens = AdaptiveLimit(self._group.smallest(tokens), least=LEAST, recovery=RECOVERY)
        self._pace = PassPace(config.pass_limit_s, clock)
        self._held_bytes = held_bytes
        self._report = config.report or logger.info
        self._told: tuple[int, int | None] | None = None  # tokens of a pass, limit of a row
        self.passes = Count(unit="passes")
        num_caches = len(make_prompt_cache(model)) if self.shares else 0
        self._runner = Runner(
            model=model,
            forward=forward,
            num_caches=num_caches,
            num_frozen=_num_frozen(model, num_caches),
            max_places=max_places or chunk_positions(forward.num_logits, self._ceiling_bytes),
        )

    def array(self, values: Any) -> mx.array:
        """An array on the device; one that is there already is not copied."""
        return values if isinstance(values, mx.array) else mx.array(np.asarray(values, np.float32))

    def host(self, arrays: Arrays) -> Arrays:
        """The same arrays, which were evaluated when they were made."""
        return arrays

    def install(self, arrays: Arrays) -> None:
        """Make the tree compute with some LoRA arrays, without a copy."""
        set_lora_arrays(self._model, arrays)

    def evaluate(self, *arrays: Arrays) -> None:
        """Wait until arrays are computed."""
        mx.eval(arrays)

    def computed(self, compute: Callable[[], T]) -> T:
        """Run a computation to its end; alone, once more after an error of the device."""

        def finished() -> T:
            found = compute()
            mx.synchronize()  # an error of the device must come before the results are used
            return found

        return recovered(finished, self._tokens.fault, retry=self._group.size == 1)

    def of_step(
        self, step: StepSamples, objective: Objective, others: Others, stop: Stop = never
    ) -> StepResult:
        """Compute loss, sums and gradients of a whole step, of the installed arrays.

        Args:
            step: samples of the step and their weights.
            objective: the objective to minimise.
            others: LoRA of "reference" and "ema", where the objective uses them.
            stop: asked before each pass; all processes of a group end where one of them stops.

        Raises:
            TrainerError: no sample fits into memory.
            Stopped: ``stop`` returned True.
        """
        work = self._prepared(step, objective, others)
        longest = max(map(len, work.rows.tokens))
        plan = self._planned(longest, others=len(others))
        limit = self._agreed_limit(plan)
        if limit is not None and longest > limit:
            step = step.no_longer_than(limit)
            if not step.samples:
                raise TrainerError(
                    f"no sample of this step fits into memory: {plan.describe(plan.longest)}"
                )
            work = self._prepared(step, objective, others)
        passes, rounds = self._own(work.trie, plan)
        self.passes = count = Count(len(passes), unit="passes")

        def agreed() -> None:  # all processes ask before each pass
            if not self._group.smallest(not stop()):
                raise Stopped

        def alone() -> None:  # the others do not compute the same prefixes
            if self._group.size == 1:
                agreed()

        def begin() -> None:
            agreed()
            count.begun += 1
            self._pace.begin()

        def end(num_tokens: int) -> None:
            self._pace.end(num_tokens)
            count.ended += 1

        mx.reset_peak_memory()
        self._pace.longest_s = 0.0
        found = work.of_passes(passes, before_pass=begin, after_pass=end, before_prefix=alone)
        self.passes = Count(unit="passes")
        if len(passes) < rounds:
            agreed()  # with the processes that have one more pass
        peak = mx.get_peak_memory()
        self._adapt(peak)
        if self._group.size > 1:
            found = _sum_of(found, self._group)
        return replace(
            found,
            gradients=dict(tree_flatten(found.gradients)),
            row_limit=limit,
            peak_bytes=peak,
            pass_s=self._pace.longest_s,
        )

    def _adapt(self, peak_bytes: int) -> None:
        """Compute fewer tokens at once for a while after a step that exceeded the memory limit.

        The engine may have caused it, whose memory is measured together with that of the step.
        So nothing else follows from it: no sample is left out for it.
        """
        if peak_bytes <= self._ceiling_bytes:
            self._tokens.success()
            return
        self._tokens.fault()
        logger.warning(
            "a step took %.2f GiB of memory, more than %.2f: at most %d tokens at once now",
            peak_bytes / 2**30,
            self._ceiling_bytes / 2**30,
            self._tokens.value,
        )

    def _prepared(self, step: StepSamples, objective: Objective, others: Others) -> PassGradients:
        rows = step_rows(step.samples)
        trie = token_trie(rows.tokens, share=self.shares, max_tokens=self._tokens.full)
        return PassGradients(
            runner=self._runner,
            step=step,
            rows=rows,
            trie=trie,
            objective=objective,
            policy=Policy(within=nullcontext),
            others={
                name: Policy(within=partial(other_lora, self._model, lora))
                for name, lora in others.items()
                if step.backward  # otherwise nobody reads the divergences
            },
        )

    def _planned(self, longest: int, *, others: int) -> MemoryPlan:
        """The memory plan: made at the first step, and again where it does not cover the rows."""
        plan, held = self.memory, self._held_bytes()
        if plan is None or not plan.covers(longest):
            plan = MemoryPlan(
                sizes=self._sizes,
                size=msgspec.structs.replace(self._size, others=others),
                held_bytes=held,
                ceiling_bytes=self._ceiling_bytes,
                longest=longest,
            )
        elif not RELEASED * plan.held_bytes <= held <= plan.held_bytes:
            plan = replace(plan, held_bytes=held)
        self.memory = plan
        # Held bytes differ a little from step to step, and so does the longest row that fits.
        limit = plan.row_limit and plan.row_limit.bit_length()
        decided = plan.max_tokens(self._tokens.value), limit
        if decided != self._told:
            self._told = decided
            self._report(plan.describe(self._tokens.value))
        return plan

    def _agreed_limit(self, plan: MemoryPlan) -> int | None:
        """Tokens of the longest row that fits in every process of the group; None: no limit."""
        limit = self._group.smallest(NO_LIMIT if plan.row_limit is None else plan.row_limit)
        return None if limit == NO_LIMIT else limit

    def _own(self, trie: Trie, plan: MemoryPlan) -> tuple[list[Pass], int]:
        """The passes that this process computes, and the largest number of a process."""
        rank, size = self._group.rank, self._group.size
        tokens = self._pace.max_tokens(plan.max_tokens(self._tokens.value))
        keys = min(plan.max_keys(tokens), NO_LIMIT)
        if size > 1:
            tokens = self._group.smallest(min(tokens, -(-trie.num_tokens // size)))
            keys = self._group.smallest(keys)
        passes = plan_passes(trie, max_tokens=tokens, max_keys=keys)
        return passes[rank::size], -(-len(passes) // size)


def _sum_of(found: StepResult, group: MlxProcesses) -> StepResult:
    """The results of all processes of a group, summed."""
    numbers = mx.array([found.loss, *found.sums.tolist()])
    of_tokens = mx.array(np.stack([found.logprobs, found.entropies]))
    numbers, of_tokens, gradients = group.sum_of((numbers, of_tokens, found.gradients))
    loss, *sums = np.array(numbers, np.float64).tolist()
    logprobs, entropies = np.array(of_tokens)
    return StepResult(
        loss=loss,
        sums=np.array(sums),
        gradients=gradients,
        logprobs=logprobs,
        entropies=entropies,
    )


def _num_frozen(model: nn.Module, num_caches: int) -> int:
    """Number of the first caches whose layers, and all before them, are not trained."""
    layers, adapted = list(model.layers or ()), set(map(id, adapted_layers(model)))
    if len(layers) != num_caches:
        return 0  # which layer fills which cache is not known
    return next((n for n, layer in enumerate(layers) if id(layer) in adapted), num_caches)


def _avoid_inference_kernels(model: nn.Module) -> None:
    """Make layers compute with operations that have gradients, some of them in chunks of tokens.

    In evaluation mode, some recurrent layers call kernels that have none.
    """
    model.train()
    compute_in_chunks(model)
    for _, module in model.named_modules():
        if isinstance(module, nn.Dropout):
            module.eval()  # training and sampling must compute the same probabilities
