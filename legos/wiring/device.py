"""The table of devices, the only place that names them, and the checks of each."""

from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from legos.chat.tools import ToolFormat
from legos.device import Device, LocalEngine, ModelHandle
from legos.errors import ModelError, did_you_mean
from legos.records.limits import EngineLimits, TrainingSize
from legos.records.sample import Sample
from legos.records.step import MeasuredStep
from legos.weights.adapter import Adapter

if TYPE_CHECKING:
    from legos.mlx.device import MlxDevice
    from legos.torch.device import TorchDevice

__all__ = [
    "DEVICES",
    "DeviceChecks",
    "Row",
    "Split",
    "check_replicas",
    "device_checks",
    "find_device",
    "mlx_device",
    "rows_on_macs",
    "tool_format_of",
    "torch_device",
]

Row = tuple[int, ...]
Split = tuple[Row, int]
"""Token ids, and how many of them are the prompt."""


def mlx_device() -> "MlxDevice":
    """The MLX device.

    Raises:
        ModelError: ``LEGOS_DEVICE`` names a device that MLX cannot use here.
    """
    from legos.mlx.device import MlxDevice

    return MlxDevice()


def torch_device() -> "TorchDevice":
    """The torch device.

    Raises:
        ModelError: torch is not installed.
    """
    if find_spec("torch") is None:
        raise ModelError(
            "torch is not installed; install the extra torch (pip install 'legos[torch]'), or "
            "train with --device mlx"
        )
    from legos.torch.device import TorchDevice

    return TorchDevice()


DEVICES: Mapping[str, Callable[[], Device]] = {"mlx": mlx_device, "torch": torch_device}
"""Name -> the device; its library is imported when it is asked for."""


def find_device(name: str = "mlx") -> Device:
    """The device with a name.

    Raises:
        ModelError: no device has that name.
    """
    if name not in DEVICES:
        raise ModelError(f"no device {name!r}{did_you_mean(name, DEVICES)}; known: {[*DEVICES]}")
    return DEVICES[name]()


def rows_on_macs(config: Mapping[str, Any], size: TrainingSize) -> Sequence[int]:
    """Tokens of the longest row of a model that trains on each Mac of ``MACS_GB``; 0: none."""
    from legos.mlx.fits import longest_rows

    return longest_rows(config, size)


class DeviceChecks(Protocol):
    """Baselines without the kit's engine and backend, and checks of the device, on one model."""

    def bare_update(
        self, blocks: Sequence[Sequence[Split]], *, pad_to: int = 0
    ) -> Callable[[], None]:
        """Make a minimal optimiser step; a block is padded to its longest row or to ``pad_to``."""
        ...

    def peak_bytes(self, call: Callable[[], object]) -> int:
        """Run a call; returns the device's peak memory in bytes, minus what it held before."""
        ...

    def bare_generation(
        self, engine: LocalEngine, prompts: Sequence[Row], *, max_tokens: int, rows: int
    ) -> float:
        """Seconds in which a minimal loop samples a completion of every prompt, also equal ones.

        Args:
            engine: an engine of the model, whose thread and weights are used.
            prompts: token ids of each prompt.
            max_tokens: number of tokens of each completion.
            rows: number of rows that are decoded, and prefilled, at once.
        """
        ...

    def bare_shared_generation(
        self, engine: LocalEngine, prompts: Sequence[Row], *, rows: int
    ) -> float:
        """Seconds of a minimal loop for one token per prompt; equal prompts are computed once."""
        ...

    def bare_load(self, engine: LocalEngine, folder: Path) -> float:
        """Seconds in which the device's library reads the arrays of an adapter's folder."""
        ...

    def step(
        self,
        adapter: Adapter,
        samples: Sequence[Sample],
        *,
        share: bool = True,
        checkpoint: bool = False,
    ) -> MeasuredStep:
        """Compute the gradients of one step on a copy of the model.

        Args:
            adapter: LoRA arrays of the policy.
            samples: samples of the step.
            share: whether rows share prefixes, where the architecture allows it.
            checkpoint: whether layers are computed again in the backward pass.
        """
        ...

    def small_check(self, name: str, *, long: bool = False) -> Mapping[str, float] | str:
        """Run a check of the device on small random models, such as ``long_rows``.

        Args:
            name: name of the check.
            long: whether to take more steps and processes, and minutes.

        Returns:
            Its figures, or the reason why it cannot run here.
        """
        ...

    def memory(self) -> Mapping[str, float]:
        """Memory that the device library holds now, and its peak so far, in MiB."""
        ...

    def record(self) -> None:
        """Start recording the time spans of device code in the model's engines and backend."""
        ...

    def recorded(self, start: float, end: float) -> float:
        """Seconds in which device code ran, between two readings of ``perf_counter``."""
        ...


def check_replicas(folder: Path, limits: EngineLimits, num: int) -> int:
    """Bytes that each of several engines on this machine may use; see ``legos.mlx.fits``.

    Raises:
        ModelError: they do not fit.
    """
    from legos.mlx import fits

    return fits.check_replicas(folder, limits, num)


def tool_format_of(folder: Path) -> ToolFormat | None:
    """The format of a model's tool calls, from its files; None where it has none of its own."""
    from legos.mlx.model.tools import tool_format

    return tool_format(folder)


def device_checks(model: ModelHandle) -> DeviceChecks:
    """The baselines and measurements of a model's device, for benches and the self-test.

    Raises:
        ModelError: the device has none.
    """
    from legos.mlx.checks.device import MlxChecks
    from legos.mlx.device import MlxModel

    if not isinstance(model, MlxModel):
        raise ModelError(f"{type(model).__name__} has no bare loops to be measured against")
    return MlxChecks(model)
