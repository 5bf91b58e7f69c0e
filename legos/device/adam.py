"""The update of one array with Adam, compiled where the device can."""

from collections.abc import Callable
from typing import Any

EPSILON = 1e-8  # added to the root of the second moment


def make_update(xp: Any, betas: tuple[float, float]) -> Callable[..., tuple[Any, Any, Any]]:
    """Make the update of one array; a step has hundreds, so each should start few kernels.

    The update takes the array, its gradient, both moments, and three scalars, as arrays of the
    device: the factor that clips the gradients, the learning rate with the correction of the first
    moment's bias, and the factor that corrects the root of the second. It returns the new array and
    moments.

    Args:
        xp: array namespace, with ``compile``.
        betas: decay of the moments.

    Source: Kingma and Ba, arXiv:1412.6980, with bias correction; LoRA needs no weight decay.
    """
    beta1, beta2 = betas

    def update(
        array: Any, gradient: Any, moments: tuple[Any, Any], scalars: tuple[Any, Any, Any]
    ) -> tuple[Any, Any, Any]:
        (m, v), (clip, rate, correction) = moments, scalars
        clipped = clip * gradient
        m = beta1 * m + (1.0 - beta1) * clipped
        v = beta2 * v + (1.0 - beta2) * xp.square(clipped)
        return array - rate * m / (xp.sqrt(v) * correction + EPSILON), m, v

    return xp.compile(update)
