"""The MLX backend: gradients, an optimiser, an EMA and a reference for the LoRA of each policy.

Several policies share the base model and one module tree. The tree holds the LoRA arrays of one
policy at a time; switching to another policy copies no array.
"""

import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast

import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optim
import numpy as np
from mlx.utils import tree_flatten, tree_map, tree_unflatten
from numpy.typing import NDArray

from legos.errors import AdapterError, CheckpointError, TrainerError
from legos.losses.objective import Objective
from legos.mlx.model.faults import recovered
from legos.mlx.model.load import num_token_ids
from legos.mlx.model.lora import check_fits, lora_arrays, set_lora_arrays
from legos.mlx.model.spans import Spans
from legos.mlx.model.worker import Worker
from legos.mlx.train.prefix_sharing.backward import Found
from legos.mlx.train.reference import other_lora
from legos.mlx.train.shares import Leader, gradients_of
from legos.protocols import Snapshot
from legos.records.names import POLICY
from legos.records.packing import StepSamples, check_token_ids, per_sample
from legos.records.sample import Sample
from legos.records.step import BackendConfig, PassResult, Stop, Update, never
from legos.weights.adapter import Adapter, LoraShape
from legos.weights.policy_state import (
    PolicyState,
    policy_folder,
    read_policy_state,
    write_policy_state,
)
from legos.weights.reference import Lora, Reference

__all__ = ["MlxBackend"]

logger = logging.getLogger(__name__)
T = TypeVar("T")


@dataclass(slots=True)
class _Policy:
    """The training state of one policy."""

    adapter: Adapter  # the newest version
    ema: Mapping[str, mx.array]
    optimiser: optim.AdamW
    reference: Reference
    pending: Any = None  # gradients that `optim_step` has not applied yet


