"""Loss, metric sums and log-probabilities of a step's passes; gradients gather in the LoRA arrays.

The output head runs in chunks of logit positions, so that the peak of memory is that of one chunk
for any vocabulary. Where the log-probability alone has a gradient, and each position has one token,
a chunk's gradient is computed with its values, since a token's loss only scales it. Elsewhere
the logits are computed again in the backward pass.

P logit positions, V vocabulary, H hidden size, N chosen tokens, S samples, A chosen tokens of a
sample.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from legos.errors import Stopped
from legos.losses.metrics import SUMS
from legos.losses.objective import Objective
from legos.losses.total import BatchArrays, Terms, token_loss, token_terms
from legos.records.batch import Batch
from legos.records.chunks import chunks_of
from legos.records.packing import StepRows, StepSamples, step_rows
from legos.records.step import Stop, never
from legos.torch.arrays import TorchArrays
from legos.torch.lora import LoraLinear, Modules, other_lora
from legos.torch.model import CausalModel
from legos.torch.passes import Pass, pass_batch, plan_passes
from legos.weights.reference import Lora

__all__ = ["Found", "StepGradients"]

CHUNK_LOGITS = {"cpu": 1 << 21, "cuda": 1 << 26}  # logits of one chunk: 8 and 256 MiB in float32
MIN_POSITIONS = 64  # positions of a chunk; with fewer, reading the head's weights dominates
Others = Mapping[str, Lora | None]
"""Name of another policy ("reference", "ema") -> its LoRA; None: the base model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The results of the passes of a step."""

    loss: float
    sums: NDArray[np.float64]  # [len(SUMS)] for the metrics
    logprobs: NDArray[np.float32]  # [N] nats of the chosen tokens, sample by sample


class StepGradients:
    """Computes the passes of optimiser steps with one model.

    Attributes:
        max_tokens: maximum number of padded tokens of a pass.
    """

    def __init__(
        self,
        model: CausalModel,
        modules: Modules,
        *,
        max_tokens: int,
        most: Callable[[int], int] | None = None,
    ) -> None:
        """Make the computation of a model's steps.

        Args:
            model: the model.
            modules: its modules with LoRA.
            max_tokens: maximum number of padded tokens of a pass.
            most: given a number, returns the largest one of all processes that make passes
                together; None: this process is alone.
        """
        self.max_tokens = max_tokens
        self._most = most or (lambda number: number)
        self._model = model
        self._modules = modules
        self._xp = TorchArrays(model.device)
        logits = CHUNK_LOGITS[model.device.type]
        self._num_positions = max(MIN_POSITIONS, logits // model.num_vocabulary)

    def of_step(
        self, step: StepSamples, objective: Objective, others: Others, stop: Stop = never
    ) -> Found:
        """Compute a step; ``.grad`` of the installed LoRA arrays gets the gradients added.

        Raises:
            Stopped: ``stop`` returned True before a pass, here or in another process.
        """

        def of_pass(batch: Batch, one: Pass) -> tuple[Tensor, Tensor, Tensor]:
            terms = self._terms(one, batch, objective, others)
            arrays = BatchArrays(self._xp, batch)
            loss, sums = token_loss(self._xp, terms, arrays, objective)
            loss.backward()
            return loss.detach(), sums.detach(), terms["logprob"].detach()

        return self._of_passes(step, of_pass, stop)

    def logprobs(self, step: StepSamples) -> NDArray[np.float32]:
        """[N] log-probabilities (nats) of the chosen tokens, sample by sample, without gradient."""
        nothing = torch.zeros(()), torch.zeros(len(SUMS))

        def of_pass(batch: Batch, one: Pass) -> tuple[Tensor, Tensor, Tensor]:
            return *nothing, self._terms(one, batch, Objective(), {})["logprob"]

        with torch.no_grad():
            return self._of_passes(step, of_pass).logprobs

    def _of_passes(
        self,
        step: StepSamples,
        of_pass: Callable[[Batch, Pass], tuple[Tensor, Tensor, Tensor]],
        stop: Stop = never,
    ) -> Found:
        """The sum of loss and sums over the passes, and the log-probabilities of all samples."""
        rows = step_rows(step.samples)
        ends = list(accumulate(len(sample.positions) for sample in step.samples))
        loss, sums, logprobs = 0.0, np.zeros(len(SUMS)), np.zeros(ends[-1], np.float32)
        plan = self._plan(rows)
        for one in plan:
            self._check(stop)
            batch, members = pass_batch(step, rows, one)
            value, counted, logprob = of_pass(batch, one)
            loss += value.item()
            sums += counted.double().cpu().numpy()
            for index, row, mask in zip(members, logprob.cpu().numpy(), batch.mask, strict=True):
                logprobs[ends[index] - mask.sum() : ends[index]] = row[mask]
        idle = StepSamples(samples=step.samples, weights=[0.0] * len(step.samples))
        for _ in range(self._most(len(plan)) - len(plan)):  # the others need this one's shards
            self._check(stop)
            of_pass(pass_batch(idle, rows, plan[-1])[0], plan[-1])
        return Found(loss=loss, sums=sums, logprobs=logprobs)

    def _check(self, stop: Stop) -> None:
        if self._most(stop()):
            raise Stopped

    def _plan(self, rows: StepRows) -> Sequence[Pass]:
        flash = self._model.whole.config._attn_implementation == "flash_attention_2"
        return plan_passes(rows, max_tokens=self.max_tokens, one_row=flash)

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
                    other_logits[name] = self._model.head(states[name][at]).float()
            logits = self._model.head(hidden).float()
            return token_terms(self._xp, logits, other_logits, arrays, objective)

        if len(batch.logit_row) <= self._num_positions:
            at = torch.arange(len(batch.logit_row), device=hidden.device)
            return of_positions(hidden, at, BatchArrays(self._xp, batch))
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
            at, arrays = self._xp.array(chunk.positions), BatchArrays(self._xp, chunk.batch)
            if alone and torch.is_grad_enabled() and len(at) == len(chunk.batch.mask):
                parts.append(_at_once(of_positions, hidden[at], at, arrays))
            else:
                parts.append(checkpoint(of_positions, hidden[at], at, arrays, use_reentrant=False))
        order = self._xp.array(number)
        return {name: torch.cat([part[name] for part in parts])[order, 0] for name in parts[0]}

    def _hidden(self, one: Pass, batch: Batch) -> Tensor:
        """[P, H] output of the trunk at the logit positions of a pass."""
        array = self._xp.array
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
