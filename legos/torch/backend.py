"""The torch backend: gradients, AdamW, an EMA and a reference for the LoRA of each policy.

Several policies share the base model. An update makes new arrays and changes none, so adapters and
snapshots stay as they are.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from legos.errors import AdapterError, CheckpointError, TrainerError
from legos.losses.objective import Objective
from legos.protocols import Snapshot
from legos.records.names import POLICY
from legos.records.packing import StepSamples, check_token_ids, per_sample
from legos.records.sample import Sample
from legos.records.step import BackendConfig, PassResult, Stop, Update, never
from legos.torch.gradients import Found, Others
from legos.torch.lora import Modules, install, other_lora
from legos.torch.model import CausalModel
from legos.torch.ranks import Ranks
from legos.torch.shares import begin
from legos.weights.adapter import Adapter, LoraShape
from legos.weights.fits import check_finite, check_shapes
from legos.weights.policy_state import (
    PolicyState,
    policy_folder,
    read_policy_state,
    write_policy_state,
)
from legos.weights.reference import Lora, Reference

__all__ = ["TorchBackend"]

logger = logging.getLogger(__name__)
T = TypeVar("T")
Arrays = Mapping[str, Tensor]
Call = Callable[..., "Future[Any]"]
EPSILON = 1e-8  # added to the root of AdamW's second moment


@dataclass(slots=True)
class _Policy:
    """The training state of one policy."""

    adapter: Adapter  # the newest version, as NumPy arrays
    arrays: Arrays  # the same arrays on the device, whose gradients are computed
    ema: Arrays
    moments: Arrays  # "<array>.m" and "<array>.v"
    updates: int  # updates of the moments
    reference: Reference
    pending: Arrays | None = None  # gradients that ``optim_step`` has not applied yet


class TorchBackend:
    """Owns the trained adapters of one model; ``call`` runs everything that computes."""

    def __init__(
        self,
        call: Call,
        model: CausalModel,
        modules: Modules,
        first: Adapter,
        config: BackendConfig | None = None,
        *,
        ranks: Ranks | None = None,
    ) -> None:
        """Take over a model with LoRA.

        Args:
            call: runs a function, on the thread that owns the model.
            model: the model.
            modules: its modules with LoRA.
            first: LoRA arrays with which every policy starts.
            config: settings of the backend; None: the defaults.
            ranks: processes that compute every step with this one.

        Raises:
            TrainerError: packed samples of the model see each other.
            AdapterError: the reference adapter does not exist, or does not fit.
        """
        self._config = config = config or BackendConfig()
        self._call = call
        self._model = model
        self._modules = modules
        self._shape: LoraShape = first.shape
        self._policies: Mapping[str, _Policy] = {}
        call(self._prepare, first.arrays, ranks).result()

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
        return self._call(self._forward_backward, step, objective, policy, stop)

    def optim_step(self, update: Update, *, policy: str = POLICY) -> "Future[int]":
        """Apply the gradients of the policy's last ``forward_backward``; returns the new version.

        The future raises ``TrainerError`` where there are no gradients.
        """
        return self._call(self._optim_step, update, policy)

    def logprobs(
        self, samples: Sequence[Sample], *, policy: str = POLICY, reference: bool = False
    ) -> "Future[Sequence[NDArray[np.float32]]]":
        """[S][A] log-probabilities (nats) of chosen tokens under the policy or its reference."""
        return self._call(self._logprobs, samples, policy, reference)

    def adapter(self, policy: str = POLICY) -> Adapter:
        """A policy's newest adapter; later steps do not change its arrays.

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
        self._call(self._load, policy, arrays, adapter.version).result()

    def snapshot(self) -> "Future[Snapshot]":
        """Adapters, EMAs, references and optimisers as they are now.

        A policy with another name than the default gets its own subfolder.
        """
        return self._call(self._snapshot)

    def restore(self, folder: Path) -> None:
        """Read what a snapshot wrote, on this device or another.

        Raises:
            CheckpointError: a file is missing, damaged or from another model.
        """
        try:
            self._call(self._restore, folder).result()
        except (AdapterError, ValueError, KeyError, OSError) as error:
            raise CheckpointError(f"{folder} cannot be restored: {error}") from error

    def _prepare(self, first: Mapping[str, Any], ranks: Ranks | None) -> None:
        self._gradients = begin(
            self._model,
            self._modules,
            ranks,
            max_tokens=self._config.micro_batch_tokens,
            checkpointing=self._config.gradient_checkpointing,
        )
        self._policies = {name: self._begun(name, first) for name in self._config.policies}
        if not self._config.restored:
            for policy in self._policies.values():
                policy.reference.lora()

    def _begun(self, name: str, first: Mapping[str, Any]) -> _Policy:
        """The training state of a policy before its first step."""
        arrays = self._leaves(first)
        zeros = {key: torch.zeros_like(array) for key, array in arrays.items()}
        moments = {f"{key}.{part}": zero for key, zero in zeros.items() for part in ("m", "v")}
        reference = Reference(arrays, self._config.reference, convert=self._tensor)
        adapter = self._adapter(name, 0, arrays)
        return _Policy(adapter, arrays, _detached(arrays), moments, 0, reference)

    def _tensor(self, array: Any) -> Tensor:
        """A copy of an array on the device, in float32."""
        return torch.tensor(np.asarray(array), dtype=torch.float32, device=self._model.device)

    def _leaves(self, arrays: Mapping[str, Any]) -> Arrays:
        """Copies of NumPy arrays on the device, which gather gradients."""
        return {name: self._tensor(array).requires_grad_() for name, array in arrays.items()}

    def _adapter(self, name: str, version: int, arrays: Arrays) -> Adapter:
        whole = {key: array.numpy(force=True) for key, array in arrays.items()}
        return Adapter(name=name, version=version, shape=self._shape, arrays=whole)

    def _find(self, name: str) -> _Policy:
        if name not in self._policies:
            raise TrainerError(f"no policy {name!r} is trained here; known: {[*self._policies]}")
        return self._policies[name]

    def _use(self, name: str, samples: Sequence[Sample]) -> _Policy:
        """Install a policy's arrays, after a check of the samples' token ids."""
        for token_ids in {sample.token_ids for sample in samples}:
            check_token_ids(token_ids, self._model.num_vocabulary)
        policy = self._find(name)
        install(self._modules, policy.arrays)
        return policy

    def _forward_backward(
        self, step: StepSamples, objective: Objective, name: str, stop: Stop
    ) -> PassResult:
        if not step.samples:
            raise TrainerError("an optimiser step needs at least one sample; none came")
        policy = self._use(name, step.samples)
        others: dict[str, Lora | None] = {}
        unknown = any(sample.reference_logprobs is None for sample in step.samples)
        if objective.kl_coef and unknown:
            others["reference"] = policy.reference.lora()
        if objective.ema_kl_coef:
            others["ema"] = Lora(arrays=policy.ema)
        found = self._fitting(lambda: self._of_step(step, objective, others, policy, stop))
        assert policy.pending is not None, "a step that was computed has gradients"
        on_gpu = self._model.device.type == "cuda"
        return PassResult(
            loss=found.loss,
            sums=tuple(found.sums.tolist()),
            grad_norm=_norm(policy.pending.values()).item(),
            logprobs=per_sample(found.logprobs, [len(s.positions) for s in step.samples]),
            peak_bytes=torch.cuda.max_memory_allocated() if on_gpu else None,
        )

    def _of_step(
        self,
        step: StepSamples,
        objective: Objective,
        others: Others,
        policy: _Policy,
        stop: Stop,
    ) -> Found:
        policy.pending = None
        for array in policy.arrays.values():
            array.grad = None
        found = self._gradients.of_step(step, objective, others, stop)
        policy.pending = {
            name: torch.zeros_like(array) if array.grad is None else array.grad
            for name, array in policy.arrays.items()
        }
        return found

    def _fitting(self, compute: Callable[[], T]) -> T:
        """Run a computation, with smaller and smaller passes while the GPU's memory is full.

        Raises:
            TrainerError: a sample does not fit even alone.
        """
        while True:
            try:
                return compute()
            except torch.OutOfMemoryError as error:
                torch.cuda.empty_cache()
                if self._gradients.max_tokens == 1:
                    raise TrainerError(
                        "a sample does not fit into the GPU's memory even alone; give shorter "
                        "ones, or --training.gradient-checkpointing"
                    ) from error
                self._gradients.max_tokens //= 2
                logger.warning("memory is full; passes of %d tokens", self._gradients.max_tokens)

    def _logprobs(
        self, samples: Sequence[Sample], name: str, reference: bool
    ) -> Sequence[NDArray[np.float32]]:
        if not samples:
            return []
        policy = self._use(name, samples)
        lora = policy.reference.lora() if reference else Lora(arrays=policy.arrays)
        step = StepSamples(samples=samples, weights=[0.0] * len(samples))
        with other_lora(self._modules, lora):
            found = self._fitting(lambda: self._gradients.logprobs(step))
        return per_sample(found, [len(sample.positions) for sample in samples])

    def _optim_step(self, update: Update, name: str) -> int:
        policy = self._find(name)
        if policy.pending is None:
            raise TrainerError("there are no gradients to apply; call forward_backward first")
        gradients, policy.pending = policy.pending, None
        before = _detached(policy.arrays)
        with torch.no_grad():
            scale = (update.max_grad_norm / (_norm(gradients.values()) + 1e-6)).clamp(max=1.0)
            gradients = {key: scale * gradient for key, gradient in gradients.items()}
            after, moments = self._adamw(before, gradients, policy, update.learning_rate)
            keep = update.ema_decay or 0.0
            ema = {key: keep * policy.ema[key] + (1.0 - keep) * new for key, new in after.items()}
        policy.arrays = {key: array.requires_grad_() for key, array in after.items()}
        policy.ema, policy.moments, policy.updates = ema, moments, policy.updates + 1
        policy.adapter = self._adapter(name, policy.adapter.version + 1, policy.arrays)
        every = update.kl_refresh_steps
        if every is not None and policy.adapter.version % every == 0:
            policy.reference.take(Lora(arrays=_detached(after), scale=self._shape.scale))
            logger.info(
                "the reference of the divergences is now version %d", policy.adapter.version
            )
        return policy.adapter.version

    def _adamw(
        self, before: Arrays, gradients: Arrays, policy: _Policy, rate: float
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """The arrays and moments after an update, as MLX's AdamW with bias correction gives them.

        Source: Loshchilov and Hutter, arXiv:1711.05101.
        """
        beta1, beta2 = self._config.betas
        number = policy.updates + 1
        step = rate / (1.0 - beta1**number)
        correction = (1.0 - beta2**number) ** -0.5
        after: dict[str, Tensor] = {}
        moments: dict[str, Tensor] = {}
        for key, gradient in gradients.items():
            m = beta1 * policy.moments[f"{key}.m"] + (1.0 - beta1) * gradient
            v = beta2 * policy.moments[f"{key}.v"] + (1.0 - beta2) * gradient.square()
            moments[f"{key}.m"], moments[f"{key}.v"] = m, v
            after[key] = before[key] - step * m / (v.sqrt() * correction + EPSILON)
        return after, moments

    def _load(self, name: str, arrays: Mapping[str, Any], version: int) -> None:
        policy = self._find(name)
        check_shapes(arrays, _shapes(policy.arrays), name=f"v{version}")
        check_finite(arrays, name=f"v{version}")
        policy.arrays = self._leaves(arrays)
        policy.ema = _detached(policy.arrays)
        policy.adapter = self._adapter(name, version, policy.arrays)

    def _snapshot(self) -> Snapshot:
        states = {name: self._state(name) for name in self._policies}
        references = {name: policy.reference.lora() for name, policy in self._policies.items()}

        def write(folder: Path) -> None:
            for name, state in states.items():
                place = policy_folder(folder, name)
                place.mkdir(exist_ok=True)
                write_policy_state(state, place)
                lora = references[name]
                if lora is not None:
                    lora = Lora(arrays=_numpy(lora.arrays), scale=lora.scale)
                self._policies[name].reference.write(lora, place)

        return write

    def _state(self, name: str) -> PolicyState:
        policy = self._policies[name]
        return PolicyState(
            name=name,
            version=policy.adapter.version,
            updates=policy.updates,
            adapter=policy.adapter.arrays,
            ema=_numpy(policy.ema),
            moments=_numpy(policy.moments),
        )

    def _restore(self, folder: Path) -> None:
        for name, policy in self._policies.items():
            place = policy_folder(folder, name)
            state = read_policy_state(place, name, _shapes(policy.arrays))
            check_finite(state.ema, name="EMA")
            policy.reference.restore(place)
            self._load(name, state.adapter, state.version)
            policy.ema = {key: self._tensor(array) for key, array in state.ema.items()}
            policy.moments = {key: self._tensor(array) for key, array in state.moments.items()}
            policy.updates = state.updates


def _detached(arrays: Arrays) -> dict[str, Tensor]:
    return {name: array.detach() for name, array in arrays.items()}


def _numpy(arrays: Arrays) -> dict[str, Any]:
    return {name: array.numpy(force=True) for name, array in arrays.items()}


def _shapes(arrays: Arrays) -> dict[str, tuple[int, ...]]:
    return {name: tuple(array.shape) for name, array in arrays.items()}


def _norm(gradients: Any) -> Tensor:
    """The global L2 norm of the gradients."""
    return torch.stack([gradient.square().sum() for gradient in gradients]).sum().sqrt()
