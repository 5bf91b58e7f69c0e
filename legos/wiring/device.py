"""The one place that names a device."""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from legos.data.sample import Sample
from legos.data.step import MeasuredStep
from legos.device import Device, LocalEngine, ModelHandle
from legos.errors import ModelError, did_you_mean
from legos.weights.adapter import Adapter

__all__ = ["DEVICES", "DeviceChecks", "Row", "Split", "device_checks", "find_device"]

Row = tuple[int, ...]
Split = tuple[Row, int]
"""Token ids, and how many of them are the prompt."""


def _mlx() -> Device:
    from legos.mlx.device import MlxDevice

    return MlxDevice()


DEVICES: Mapping[str, Callable[[], Device]] = {"mlx": _mlx}
"""Name -> the device; its library is imported when it is asked for."""


def find_device(name: str = "mlx") -> Device:
    """The device of a name.

    Raises:
        ModelError: there is none.
    """
    if name not in DEVICES:
        raise ModelError(f"no device {name!r}{did_you_mean(name, DEVICES)}; known: {[*DEVICES]}")
    return DEVICES[name]()


class DeviceChecks(Protocol):
    """Bare loops of the same work on one model, and measurements that need its device."""

    def bare_generation(
        self, engine: LocalEngine, prompts: Sequence[Row], *, max_tokens: int, rows: int
    ) -> float:
        """Seconds in which a bare loop samples a completion of every prompt, equal ones again.

        Args:
            engine: one of the model's, whose thread and weights are used.
            prompts: token ids.
            max_tokens: tokens of each completion.
            rows: decoded at once, and prefilled at once.
        """
        ...

    def bare_shared_generation(
        self, engine: LocalEngine, prompts: Sequence[Row], *, rows: int
    ) -> float:
        """The same, one token for each prompt, where equal prompts are computed once."""
        ...

    def bare_update(
        self, blocks: Sequence[Sequence[Split]], *, pad_to: int = 0
    ) -> Callable[[], None]:
        """A bare optimiser step; each block is padded to its longest row, or to ``pad_to``."""
        ...

    def peer_update(self, blocks: Sequence[Sequence[Split]]) -> Callable[[], None] | None:
        """The step of mlx-lm-lora on the same blocks; None where it is not installed."""
        ...

    def step(
        self,
        adapter: Adapter,
        samples: Sequence[Sample],
        *,
        share: bool = True,
        checkpoint: bool = False,
    ) -> MeasuredStep:
        """The gradients of one step, computed on a copy of the model.

        Args:
            adapter: LoRA as it stands.
            samples: of the step.
            share: whether rows share prefixes, where the architecture allows it.
            checkpoint: whether layers are computed again in the backward pass.
        """
        ...

    def peak_bytes(self, call: Callable[[], object]) -> int:
        """Run a call; the most bytes that the device held beyond those before it."""
        ...

    def memory(self) -> Mapping[str, float]:
        """MiB that the device library holds now, and the most that it held so far."""
        ...

    def record(self) -> None:
        """Start recording when device code of the model's engines and backend runs."""
        ...

    def recorded(self, start: float, end: float) -> float:
        """Seconds between two readings of ``perf_counter`` in which some device code ran."""
        ...


def device_checks(model: ModelHandle) -> DeviceChecks:
    """What benches and the self-test measure a model's device with.

    Raises:
        ModelError: its device has nothing of the kind.
    """
    from legos.mlx.checks.device import MlxChecks
    from legos.mlx.device import MlxModel

    if not isinstance(model, MlxModel):
        raise ModelError(f"{type(model).__name__} has no bare loops to be measured against")
    return MlxChecks(model)
