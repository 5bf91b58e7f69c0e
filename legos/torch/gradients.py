"""Loss, metric sums and log-probabilities of a step's passes; gradients gather in the LoRA arrays.

The output head runs in chunks of logit positions, so that the peak of memory is that of one chunk
for any vocabulary. Where the log-probability alone has a gradient, and each position has one token,
a chunk's gradient is computed with its values, since a token's loss only scales it. Elsewhere
the logits are computed again in the backward pass.

P logit positions, V vocabulary, H hidden size, N chosen tokens, S samples, A chosen tokens of a
sample.
"""

import logging
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from legos.device.adaptive import AdaptiveLimit
from legos.device.gradients import Arrays, Others, StepResult
from legos.errors import Stopped, TrainerError
from legos.losses.metrics import SUMS
from legos.losses.objective import Objective
from legos.losses.total import BatchArrays, Terms, token_loss, token_terms
from legos.records.batch import Batch
from legos.records.chunks import chunks_of
from legos.records.count import Count
from legos.records.packing import StepRows, StepSamples, step_rows
from legos.records.step import MICRO_BATCH_TOKENS, BackendConfig, Stop, never
from legos.torch.arrays import TorchArrays
from legos.torch.lora import LoraLinear, Modules, install, other_lora
from legos.torch.model import CausalModel
from legos.torch.passes import Pass, pass_batch, plan_passes
from legos.torch.ranks import Ranks

logger = logging.getLogger(__name__)
T = TypeVar("T")
CHUNK_LOGITS = {"cpu": 1 << 21, "cuda": 1 << 26}  # logits of one chunk: 8 and 256 MiB in float32
RECOVERY = 32  # steps after which a pass that did not fit may be twice as large again
MIN_POSITIONS = 64  # positions of a chunk; with fewer, reading the head's weights dominates


