"""The backend of every device: policies, Adam and checkpoints around the gradients of a device.

Several policies share one base model. An update makes new arrays and changes none, so adapters and
snapshots stay as they are.
"""

import logging
import math
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from legos.device.adam import make_update
from legos.device.gradients import Arrays, DeviceGradients, StepResult
from legos.device.groups import of_groups
from legos.device.leader import Leader
from legos.errors import AdapterError, CheckpointError, TrainerError
from legos.losses.objective import Objective
from legos.losses.policy import LOSSES
from legos.protocols import Snapshot
from legos.records.count import Count
from legos.records.names import POLICY
from legos.records.packing import StepSamples, check_token_ids, per_sample
from legos.records.sample import Sample
from legos.records.step import BackendConfig, PassResult, Stop, Update, never
from legos.weights.adapter import Adapter, LoraShape
from legos.weights.fits import check_arrays
from legos.weights.policy_state import (
    PolicyState,
    policy_folder,
    read_policy_state,
    write_policy_state,
)
from legos.weights.reference import (
    Lora,
    read_reference,
    restored_reference,
    write_reference,
)

logger = logging.getLogger(__name__)
MOST_WEIGHT = 2.0**-5
"""The largest weight of a token in a pass. In float16 its gradient is rounded less than in
bfloat16, and the sum over thousands of tokens, as in a prefix that all continue, does not overflow.
"""


@dataclass(slots=True)
class _Policy:
    """The training state of one policy."""

    adapter: Adapter  # the newest version
    arrays: Arrays  # its arrays on the device
    ema: Arrays
    moments: Arrays  # "<array>.m" and "<array>.v"
    updates: int  # updates of the moments
    reference: Lora | None  # of the KL divergence; None: the base model
    pending: Arrays | None = None  # gradients that ``optim_step`` has not applied yet


