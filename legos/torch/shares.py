"""A step that several processes compute: each its share of the rows, with its shard of the weights.

The first process has the policies, the optimiser and the checkpoints. It sends every step with the
LoRA arrays that are installed, so the others hold no state that could differ.
"""

import heapq
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from legos.errors import Stopped, TrainerError
from legos.losses.metrics import SUMS
from legos.losses.objective import Objective
from legos.records.packing import StepSamples, per_sample, step_rows
from legos.records.step import Stop, never
from legos.torch.gradients import Found, Others, StepGradients
from legos.torch.lora import Modules, insert_lora
from legos.torch.model import CausalModel
from legos.torch.ranks import END, Ranks
from legos.weights.adapter import LoraShape
from legos.weights.reference import Lora

__all__ = ["SharedGradients", "begin", "follow", "shared_logits", "split"]

logger = logging.getLogger(__name__)
T = TypeVar("T")
Installed = Mapping[str, tuple[NDArray[np.float32], NDArray[np.float32], float]]
"""Name of a module -> its LoRA pair and scale."""


def split(step: StepSamples, size: int) -> list[list[int]]:
    """Indices of the samples that each of ``size`` processes computes.

    Samples of one row stay together, so that it is computed once; the longest rows are given away
    first, each to the process with the fewest tokens so far. With fewer rows than processes some
    get none, and compute a copy of the first sample that counts nothing.
    """
    rows = step_rows(step.samples)
    loads = [(0, rank) for rank in range(size)]
    parts: list[list[int]] = [[] for _ in range(size)]
    for row in sorted(range(len(rows.tokens)), key=lambda row: -len(rows.tokens[row])):
        tokens, rank = heapq.heappop(loads)
        parts[rank] += rows.samples[row]
        heapq.heappush(loads, (tokens + len(rows.tokens[row]), rank))
    return [sorted(part) for part in parts]


@dataclass(frozen=True, slots=True)
class _Share:
    """One process's part of every step; all processes call the same methods in the same order."""

    gradients: StepGradients
    modules: Modules
    ranks: Ranks

    def of_step(
        self, step: StepSamples, objective: Objective, others: Others, stop: Stop = never
    ) -> list[Found | None]:
        """The results of all shares; the gradients of the installed arrays are their sum."""
        part, counts = self._part(step)
        found = self.gradients.of_step(part, objective, others, stop)
        leaves = [array for module in self.modules.values() for array in module.pair]
        for leaf in leaves:
            if leaf.grad is None:
                leaf.grad = torch.zeros_like(leaf)
        self.ranks.add([leaf.grad for leaf in leaves if leaf.grad is not None])
        return self.ranks.gathered(found if counts else None)

    def logprobs(self, step: StepSamples) -> list[Found | None]:
        """The log-probabilities of all shares."""
        part, counts = self._part(step)
        logprobs = self.gradients.logprobs(part)
        found = Found(loss=0.0, sums=np.zeros(len(SUMS)), logprobs=logprobs)
        return self.ranks.gathered(found if counts else None)

    def _part(self, step: StepSamples) -> tuple[StepSamples, bool]:
        """This process's samples, and whether they count or copy one that another computes."""
        own = split(step, self.ranks.size)[self.ranks.rank]
        samples = [step.samples[index] for index in own or [0]]
        weights = [step.weights[index] for index in own] or [0.0]
        return StepSamples(samples=samples, weights=weights), bool(own)


class SharedGradients:
    """The verbs of ``StepGradients`` on the first process, for a step that all compute."""

    max_tokens = 1  # a pass that does not fit ends the run: no process can make it smaller alone

    def __init__(self, own: _Share) -> None:
        self._own = own
        self._modules = own.modules
        self._ranks = own.ranks

    def of_step(
        self, step: StepSamples, objective: Objective, others: Others, stop: Stop = never
    ) -> Found:
        """Compute a step; ``.grad`` of the installed LoRA arrays gets the gradients of all."""
        known = {name: _to_numpy(lora) for name, lora in others.items()}
        self._ranks.tell("of_step", _installed(self._modules), step, objective, known)
        own = self._own
        compute = partial(own.of_step, step, objective, others, stop)
        return _joined(step, _guarded(self._ranks, compute))

    def logprobs(self, step: StepSamples) -> NDArray[np.float32]:
        """[N] log-probabilities (nats) of the chosen tokens, sample by sample, without gradient."""
        self._ranks.tell("logprobs", _installed(self._modules), step)
        parts = _guarded(self._ranks, lambda: self._own.logprobs(step))
        return _joined(step, parts).logprobs


def begin(
    model: CausalModel,
    modules: Modules,
    ranks: Ranks | None,
    *,
    max_tokens: int,
    checkpointing: bool,
) -> StepGradients | SharedGradients:
    """What computes the steps of a model with LoRA, here or on all processes.

    Raises:
        TrainerError: packed samples of the model see each other.
    """
    settings = max_tokens, checkpointing
    if ranks is None:
        return _begun(model, modules, None, *settings)
    ranks.tell("begin", *settings)
    own = _guarded(ranks, lambda: _begun(model, modules, ranks, *settings))
    return SharedGradients(_Share(own, modules, ranks))


