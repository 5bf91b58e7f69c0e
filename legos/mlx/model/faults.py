"""Errors of the device, which MLX raises as ``RuntimeError``: recognise them, retry once, explain.

A GPU reports an error late: the evaluation that failed may return, and the next one raises. So what
depends on it is made again from arrays that were evaluated before, and ``mx.synchronize`` has to
return before anything is built on it.
"""

import logging
import re
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from typing import TypeVar

import mlx.core as mx

from legos.errors import DeviceError, LegosError

logger = logging.getLogger(__name__)
T = TypeVar("T")
_FAULT = re.compile(  # of Metal; of memory; and of a CUDA library, such as cudaMemcpy(..) failed
    r"\[METAL\]|malloc\]|Command buffer execution failed|out of memory|\bcu[A-Za-z]+\(.*\) failed"
)
_LESS_MEMORY = (
    "lower training.memory_limit_gib or generation.max_batch (legos serve: --memory-limit-gib, "
    "--max-batch), or close other programs"
)
_ADVICE = {
    "ImpactingInteractivity": "macOS ended the computation because the display had to wait for it; "
    "let the display sleep while a run goes on, or start it with "
    "AGX_RELAX_CDM_CTXSTORE_TIMEOUT=1 in the environment",
    "OutOfMemory": f"the GPU ran out of memory; {_LESS_MEMORY}",
    "illegal memory access": "this process cannot use the GPU any more; if other programs use it, "
    "end them, and start this one again",
    "malloc": f"the device ran out of memory; {_LESS_MEMORY}",
    "out of memory": f"the device ran out of memory; {_LESS_MEMORY}",
    "Timeout": "one computation took too long for the GPU; lower training.micro_batch_tokens "
    "or training.memory_limit_gib (legos serve: --memory-limit-gib)",
}
_OTHERWISE = "if it comes again, restart the machine and send the report of `legos doctor`"


def is_fault(error: BaseException) -> bool:
    """Whether an error comes from the device and not from the program."""
    found = isinstance(error, RuntimeError) and not isinstance(error, LegosError)
    return found and _FAULT.search(str(error)) is not None


def raise_fault(error: BaseException) -> None:
    """Raise a ``DeviceError`` where an error is the device's, and so says nothing of the model."""
    if is_fault(error):
        clear_device()
        raise DeviceError(explained(error)) from error


@contextmanager
def faults_raised() -> Generator[None]:
    """Within the block, an error of the device is a ``DeviceError``; others stay what they are."""
    try:
        yield
    except RuntimeError as error:
        raise_fault(error)
        raise


def explained(error: BaseException) -> str:
    """The first line of a device's error, and what to do about it."""
    first = str(error).partition("\n")[0]
    advice = next((text for mark, text in _ADVICE.items() if mark in str(error)), _OTHERWISE)
    return f"the device failed ({first}): {advice}"


def clear_device() -> None:
    """Let errors that are still under way be raised here, and release unused buffers."""
    for call in (mx.synchronize, mx.clear_cache):  # after some errors of CUDA, the second fails too
        with suppress(RuntimeError):
            call()


def recovered(compute: Callable[[], T], before_retry: Callable[[], None], *, retry: bool) -> T:
    """Compute; after an error of the device, compute once more.

    Args:
        compute: ends with ``mx.synchronize``, and changes nothing where it raises an error.
        before_retry: called after each error of the device.
        retry: whether to compute again; processes that compute together do not, because the others
            would wait for this one at another place.

    Raises:
        DeviceError: the device failed, and again where it was retried.
    """
    for last in (not retry, True):
        try:
            return compute()
        except RuntimeError as error:
            if not is_fault(error):
                raise
            clear_device()
            before_retry()
            if last:
                raise DeviceError(explained(error)) from error
            logger.warning("%s; computing it again", explained(error))
    raise AssertionError("the last attempt returns or raises")
