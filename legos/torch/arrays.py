"""The functions of NumPy that ``legos.losses`` calls, over the tensors of one torch device."""

from typing import Any

import torch
from torch import Tensor

__all__ = ["TorchArrays"]


class TorchArrays:
    """An array namespace for the losses; torch's own functions differ in names and arguments."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    abs = staticmethod(torch.abs)
    exp = staticmethod(torch.exp)
    isnan = staticmethod(torch.isnan)
    log = staticmethod(torch.log)
    ones_like = staticmethod(torch.ones_like)
    stack = staticmethod(torch.stack)
    where = staticmethod(torch.where)
    zeros_like = staticmethod(torch.zeros_like)

    def array(self, values: Any) -> Tensor:
        """A tensor on the device; integers become int64, which torch needs in indices."""
        found = torch.as_tensor(values, device=self._device)
        integers = not (found.is_floating_point() or found.dtype == torch.bool)
        return found.long() if integers else found

    @staticmethod
    def stop_gradient(x: Tensor) -> Tensor:
        """The tensor without gradient."""
        return x.detach()

    @staticmethod
    def sum(x: Tensor, axis: Any = None, *, keepdims: bool = False) -> Tensor:
        """Sum over some axes; None: over all."""
        return x.sum() if axis is None else x.sum(dim=axis, keepdim=keepdims)

    @staticmethod
    def max(x: Tensor, axis: int, *, keepdims: bool = False) -> Tensor:
        """Largest values along an axis."""
        return x.amax(dim=axis, keepdim=keepdims)

    @staticmethod
    def clip(x: Tensor, low: float, high: float) -> Tensor:
        """Values limited to a range."""
        return x.clamp(low, high)

    @staticmethod
    def minimum(x: Tensor, y: Any) -> Tensor:
        """The smaller of two values, of which the second may be a number."""
        return torch.minimum(x, y) if isinstance(y, Tensor) else x.clamp(max=y)

    @staticmethod
    def maximum(x: Tensor, y: Any) -> Tensor:
        """The larger of two values, of which the second may be a number."""
        return torch.maximum(x, y) if isinstance(y, Tensor) else x.clamp(min=y)

    @staticmethod
    def take_along_axis(x: Tensor, indices: Tensor, axis: int) -> Tensor:
        """Values at indices along an axis."""
        return torch.take_along_dim(x, indices, dim=axis)