def shared_logits(
    model: CausalModel, modules: Modules, ranks: Ranks, input_ids: Sequence[int]
) -> NDArray[np.float32]:
    """[T, V] next-token logits under the installed arrays, on the first process."""
    ranks.tell("logits", _installed(modules), list(input_ids))
    return _guarded(ranks, lambda: model.all_logits(input_ids))


def follow(model: CausalModel, ranks: Ranks) -> None:
    """Compute with the first process what it orders, until it ends the run.

    Raises:
        TrainerError: a computation failed, or the first process has ended without a word.
    """
    logger.info("process %d of %d computes with process 0", ranks.rank, ranks.size)
    follower = _Follower(model, ranks)
    orders: Mapping[str, Callable[..., object]] = {
        "add_lora": follower.add_lora,
        "begin": follower.begin,
        "logits": follower.logits,
        "logprobs": follower.logprobs,
        "of_step": follower.of_step,
    }
    while (order := ranks.told())[0] != END:
        with suppress(Stopped):
            _guarded(ranks, lambda order=order: orders[order[0]](*order[1:]))


class _Follower:
    """What a process holds that is not the first: a shard of the model, and nothing of the run."""

    def __init__(self, model: CausalModel, ranks: Ranks) -> None:
        self._model = model
        self._ranks = ranks
        self._modules: Modules = {}
        self._share: _Share | None = None

    def add_lora(self, shape: LoraShape) -> None:
        model = self._model
        self._modules = insert_lora(model.whole, model.last_layers(shape.num_layers), shape)

    def begin(self, max_tokens: int, checkpointing: bool) -> None:
        model, modules, ranks = self._model, self._modules, self._ranks
        self._share = _Share(
            _begun(model, modules, ranks, max_tokens, checkpointing), modules, ranks
        )

    def logits(self, installed: Installed, input_ids: Sequence[int]) -> None:
        self._install(installed)
        self._model.all_logits(input_ids)

    def logprobs(self, installed: Installed, step: StepSamples) -> None:
        self._install(installed)
        self._ready.logprobs(step)

    def of_step(
        self,
        installed: Installed,
        step: StepSamples,
        objective: Objective,
        others: Mapping[str, Lora | None],
    ) -> None:
        self._install(installed)
        on_device = {
            name: None if lora is None else Lora(arrays=self._tensors(lora), scale=lora.scale)
            for name, lora in others.items()
        }
        self._ready.of_step(step, objective, on_device)

    @property
    def _ready(self) -> _Share:
        assert self._share is not None, "the first process begins before it orders a step"
        return self._share

    def _install(self, installed: Installed) -> None:
        for name, (a, b, scale) in installed.items():
            module = self._modules[name]
            module.lora_a, module.lora_b = (self._tensor(x).requires_grad_() for x in (a, b))
            module.scale = scale

    def _tensors(self, lora: Lora) -> dict[str, Tensor]:
        return {name: self._tensor(array) for name, array in lora.arrays.items()}

    def _tensor(self, array: NDArray[np.float32]) -> Tensor:
        return torch.tensor(array, device=self._model.device)


def _begun(
    model: CausalModel,
    modules: Modules,
    ranks: Ranks | None,
    max_tokens: int,
    checkpointing: bool,
) -> StepGradients:
    model.check_packing()
    if checkpointing:
        model.checkpoint_layers()
    most = None if ranks is None else ranks.most
    return StepGradients(model, modules, max_tokens=max_tokens, most=most)


def _joined(step: StepSamples, parts: Sequence[Found | None]) -> Found:
    """The results of a step, from those of its shares."""
    found = [part for part in parts if part is not None]
    logprobs: dict[int, NDArray[np.float32]] = {}
    for own, part in zip(split(step, len(parts)), parts, strict=True):
        if part is not None:
            counts = [len(step.samples[index].positions) for index in own]
            logprobs |= dict(zip(own, per_sample(part.logprobs, counts), strict=True))
    return Found(
        loss=sum(part.loss for part in found),
        sums=np.sum([part.sums for part in found], axis=0),
        logprobs=np.concatenate([logprobs[index] for index in range(len(step.samples))]),
    )


def _guarded(ranks: Ranks, compute: Callable[[], T]) -> T:
    """Run what all processes compute; after an error here they no longer wait for each other.

    Raises:
        TrainerError: it failed.
    """
    try:
        return compute()
    except TrainerError as error:
        raise ranks.failed(error) from error.__cause__
    except (RuntimeError, ValueError) as error:
        raise ranks.failed(error) from error


def _installed(modules: Modules) -> Installed:
    return {
        name: (m.lora_a.numpy(force=True), m.lora_b.numpy(force=True), m.scale)
        for name, m in modules.items()
    }


def _to_numpy(lora: Lora | None) -> Lora | None:
    if lora is None:
        return None
    arrays = {name: array.numpy(force=True) for name, array in lora.arrays.items()}
    return Lora(arrays=arrays, scale=lora.scale)