class MlxBackend:
    """Owns the trained adapters of one module tree; every call runs on the worker's thread."""

    def __init__(
        self,
        worker: Worker,
        model: nn.Module,
        shape: LoraShape,
        config: BackendConfig | None = None,
        *,
        group: mx.distributed.Group | None = None,
        leader: Leader | None = None,
    ) -> None:
        """Take over a module tree with LoRA that the worker's thread has built.

        Args:
            worker: runs every call that uses the tree.
            model: the module tree; every policy starts with its LoRA arrays.
            shape: shape of the LoRA in the tree.
            config: settings of the backend; None: the defaults.
            group: processes that share the work of every step; each must get the same steps.
            leader: in place of ``group``, orders the steps of processes that follow this one.

        Raises:
            TrainerError: the model cannot be trained.
            AdapterError: the reference adapter does not exist, or does not fit.
        """
        config = config or BackendConfig()
        self._worker = worker
        self._model = model
        self._shape = shape
        self._leader = leader
        self._group = group if leader is None else leader.group
        self.spans = Spans()
        self._num_vocabulary = num_token_ids(model)
        self._policies: Mapping[str, _Policy] = {}
        worker.call(self._prepare, config).result()

    def forward_backward(
        self,
        samples: Sequence[Sample],
        weights: Sequence[float],
        objective: Objective,
        *,
        policy: str = POLICY,
        stop: Stop = never,
    ) -> "Future[PassResult]":
        """Compute loss and gradients of a step's samples, without changing the policy."""
        step = StepSamples(samples=samples, weights=weights)
        return self._worker.call(self._forward_backward, step, objective, policy, stop)

    def optim_step(self, update: Update, *, policy: str = POLICY) -> "Future[int]":
        """Apply the gradients of the policy's last ``forward_backward``; returns the new version.

        The future raises ``TrainerError`` where there are no gradients.
        """
        return self._worker.call(self._optim_step, update, policy)

    def logprobs(
        self, samples: Sequence[Sample], *, policy: str = POLICY, reference: bool = False
    ) -> "Future[Sequence[NDArray[np.float32]]]":
        """[S][A] log-probabilities (nats) of chosen tokens under the policy or its reference."""
        return self._worker.call(self._logprobs, samples, policy, reference)

    def adapter(self, policy: str = POLICY) -> Adapter:
        """A policy's newest adapter, without a copy; later steps do not change its arrays.

        Raises:
            TrainerError: no policy of that name is trained here.
        """
        return self._find(policy).adapter

    def load(self, adapter: Adapter, *, policy: str = POLICY) -> None:
        """Set a policy and its EMA to an adapter; the optimiser keeps its state.

        Raises:
            AdapterError: the adapter does not fit.
            TrainerError: no policy of that name is trained here.
        """
        arrays = adapter.at_scale(self._shape.scale).arrays
        self._worker.call(self._load, policy, arrays, adapter.version).result()

    def snapshot(self) -> "Future[Snapshot]":
        """Adapters, EMAs, references and optimisers as they are now, without a copy.

        A policy with another name than the default gets its own subfolder.
        """
        return self._worker.call(self._snapshot)

    def restore(self, folder: Path) -> None:
        """Read what a snapshot wrote.

        Raises:
            CheckpointError: a file is missing, damaged or from another model.
        """
        try:
            self._worker.call(self._restore, folder).result()
        except (AdapterError, ValueError, KeyError, RuntimeError, OSError) as error:
            raise CheckpointError(f"{folder} cannot be restored: {error}") from error

    def _prepare(self, config: BackendConfig) -> None:
        if self._leader is not None:
            self._leader.begin(self._shape, config)
        self._gradients = gradients_of(self._model, config, self._group)
        self._policies = {name: self._begun(name, config) for name in config.policies}
        if not config.restored:
            for policy in self._policies.values():
                policy.reference.lora()

    def _begun(self, name: str, config: BackendConfig) -> _Policy:
        """The training state of a policy before its first step."""
        optimiser = optim.AdamW(
            learning_rate=0.0, betas=list(config.betas), weight_decay=0.0, bias_correction=True
        )
        optimiser.init(self._model.trainable_parameters())
        adapter = self._trained(name, 0)
        reference = Reference(adapter.arrays, config.reference, convert=mx.array)
        return _Policy(adapter, adapter.arrays, optimiser, reference)

    def _check(self, samples: Sequence[Sample]) -> None:
        """Refuse samples whose token ids the model lacks, such as those of another server."""
        for token_ids in {sample.token_ids for sample in samples}:
            check_token_ids(token_ids, self._num_vocabulary)

    def _find(self, name: str) -> _Policy:
        if name not in self._policies:
            raise TrainerError(f"no policy {name!r} is trained here; known: {[*self._policies]}")
        return self._policies[name]

    def _use(self, name: str) -> _Policy:
        """Put a policy's arrays into the tree."""
        policy = self._find(name)
        if len(self._policies) > 1:
            set_lora_arrays(self._model, policy.adapter.arrays)
        return policy

    def _forward_backward(
        self, step: StepSamples, objective: Objective, name: str, stop: Stop
    ) -> PassResult:
        if not step.samples:
            raise TrainerError("an optimiser step needs at least one sample; none came")
        self._check(step.samples)
        policy = self._use(name)
        policy.pending = None
        reference = policy.reference.lora() if objective.kl_coef else None

        def compute() -> tuple[Found, float]:
            with self.spans, self._ordered(step, objective, policy, reference):
                found = self._gradients.of_step(
                    step, objective, policy.ema, reference=reference, stop=stop
                )
                norm = _norm(found.gradients)
                mx.synchronize()  # an error of the pass must come before its gradients are used
                return found, norm

        found, norm = recovered(compute, self._gradients.halve, retry=self._group is None)
        policy.pending = found.gradients
        limit = self._gradients.row_limit
        kept = [limit is None or sample.positions[-1] <= limit for sample in step.samples]
        counts = [len(s.positions) * keep for s, keep in zip(step.samples, kept, strict=True)]
        return PassResult(
            loss=found.loss,
            sums=tuple(found.sums.tolist()),
            grad_norm=norm,
            logprobs=per_sample(found.logprobs, counts),
            row_limit=limit,
            peak_bytes=mx.get_peak_memory(),
        )

    def _ordered(
        self, step: StepSamples, objective: Objective, policy: _Policy, reference: Lora | None
    ) -> AbstractContextManager[None]:
        """Within the block, the processes that follow this one compute their part of a step."""
        if self._leader is None:
            return nullcontext()
        lora = policy.adapter.arrays
        return self._leader.step(step, objective, lora, ema=policy.ema, reference=reference)

    def _logprobs(
        self, samples: Sequence[Sample], name: str, reference: bool
    ) -> Sequence[NDArray[np.float32]]:
        if not samples:
            return []
        self._check(samples)
        policy = self._use(name)
        lora = policy.reference.lora() if reference else None
        within = partial(other_lora, self._model, lora) if reference else nullcontext

        def compute() -> NDArray[np.float32]:
            with self.spans:
                found = self._gradients.logprobs(samples, within)
                mx.synchronize()
                return found

        found = recovered(compute, self._gradients.halve, retry=self._group is None)
        return per_sample(found, [len(sample.positions) for sample in samples])

    def _optim_step(self, update: Update, name: str) -> int:
        policy = self._use(name)
        if policy.pending is None:
            raise TrainerError("there are no gradients to apply; call forward_backward first")
        gradients, policy.pending = policy.pending, None
        state = tree_map(_same, policy.optimiser.state)

        def apply() -> None:
            try:
                with self.spans:
                    self._apply(policy, gradients, update)
            except BaseException:
                policy.optimiser.state = tree_map(_same, state)
                set_lora_arrays(self._model, policy.adapter.arrays)
                raise

        recovered(apply, retry=self._group is None)
        return policy.adapter.version

    def _apply(self, policy: _Policy, gradients: Any, update: Update) -> None:
        """Set a policy's next version; the device must have confirmed every array of it."""
        mx.synchronize()
        gradients, _ = optim.clip_grad_norm(gradients, update.max_grad_norm)
        policy.optimiser.learning_rate = update.learning_rate
        policy.optimiser.update(self._model, gradients)
        adapter = self._trained(policy.adapter.name, policy.adapter.version + 1)
        trained = adapter.arrays
        if update.ema_decay is None:
            ema = trained
        else:
            keep = update.ema_decay
            ema = {
                name: keep * old + (1.0 - keep) * trained[name] for name, old in policy.ema.items()
            }
        mx.eval(trained, ema, policy.optimiser.state)
        mx.synchronize()
        policy.adapter, policy.ema = adapter, ema
        every = update.kl_refresh_steps
        if every is not None and adapter.version % every == 0:
            policy.reference.take(Lora(arrays=trained, scale=self._shape.scale))
            logger.info("the reference of the divergences is now version %d", adapter.version)

    def _trained(self, name: str, version: int) -> Adapter:
        """The tree's LoRA arrays as an adapter that later steps do not change."""
        arrays = lora_arrays(self._model)
        return Adapter(name=name, version=version, shape=self._shape, arrays=arrays)

    def _load(self, name: str, arrays: Mapping[str, Any], version: int) -> None:
        policy = self._find(name)
        fresh = {key: mx.array(array) for key, array in arrays.items()}
        check_fits(fresh, lora_arrays(self._model), name=f"v{version}")
        mx.eval(list(fresh.values()))
        set_lora_arrays(self._model, fresh)
        policy.adapter = self._trained(name, version)
        policy.ema = policy.adapter.arrays

    def _snapshot(self) -> Snapshot:
        found = {name: self._state(name) for name in self._policies}
        references = {name: policy.reference.lora() for name, policy in self._policies.items()}

        def write(folder: Path) -> None:
            for name, state in found.items():
                place = policy_folder(folder, name)
                place.mkdir(exist_ok=True)
                write_policy_state(state, place)
                self._policies[name].reference.write(references[name], place)

        return write

    def _state(self, name: str) -> PolicyState:
        """The evaluated arrays of a policy, which later steps replace and do not change."""
        policy = self._policies[name]
        moments = dict(tree_flatten(policy.optimiser.state))
        updates = int(_number(moments.pop("step")))
        moments.pop("learning_rate")  # every update sets it again
        mx.eval(moments)
        return PolicyState(
            name=name,
            version=policy.adapter.version,
            updates=updates,
            adapter=policy.adapter.arrays,
            ema=policy.ema,
            moments=moments,
        )

    def _restore(self, folder: Path) -> None:
        shapes = {name: array.shape for name, array in lora_arrays(self._model).items()}
        for name, policy in self._policies.items():
            place = policy_folder(folder, name)
            state = read_policy_state(place, name, shapes)
            ema = {key: mx.array(array) for key, array in state.ema.items()}
            moments = {key: mx.array(array) for key, array in state.moments.items()}
            check_fits(ema, lora_arrays(self._model), name="EMA")
            policy.reference.restore(place)
            self._load(name, state.adapter, state.version)
            policy.ema = ema
            policy.optimiser.state = cast("dict[str, Any]", tree_unflatten(list(moments.items())))
            policy.optimiser.state |= {
                "step": mx.array(state.updates, mx.uint64),
                "learning_rate": mx.array(0.0),
            }
            mx.eval(ema, policy.optimiser.state)


def _same(array: T) -> T:
    return array


def _number(array: Any) -> float:
    """The value of an array with one element."""
    return float(array.item())


def _norm(gradients: Any) -> float:
    """The global L2 norm of the gradients."""
    arrays: list[Any] = [array for _, array in tree_flatten(gradients)]
    squares: Any = [mx.sum(mx.square(array)) for array in arrays]
    return _number(mx.sqrt(mx.sum(mx.stack(squares))))
