"""The table of devices, and the checks of each."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING

from legos.device import Device, ModelHandle
from legos.errors import ModelError, did_you_mean
from legos.installed import adding

if TYPE_CHECKING:
    from legos.mlx.checks.device import MlxChecks
    from legos.mlx.device import MlxDevice
    from legos.torch.device import TorchDevice

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
            f"torch is not installed; add the extra torch ({adding('torch')}), or train with "
            "--device mlx"
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
        raise ModelError(f"no device {name!r}{did_you_mean(name, DEVICES)}")
    return DEVICES[name]()


def tried_architectures(names: Sequence[str] = ()) -> Iterator[dict[str, str]]:
    """What MLX can do with architectures, one after the other; see ``legos.mlx.checks``.

    Args:
        names: names of the architectures; none: all that mlx-lm has.

    Raises:
        ModelError: there is no architecture of a name.
    """
    mlx_device()
    from legos.mlx.checks.architectures import try_architecture
    from legos.mlx.checks.small_models import architectures

    known = architectures()
    for name in names:
        if name not in known:
            raise ModelError(f"mlx-lm has no architecture {name!r}{did_you_mean(name, known)}")
    return map(try_architecture, names or known)


def device_checks(model: ModelHandle) -> "MlxChecks":
    """The baselines and measurements of a model's device, for the bench and the self-test.

    Raises:
        ModelError: the device has none.
    """
    from legos.mlx.checks.device import MlxChecks
    from legos.mlx.device import MlxModel

    if not isinstance(model, MlxModel):
        raise ModelError(f"{type(model).__name__} has no bare loops to be measured against")
    return MlxChecks(model)
