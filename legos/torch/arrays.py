"""The functions of NumPy that ``legos.losses`` calls, over the tensors of one torch device."""

from typing import Any

import torch
from torch import Tensor

__all__ = ["TorchArrays"]


class TorchArrays:
    """An array namespace for the losses; torch takes NumPy's ``axis`` and ``keepdims`` too."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    abs = staticmethod(torch.abs)
    clip = staticmethod(torch.clamp)
    exp = staticmethod(torch.exp)
    isnan = staticmethod(torch.isnan)
    log = staticmethod(torch.log)
    max = staticmethod(torch.amax)
    ones_like = staticmethod(torch.ones_like)
    stack = staticmethod(torch.stack)
    stop_gradient = staticmethod(torch.detach)
    sum = staticmethod(torch.sum)
    take_along_axis = staticmethod(torch.take_along_dim)
    where = staticmethod(torch.where)
    zeros_like = staticmethod(torch.zeros_like)

    def array(self, values: Any) -> Tensor:
        """A tensor on the device; integers become int64, which torch needs in indices."""
        found = torch.as_tensor(values, device=self._device)
        integers = not (found.is_floating_point() or found.dtype == torch.bool)
        return found.long() if integers else found

    @staticmethod
    def minimum(x: Tensor, y: Any) -> Tensor:
        """The smaller of two values, of which the second may be a number."""
        return torch.minimum(x, y) if isinstance(y, Tensor) else x.clamp(max=y)

    @staticmethod
    def maximum(x: Tensor, y: Any) -> Tensor:
        """The larger of two values, of which the second may be a number."""
        return torch.maximum(x, y) if isinstance(y, Tensor) else x.clamp(min=y)
