"""Functions over an array namespace, compiled where that is ``mlx.core``.

A decode step of few rows takes a GPU as long as its kernels take to start, and ``mx.compile`` makes
one kernel of neighbouring elementwise operations. A function is traced once for each combination of
shapes, and no trace is ever removed, so the shapes of its calls must be few.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import mlx.core as mx


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function of a namespace, and of arrays or constants, with ``mlx.core`` compiled."""
    traced = mx.compile(partial(function, mx))

    def call(xp: Any, *given: Any) -> Any:
        return traced(*given) if xp is mx else function(xp, *given)

    return call