class LoraBackend:
    """Owns the trained adapters of one model; ``call`` runs everything that computes."""

    def __init__(
        self,
        call: "Callable[..., Future[Any]]",
        make: Callable[[], DeviceGradients],
        first: Adapter,
        config: BackendConfig | None = None,
        *,
        leader: Leader | None = None,
    ) -> None:
        """Start every policy with the same adapter.

        Args:
            call: runs a function on the thread that owns the model.
            make: makes what computes the gradients, on that thread.
            first: LoRA arrays with which every policy starts.
            config: settings of the backend; None: the defaults.
            leader: other processes, which compute every step with this one; None: none.

        Raises:
            TrainerError: the model cannot be trained.
            AdapterError: the reference adapter does not exist, or does not fit.
        """
        self._config = config = config or BackendConfig()
        self._shape: LoraShape = first.shape
        self._call = call
        self._leader = leader or Leader(None)
        self._policies: dict[str, _Policy] = {}
        call(self._prepare, make, first).result()

    @property
    def passes(self) -> Count:
        """The passes of the step that is computed, in this process."""
        return self._device.passes

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

    def optim_step(self, update: Update, *, policies: Sequence[str] = (POLICY,)) -> "Future[None]":
        """Apply the gradients of the last ``forward_backward`` of each policy: of all or none.

        The future raises ``TrainerError`` where there are no gradients.
        """
        return self._call(self._optim_step, update, policies)

    def adapter(self, policy: str = POLICY) -> Adapter:
        """A policy's newest adapter; later steps do not change its arrays.

        Raises:
            TrainerError: no policy of that name is trained here.
        """
        return self._find(policy).adapter

    def take(self, adapter: Adapter, *, policy: str = POLICY) -> "Future[int]":
        """Go on from other weights, as the next version; the optimiser and the EMA start again.

        The future raises ``AdapterError`` where the adapter has another shape.
        """
        return self._call(self._take, adapter, policy)

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
        except (AdapterError, ValueError, KeyError, RuntimeError, OSError) as error:
            raise CheckpointError(f"{folder} cannot be restored: {error}") from error

    def _prepare(self, make: Callable[[], DeviceGradients], first: Adapter) -> None:
        settings = replace(self._config, report=None, reference=None)
        device = self._device = self._leader.together(make, "begin", self._shape, settings)
        self._adam = make_update(device.xp, self._config.betas)
        arrays = self._on_device(first.arrays)
        moments = self._first_moments(arrays)
        source, reference = self._config.reference, None
        if source is None and first.has_effect:
            reference = Lora(arrays=arrays, scale=self._shape.scale)
        elif not self._config.restored:
            found = read_reference(source, arrays)
            reference = found and found.converted(self._on_device)
        for name in self._config.policies:
            adapter = self._adapter(name, 0, arrays)
            self._policies[name] = _Policy(adapter, arrays, arrays, moments, 0, reference)

    def _on_device(self, arrays: Arrays) -> Arrays:
        return {key: self._device.array(values) for key, values in arrays.items()}

    def _first_moments(self, arrays: Arrays) -> Arrays:
        """Moments before the first update, evaluated, since another thread may write them."""
        zeros = {key: self._device.xp.zeros_like(array) for key, array in arrays.items()}
        moments = {f"{key}.{part}": zero for key, zero in zeros.items() for part in ("m", "v")}
        self._device.evaluate(moments)
        return moments

    def _adapter(self, name: str, version: int, arrays: Arrays) -> Adapter:
        host = self._device.host(arrays)
        return Adapter(name=name, version=version, shape=self._shape, arrays=host)

    def _find(self, name: str) -> _Policy:
        if name not in self._policies:
            raise TrainerError(f"no policy {name!r} is trained here; known: {[*self._policies]}")
        return self._policies[name]

    def _use(self, name: str, samples: Sequence[Sample]) -> _Policy:
        """Install a policy's arrays, after a check of token ids, which may be of another server."""
        for token_ids in {sample.token_ids for sample in samples}:
            check_token_ids(token_ids, self._device.num_vocabulary)
        policy = self._find(name)
        self._device.install(policy.arrays)
        return policy

    def _forward_backward(
        self, step: StepSamples, objective: Objective, name: str, stop: Stop
    ) -> PassResult:
        if not step.samples:
            raise TrainerError("an optimiser step needs at least one sample; none came")
        policy = self._use(name, step.samples)
        policy.pending = None
        others: dict[str, Lora | None] = {}
        if objective.kl_coef and any(s.reference_logprobs is None for s in step.samples):
            others["reference"] = policy.reference
        if objective.ema_kl_coef:
            others["ema"] = Lora(arrays=policy.ema, scale=self._shape.scale)

        def passes(step: StepSamples) -> StepResult:
            sent = {name: lora and lora.converted(self._sent) for name, lora in others.items()}
            factor = _factor(step.weights)
            step = replace(step, weights=[factor * weight for weight in step.weights])
            compute = partial(self._device.of_step, step, objective, others, stop)
            found = self._leader.together(
                compute, "of_step", self._sent(policy.arrays), step, objective, sent
            )
            gradients = {name: each / factor for name, each in found.gradients.items()}
            return replace(found, loss=found.loss / factor, gradients=gradients)

        def compute() -> tuple[StepResult, float]:
            by_group = LOSSES[objective.loss].scope == "group"
            found = of_groups(self._device, passes, step, objective) if by_group else passes(step)
            return found, float(_norm(self._device.xp, found.gradients))

        found, norm = self._device.computed(compute)
        policy.pending = found.gradients
        limit = found.row_limit
        kept = [limit is None or sample.positions[-1] <= limit for sample in step.samples]
        counts = [len(s.positions) * keep for s, keep in zip(step.samples, kept, strict=True)]
        return PassResult(
            loss=found.loss,
            sums=tuple(found.sums.tolist()),
            grad_norm=norm,
            logprobs=per_sample(found.logprobs, counts),
            entropies=per_sample(found.entropies, counts),
            row_limit=limit,
            peak_bytes=found.peak_bytes,
            pass_s=found.pass_s,
        )

    def _sent(self, arrays: Arrays) -> Arrays:
        """Arrays as other processes can read them, if there are any."""
        if self._leader.group is None:
            return arrays
        return {name: np.asarray(array) for name, array in self._device.host(arrays).items()}

    def _optim_step(self, update: Update, names: Sequence[str]) -> None:
        policies = [self._find(name) for name in names]
        computed = [self._device.computed(partial(self._updated, p, update)) for p in policies]
        for name, policy, found in zip(names, policies, computed, strict=True):
            after, moments, ema = found
            policy.arrays, policy.moments, policy.ema, policy.pending = after, moments, ema, None
            policy.updates += 1
            policy.adapter = self._adapter(name, policy.adapter.version + 1, after)
            self._device.install(after)
            every, version = update.kl_refresh_steps, policy.adapter.version
            if every is not None and version % every == 0:
                policy.reference = Lora(arrays=after, scale=self._shape.scale)
                logger.info("the reference of the divergences is now version %d", version)

    def _updated(self, policy: _Policy, update: Update) -> tuple[Arrays, Arrays, Arrays]:
        """The arrays, moments and EMA after an update with Adam; clips the gradients' norm."""
        if (gradients := policy.pending) is None:
            raise TrainerError("there are no gradients to apply; call forward_backward first")
        xp, array = self._device.xp, self._device.array
        beta1, beta2 = self._config.betas
        number = policy.updates + 1
        rate = array(update.learning_rate / (1.0 - beta1**number))
        correction = array((1.0 - beta2**number) ** -0.5)
        clip = xp.clip(update.max_grad_norm / (_norm(xp, gradients) + 1e-6), None, 1.0)
        after: dict[str, Any] = {}
        moments: dict[str, Any] = {}
        for key, gradient in gradients.items():
            names = f"{key}.m", f"{key}.v"
            before = policy.moments[names[0]], policy.moments[names[1]]
            after[key], *new = self._adam(
                policy.arrays[key], gradient, before, (clip, rate, correction)
            )
            moments |= zip(names, new, strict=True)
        ema: Arrays = after
        if update.ema_decay is not None:
            keep = update.ema_decay
            ema = {key: keep * policy.ema[key] + (1.0 - keep) * new for key, new in after.items()}
        self._device.evaluate(after, moments, ema)
        return after, moments, ema

    def _take(self, adapter: Adapter, name: str) -> int:
        policy = self._find(name)
        given = adapter.at_scale(self._shape.scale)
        check_arrays(given.arrays, _shapes(policy.arrays), name=adapter.name)
        arrays = self._on_device(given.arrays)
        policy.arrays, policy.ema, policy.updates, policy.pending = arrays, arrays, 0, None
        policy.moments = self._first_moments(arrays)
        policy.adapter = self._adapter(name, policy.adapter.version + 1, arrays)
        self._device.install(arrays)
        return policy.adapter.version

    def _snapshot(self) -> Snapshot:
        host = self._device.host
        states: list[tuple[PolicyState, Lora | None]] = []
        for name, policy in self._policies.items():
            state = PolicyState(
                name=name,
                version=policy.adapter.version,
                updates=policy.updates,
                adapter=policy.adapter.arrays,
                ema=host(policy.ema),
                moments=host(policy.moments),
            )
            states.append((state, policy.reference and policy.reference.converted(host)))

        def write(folder: Path) -> None:
            for state, lora in states:
                place = policy_folder(folder, state.name)
                place.mkdir(exist_ok=True)
                write_policy_state(state, place)
                write_reference(lora, self._config.reference, place)

        return write

    def _restore(self, folder: Path) -> None:
        for name, policy in self._policies.items():
            place = policy_folder(folder, name)
            if not place.exists():
                raise AdapterError(
                    f"it has no policy {name!r}, which this run trains; train the policies that it "
                    "has (without exploiter among the opponents), or start a new run with --adapter"
                )
            state = read_policy_state(place, name, _shapes(policy.arrays))
            reference = restored_reference(place, self._config.reference, policy.arrays)
            policy.reference = reference and reference.converted(self._on_device)
            policy.arrays = self._on_device(state.adapter)
            policy.adapter = self._adapter(name, state.version, policy.arrays)
            self._device.install(policy.arrays)
            policy.ema = self._on_device(state.ema)
            policy.moments = self._on_device(state.moments)
            policy.updates, policy.pending = state.updates, None


def _shapes(arrays: Arrays) -> dict[str, tuple[int, ...]]:
    return {name: tuple(array.shape) for name, array in arrays.items()}


def _factor(weights: Sequence[float]) -> float:
    """The power of two by which weights are multiplied so that they are at most ``MOST_WEIGHT``.

    The weight of a token is one over the thousands of tokens of a step. float16 has no numbers
    below 6e-8, so a backward pass of the weights themselves would lose most of the gradient in it.
    In other types the result is the same, bit for bit.
    """
    return MOST_WEIGHT * 2.0 ** -math.frexp(max(weights))[1]


def _norm(xp: Any, gradients: Arrays) -> Any:
    """The global L2 norm of the gradients."""
    return xp.sqrt(xp.stack([xp.square(each).sum() for each in gradients.values()]).sum())
