"""The functions that losses and optimiser call, over the tensors of one torch device."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

F = TypeVar("F", bound=Callable[..., Any])


_OTHER_NAMES = {
    "clip": "clamp",
    "max": "amax",
    "stop_gradient": "detach",
    "take_along_axis": "take_along_dim",
}  # name in NumPy or MLX -> name in torch


class TorchArrays:
    """An array namespace for the losses; torch takes NumPy's ``axis`` and ``keepdims`` too."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def __getattr__(self, name: str) -> Any:
        """A function of torch, by the name that it has in NumPy."""
        return getattr(torch, _OTHER_NAMES.get(name, name))

    def array(self, values: Any) -> Tensor:
        """A tensor on the device; integers become int64, which torch needs in indices."""
        found = torch.as_tensor(values, device=self._device)
        integers = not (found.is_floating_point() or found.dtype == torch.bool)
        return found.long() if integers else found

    @staticmethod
    def compile(function: F) -> F:
        """The function as it is: torch's compiler takes longer than it saves here."""
        return function

    @staticmethod
    def value_and_grad(loss: Callable[[Tensor], Sequence[Tensor]]) -> Callable[[Tensor], Any]:
        """What computes the values of a function, and the gradient of the first, as MLX does."""

        def found(at: Tensor) -> tuple[Sequence[Tensor], Tensor]:
            values = loss(at.requires_grad_())
            return values, torch.autograd.grad(values[0], at)[0]

        return found
