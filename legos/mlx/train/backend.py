"""The MLX backend: gradients of the LoRA arrays, the optimiser, the average and the reference."""

import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any, cast

import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optim
import numpy as np
from mlx.utils import tree_flatten, tree_unflatten

from legos.data.names import POLICY
from legos.data.sample import Sample
from legos.data.step import PassResult, Update
from legos.errors import AdapterError, CheckpointError, TrainerError
from legos.losses.objective import Objective
from legos.mlx.model.lora import check_fits, lora_arrays, set_lora_arrays
from legos.mlx.model.spans import Spans
from legos.mlx.model.worker import Worker
from legos.mlx.train.packing import StepSamples
from legos.mlx.train.reference import Lora, Reference
from legos.mlx.train.rematerialisation import rematerialise_layers
from legos.mlx.train.step_gradients import StepGradients
from legos.weights.adapter import Adapter, LoraShape
from legos.weights.policy_state import PolicyState, read_policy_state, write_policy_state

__all__ = ["MlxBackend"]

logger = logging.getLogger(__name__)


class MlxBackend:
    """Owns the trained adapter of one module tree; every call runs on the worker's thread."""

    def __init__(
        self,
        worker: Worker,
        model: nn.Module,
        shape: LoraShape,
        *,
        betas: tuple[float, float] = (0.9, 0.95),
        weight_decay: float = 0.0,
        micro_batch_tokens: int = 4096,
        gradient_checkpointing: bool = False,
        reference: Path | None = None,
        memory_limit_bytes: int | None = None,
        tell: Callable[[str], None] | None = None,
        group: mx.distributed.Group | None = None,
    ) -> None:
        """Take over a module tree that the worker's thread has built, LoRA already in it.

        Args:
            worker: runs everything that touches the tree.
            model: the tree.
            shape: where LoRA stands in it.
            betas: decay of AdamW's moments.
            weight_decay: of AdamW, on the LoRA arrays.
            micro_batch_tokens: padded tokens computed at once, shared prefixes counted once.
            gradient_checkpointing: keep the inputs of layers alone and compute them again on the
                way back: less memory, about a third more time.
            reference: folder of the adapter that ``kl_coef`` pulls to at first, of any rank, read
                when it is first needed and from then on in every checkpoint; None: the model
                without LoRA.
            memory_limit_bytes: what the device may hold at the most: less is computed at once to
                stay below it, and samples that do not fit alone are left out of their step; None:
                most of what it has.
            tell: is given the plan of the memory before the first step; None: it is logged.
            group: processes that share the work of every step; each is given the same steps.

        Raises:
            TrainerError: weight decay with DoRA.
        """
        if shape.use_dora and weight_decay:
            raise TrainerError(
                f"weight decay {weight_decay} would pull the lengths of DoRA's rows, and with them "
                "the model, to 0; set it to 0"
            )
        self._worker = worker
        self._model = model
        if gradient_checkpointing:
            worker.call(rematerialise_layers, model).result()
        self._gradients = worker.call(
            partial(
                StepGradients,
                model,
                max_tokens=micro_batch_tokens,
                group=group,
                ceiling_bytes=memory_limit_bytes,
                tell=tell,
            )
        ).result()
        self._shape = shape
        self._optimiser = optim.AdamW(
            learning_rate=0.0, betas=list(betas), weight_decay=weight_decay, bias_correction=True
        )
        worker.call(self._optimiser.init, model.trainable_parameters()).result()
        self._adapter = worker.call(self._trained, 0).result()
        self._average: Mapping[str, mx.array] = self._adapter.arrays
        self._reference = Reference(model, reference)
        self._pending: Any = None  # gradients that wait for `optim_step`
        self.spans = Spans()

    @property
    def version(self) -> int:
        """Optimiser steps applied so far."""
        return self._adapter.version

    def forward_backward(
        self, samples: Sequence[Sample], weights: Sequence[float], objective: Objective
    ) -> "Future[PassResult]":
        """Compute loss and gradients of a step's samples; the policy stays as it is."""
        step = StepSamples(samples=samples, weights=weights)
        return self._worker.call(self._forward_backward, step, objective)

    def optim_step(self, update: Update) -> "Future[int]":
        """Apply the gradients of the last ``forward_backward``; the policy version after it.

        The future raises ``TrainerError`` where there are none.
        """
        return self._worker.call(self._optim_step, update)

    def adapter(self) -> Adapter:
        """The adapter as trained so far; nothing is copied and its arrays never change."""
        return self._adapter

    def load(self, adapter: Adapter) -> None:
        """Start from an adapter, and the average from it; the optimiser keeps its state.

        Raises:
            AdapterError: it does not fit.
        """
        self._worker.call(self._load, adapter.arrays, adapter.version).result()

    def read_reference(self) -> None:
        """Read the reference's adapter now.

        Raises:
            AdapterError: there is no such adapter, or it does not fit.
        """
        self._worker.call(self._reference.lora).result()

    def save(self, folder: Path) -> None:
        """Write adapter, average, reference and optimiser state into an existing folder."""
        self._worker.call(self._save, folder).result()

    def restore(self, folder: Path) -> None:
        """Read what ``save`` wrote.

        Raises:
            CheckpointError: a file is missing, damaged or of another model.
        """
        try:
            self._worker.call(self._restore, folder).result()
        except (AdapterError, ValueError, KeyError, RuntimeError, OSError) as error:
            raise CheckpointError(f"{folder} cannot be restored: {error}") from error

    def _forward_backward(self, step: StepSamples, objective: Objective) -> PassResult:
        if not step.samples:
            raise TrainerError("an optimiser step needs at least one sample; none came")
        self._pending = None
        reference = self._reference.lora() if objective.kl_coef else None
        with self.spans:
            found = self._gradients.of_step(step, objective, self._average, reference=reference)
            norm = _norm(found.gradients)
        self._pending = found.gradients
        limit = self._gradients.row_limit
        kept = [limit is None or sample.positions[-1] <= limit for sample in step.samples]
        counts = [len(s.positions) * keep for s, keep in zip(step.samples, kept, strict=True)]
        return PassResult(
            loss=found.loss,
            sums=tuple(found.sums.tolist()),
            grad_norm=norm,
            logprobs=np.split(found.logprobs, np.cumsum(counts)[:-1]),
            row_limit=limit,
            peak_bytes=mx.get_peak_memory(),
        )

    def _optim_step(self, update: Update) -> int:
        if self._pending is None:
            raise TrainerError("there are no gradients to apply; call forward_backward first")
        gradients, self._pending = self._pending, None
        with self.spans:
            self._apply(gradients, update)
        return self.version

    def _apply(self, gradients: Any, update: Update) -> None:
        gradients, _ = optim.clip_grad_norm(gradients, update.max_grad_norm)
        self._optimiser.learning_rate = update.learning_rate
        self._optimiser.update(self._model, gradients)
        adapter = self._trained(self._adapter.version + 1)
        trained = adapter.arrays
        if update.ema_decay is None:
            self._average = trained
        else:
            keep = update.ema_decay
            self._average = {
                name: keep * old + (1.0 - keep) * trained[name]
                for name, old in self._average.items()
            }
        mx.eval(trained, self._average, self._optimiser.state)
        self._adapter = adapter
        every = update.kl_refresh_steps
        if every is not None and self.version % every == 0:
            self._reference.take(Lora(arrays=trained, scale=self._shape.scale))
            logger.info("the reference of the divergences is now policy version %d", self.version)

    def _trained(self, version: int) -> Adapter:
        """What the tree holds, as a record that does not change with it."""
        arrays = lora_arrays(self._model)
        return Adapter(name=POLICY, version=version, shape=self._shape, arrays=arrays)

    def _load(self, arrays: Mapping[str, Any], version: int) -> None:
        fresh = {name: mx.array(array) for name, array in arrays.items()}
        check_fits(fresh, lora_arrays(self._model), name=f"v{version}")
        mx.eval(list(fresh.values()))
        set_lora_arrays(self._model, fresh)
        self._adapter = self._trained(version)
        self._average = self._adapter.arrays

    def _save(self, folder: Path) -> None:
        state = dict(tree_flatten(self._optimiser.state))
        updates = int(_number(state.pop("step")))
        state.pop("learning_rate")  # every update brings its own
        write_policy_state(
            PolicyState(
                version=self.version,
                updates=updates,
                adapter=lora_arrays(self._model),
                ema=self._average,
                moments=state,
            ),
            folder,
        )
        self._reference.save(folder)

    def _restore(self, folder: Path) -> None:
        shapes = {name: array.shape for name, array in lora_arrays(self._model).items()}
        state = read_policy_state(folder, shapes)
        average = {name: mx.array(array) for name, array in state.ema.items()}
        moments = {name: mx.array(array) for name, array in state.moments.items()}
        check_fits(average, lora_arrays(self._model), name="EMA")
        self._reference.restore(folder)
        self._load(state.adapter, state.version)
        self._average = average
        self._optimiser.state = cast("dict[str, Any]", tree_unflatten(list(moments.items())))
        self._optimiser.state |= {
            "step": mx.array(state.updates, mx.uint64),
            "learning_rate": mx.array(0.0),
        }
        mx.eval(average, self._optimiser.state)


def _number(array: Any) -> float:
    """The value of an array of one real number."""
    return float(array.item())


def _norm(gradients: Any) -> float:
    """Square root of the sum of all squares."""
    arrays: list[Any] = [array for _, array in tree_flatten(gradients)]
    squares: Any = [mx.sum(mx.square(array)) for array in arrays]
    return _number(mx.sqrt(mx.sum(mx.stack(squares))))
