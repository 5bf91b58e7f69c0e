"""Settings of the process: device, BLAS library, garbage collector and threads."""

import ctypes
import gc
import os
import resource
import sys
from contextlib import suppress
from itertools import chain
from pathlib import Path

from threadpoolctl import threadpool_limits

from legos.errors import ModelError

DESCRIPTORS = 10_240  # file descriptors that the process may open; the maximum on macOS
BLAS = {
    "OpenBLAS": ("libopenblasp.so.0", "libopenblas.so.0"),  # Fedora's with threads comes first
    "MKL": ("libmkl_rt.so.2",),
    "BLIS": ("libblis.so.4",),
}
"""Libraries with fast matrix products, and their files; the fastest here first."""


def load_blas() -> None:
    """Load a fast BLAS of the system, on Linux, so that MLX computes with it.

    The wheel of MLX brings the reference BLAS, which is 10 to 50 times slower. An extension binds
    its functions when it is imported, to the first library of the process that has them, so this
    must come before the first import of MLX; afterwards it does nothing, and ``blas_hint`` says so.
    Where there is no such library, nothing changes.
    """
    if sys.platform != "linux" or blas() is not None or "mlx.core" in sys.modules:
        return
    for file in chain.from_iterable(BLAS.values()):
        with suppress(OSError):  # it is not installed, or not for this machine
            ctypes.CDLL(file, mode=ctypes.RTLD_GLOBAL)
            return


def blas() -> str | None:
    """The fast BLAS that MLX finds when it is imported; None: none.

    What another library has loaded for itself alone, such as that in a wheel of SciPy, is not seen.
    """
    if sys.platform == "darwin":
        return "Accelerate"
    file = _file_of("cblas_sgemm")
    return next((name for name in BLAS if name.lower() in file), None)


def _file_of(function: str) -> str:
    """Name of the file that has a function which every library of the process sees; "": none."""
    found, maps = getattr(ctypes.CDLL(None), function, None), Path("/proc/self/maps")
    if found is None or not maps.exists():
        return ""
    address = ctypes.cast(found, ctypes.c_void_p).value or 0
    for line in maps.read_text().splitlines():
        first, end = (int(bound, 16) for bound in line.split(maxsplit=1)[0].split("-"))
        if first <= address < end:
            return line.rpartition("/")[2].lower()
    return ""


def blas_hint() -> str | None:
    """Advice to install OpenBLAS, where MLX computes on the reference BLAS; otherwise None."""
    if sys.platform != "linux" or blas() is not None:
        return None
    return (
        "hint: MLX runs on the slow reference BLAS here; training is several times faster with "
        "OpenBLAS, which is used where it is installed (apt install libopenblas0, or dnf install "
        "openblas-threads) and where legos is imported before MLX: put `import legos.mlx` first"
    )


def quiet_collector() -> None:
    """Exclude the objects that exist now from Python's cycle collector, and run it less often.

    Libraries leave hundreds of thousands of permanent objects, and plays make new ones by the
    thousand. By default the collector scans all of them many times a second, which takes half of a
    small game's time.
    """
    gc.unfreeze()  # what an earlier run of the process left, such as its model
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


def files_allowed() -> int:
    """Number of files and connections that the process may open at once.

    Raises its limit first, which is 256 by default on macOS: too few for servers and judges.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return sys.maxsize
    most = DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, DESCRIPTORS)
    if soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    return max(soft, most)


def share_cores(parts: int) -> int:
    """Limit the BLAS threads of each of ``parts`` parts of the program that compute at once.

    By default every part starts as many threads as there are cores, and idle threads spin: two
    parts on two cores took nearly twice as long. It has no effect without such a BLAS (macOS), and
    a part that computes alone keeps the threads that it has.

    Returns:
        The number of threads of each part.
    """
    threads = _threads_of_each(parts)
    if parts > 1:
        threadpool_limits(limits=threads, user_api="blas")
    return threads


def blas_environment(parts: int) -> dict[str, str]:
    """Environment of a process that is one of ``parts`` which compute at once; see ``share_cores``.

    What the user has set in this process's environment stands.
    """
    return {"OPENBLAS_NUM_THREADS": f"{_threads_of_each(parts)}", **os.environ}


def _threads_of_each(parts: int) -> int:
    return max((os.cpu_count() or 1) // parts, 1)


def wanted_device() -> str | None:
    """The device that ``LEGOS_DEVICE`` names, cpu or gpu; None: none, so the library chooses.

    Raises:
        ModelError: it names another.
    """
    name = os.environ.get("LEGOS_DEVICE") or None
    if name not in (None, "cpu", "gpu"):
        raise ModelError(f"LEGOS_DEVICE is {name!r}; expected cpu or gpu")
    return name