class TorchGradients:
    """Computes the passes of optimiser steps with one model; see ``DeviceGradients``."""

    def __init__(
        self,
        model: CausalModel,
        modules: Modules,
        config: BackendConfig,
        ranks: Ranks | None = None,
    ) -> None:
        """Make the computation of a model's steps.

        Args:
            model: the model.
            modules: its modules with LoRA.
            config: settings of the backend.
            ranks: processes that compute some passes of every step each; None: this one is alone.

        Raises:
            TrainerError: packed samples of the model see each other.
        """
        model.check_packing()
        if config.gradient_checkpointing:
            model.checkpoint_layers()
        self.num_vocabulary = min(config.num_vocabulary or 1 << 31, model.num_vocabulary)
        tokens = config.micro_batch_tokens or MICRO_BATCH_TOKENS
        self._tokens = AdaptiveLimit(tokens, recovery=RECOVERY)
        self._model = model
        self._modules = modules
        self._ranks = ranks
        self._arrays: Arrays = {}
        self.xp: Any = TorchArrays(model.device)
        logits = CHUNK_LOGITS[model.device.type]
        self.passes = Count(unit="passes")
        self._num_positions = max(MIN_POSITIONS, logits // model.num_vocabulary)

    def array(self, values: Any) -> Tensor:
        """A copy of an array on the device, in float32."""
        return torch.tensor(np.asarray(values), dtype=torch.float32, device=self._model.device)

    def host(self, arrays: Arrays) -> Arrays:
        """The arrays as NumPy arrays, which share memory with those on a CPU."""
        return {name: array.numpy(force=True) for name, array in arrays.items()}

    def install(self, arrays: Arrays) -> None:
        """Make the model compute with some LoRA arrays, without a copy."""
        self._arrays = arrays
        install(self._modules, arrays)

    def evaluate(self, *arrays: Arrays) -> None:
        """Do nothing: torch computes at once."""

    def computed(self, compute: Callable[[], T]) -> T:
        """Run a computation, with smaller and smaller passes while the GPU's memory is full.

        Processes that compute together do not compute again: the others would wait for this one at
        another place.

        Raises:
            TrainerError: a sample does not fit even alone, or there are several processes.
        """
        while True:
            try:
                return compute()
            except torch.OutOfMemoryError as error:
                torch.cuda.empty_cache()
                if self._ranks is not None:
                    raise TrainerError(
                        f"the GPU of process {self._ranks.rank} ran out of memory; lower "
                        f"--training.micro-batch-tokens below {self._tokens.value}, or give "
                        "--training.gradient-checkpointing"
                    ) from error
                if self._tokens.value == 1:
                    raise TrainerError(
                        "a sample does not fit into the GPU's memory even alone; give shorter "
                        "ones, or --training.gradient-checkpointing"
                    ) from error
                self._tokens.fault()
                logger.warning("memory is full; passes of %d tokens", self._tokens.value)

    def of_step(
        self, step: StepSamples, objective: Objective, others: Others, stop: Stop = never
    ) -> StepResult:
        """Loss, sums, values of each token and gradients by name, of the installed arrays.

        Raises:
            Stopped: ``stop`` returned True before a pass, here or in another process.
        """
        if on_gpu := self._model.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        others = others if step.backward else {}  # otherwise nobody reads the divergences
        rows = step_rows(step.samples)
        ends = list(accumulate(len(sample.positions) for sample in step.samples))
        totals, of_tokens = np.zeros(1 + len(SUMS)), np.zeros((2, ends[-1]), np.float32)
        plan = self._plan(rows)
        rank, size = (0, 1) if self._ranks is None else (self._ranks.rank, self._ranks.size)
        leaves = {
            name: array.detach().requires_grad_(step.backward)
            for name, array in self._arrays.items()
        }
        install(self._modules, leaves)
        self.passes = count = Count(len(plan[rank::size]), unit="passes")
        try:
            for one in plan[rank::size]:
                self._check(stop)
                count.begun += 1
                batch, members = pass_batch(step, rows, one)
                value, counted, reported = self._of_pass(batch, one, objective, others)
                totals[0] += value.item()
                totals[1:] += counted.double().cpu().numpy()
                found = reported.cpu().numpy()
                for place, (index, mask) in enumerate(zip(members, batch.mask, strict=True)):
                    of_tokens[:, ends[index] - mask.sum() : ends[index]] = found[:, place, mask]
                count.ended += 1
            if rank >= len(plan) % size > 0:  # the others need this one's shards for one more pass
                self._check(stop)
                idle = StepSamples(samples=step.samples, weights=[0.0] * len(step.samples))
                self._of_pass(pass_batch(idle, rows, plan[-1])[0], plan[-1], objective, others)
        finally:
            install(self._modules, self._arrays)
            self.passes = Count(unit="passes")
        gradients = {
            name: torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
            for name, leaf in leaves.items()
        }
        if self._ranks is not None:
            self._ranks.add([torch.from_numpy(totals)])
            self._ranks.add([torch.from_numpy(of_tokens)])
            self._ranks.add(list(gradients.values()))
        self._tokens.success()
        return StepResult(
            loss=float(totals[0]),
            sums=totals[1:],
            gradients=gradients,
            logprobs=of_tokens[0],
            entropies=of_tokens[1],
            peak_bytes=torch.cuda.max_memory_allocated() if on_gpu else None,
        )

    def _of_pass(
        self, batch: Batch, one: Pass, objective: Objective, others: Others
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Loss, sums and [2, S, A] log-probabilities and entropies; the backward pass is done."""
        terms = self._terms(one, batch, objective, others)
        loss, sums = token_loss(self.xp, terms, BatchArrays(self.xp, batch), objective)
        if loss.requires_grad:
            loss.backward()
        reported = torch.stack([terms["logprob"].detach(), terms["entropy"].detach()])
        return loss.detach(), sums.detach(), reported

    def _check(self, stop: Stop) -> None:
        if stop() if self._ranks is None else any(self._ranks.gathered(stop())):
            raise Stopped

    def _plan(self, rows: StepRows) -> Sequence[Pass]:
        flash: bool = self._model.whole.config._attn_implementation == "flash_attention_2"  # noqa: SLF001
        most = self._tokens.value
        if self._ranks is not None:
            most = min(most, -(-sum(map(len, rows.tokens)) // self._ranks.size))
        return plan_passes(rows, max_tokens=most, one_row=flash)

    def _terms(self, one: Pass, batch: Batch, objective: Objective, others: Others) -> Terms:
        """[S, A] terms of ``token_loss``."""
        hidden = self._hidden(one, batch)
        states: dict[str, Tensor] = {}
        for name, lora in others.items():
            with torch.no_grad(), other_lora(self._modules, lora):
                states[name] = self._hidden(one, batch)

        def of_positions(hidden: Tensor, at: Tensor, arrays: BatchArrays) -> Terms:
            other_logits: dict[str, Tensor] = {}
            for name, lora in others.items():
                with torch.no_grad(), other_lora(self._modules, lora):
                    other_logits[name] = self._logits(states[name][at])
            logits = self._logits(hidden)
            return token_terms(self.xp, logits, other_logits, arrays, objective)

        if len(batch.logit_row) <= self._num_positions:
            at = torch.arange(len(batch.logit_row), device=hidden.device)
            return of_positions(hidden, at, BatchArrays(self.xp, batch))
        exact = bool(others) and objective.kl_estimator == "exact"
        adapted = isinstance(self._model.whole.get_output_embeddings(), LoraLinear)
        alone = not (objective.entropy_coef or exact or adapted)
        return self._chunked(hidden, batch, of_positions, alone=alone)

    def _chunked(
        self, hidden: Tensor, batch: Batch, of_positions: Callable[..., Terms], *, alone: bool
    ) -> dict[str, Tensor]:
        """The terms, chunk by chunk; only the hidden states are kept for the backward pass.

        Args:
            hidden: [P, H] output of the trunk.
            batch: the batch of the pass.
            of_positions: the terms of a chunk, from its hidden states, positions and arrays.
            alone: whether "logprob" is the only term with a gradient, and that only into hidden.
        """
        chunks, number = chunks_of(batch, self._num_positions)
        parts: list[Any] = []
        for chunk in chunks:
            at, arrays = self.xp.array(chunk.positions), BatchArrays(self.xp, chunk.batch)
            if alone and hidden.requires_grad and len(at) == len(chunk.batch.mask):
                parts.append(_at_once(of_positions, hidden[at], at, arrays))
            else:
                parts.append(checkpoint(of_positions, hidden[at], at, arrays, use_reentrant=False))
        order = self.xp.array(number)
        return {name: torch.cat([part[name] for part in parts])[order, 0] for name in parts[0]}

    def _logits(self, hidden: Tensor) -> Tensor:
        """[..., V] float32 logits of the token ids that can be sampled."""
        return self._model.head(hidden)[..., : self.num_vocabulary].float()

    def _hidden(self, one: Pass, batch: Batch) -> Tensor:
        """[P, H] output of the trunk at the logit positions of a pass."""
        array = self.xp.array
        hidden = self._model.hidden(array(one.input_ids), array(one.position_ids))
        return hidden[array(batch.logit_row), array(batch.logit_column)]


def _at_once(
    of_positions: Callable[..., Terms], hidden: Tensor, at: Tensor, arrays: BatchArrays
) -> dict[str, Tensor]:
    """[C, 1] terms of C positions with one token each, and the gradient of "logprob" with them.

    Nothing of a chunk's logits is kept: the difference that is added is 0, with that gradient.
    """
    leaf = hidden.detach().requires_grad_()
    found = of_positions(leaf, at, arrays)
    (slope,) = torch.autograd.grad(found["logprob"].sum(), leaf)
    order = arrays.logit_index[:, 0]  # token -> its position
    terms = {name: term.detach() for name, term in found.items()}
    change = ((hidden - leaf.detach()) * slope).float().sum(dim=1, keepdim=True)
    terms["logprob"] = terms["logprob"] + change[order]
    return terms
