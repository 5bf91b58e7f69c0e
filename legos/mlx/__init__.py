"""The MLX device.

- ``device``: gives the rest of legos models, engines and backends
- ``model``: loads, adapts and runs a module tree, which one thread owns
- ``generate``: the engine, on its own module tree
- ``train``: the backend, on another module tree
- ``checks``: minimal loops and checks for the benches and the self-test
- ``fits``: whether training fits into the memory of a machine
"""

import atexit
import os
import resource
import sys
import time
from typing import Any

from legos.mac import check_mac
from legos.machine import load_blas

load_blas()
check_mac()  # where it refuses, the import of MLX fails with a message that explains nothing
os.environ.setdefault("MLX_ENABLE_TF32", "0")  # read once; TF32 rounds to a thousandth


def _import_mlx_lm() -> None:
    """Import mlx-lm without two things that it does at import.

    It sets the process's soft limit on open files to 2048 and the hard limit to 4096, which only
    root can raise again; where the hard limit is already lower, the import fails. And it imports
    wandb for a callback that is not used here, which takes a second.
    """
    set_limit = resource.setrlimit
    resource.setrlimit = lambda *_: None
    unused: Any = None
    hidden = sys.modules.setdefault("wandb", unused) is unused  # an import raises ImportError
    try:
        import mlx_lm.tuner
        import mlx_lm.utils  # noqa: F401
    finally:
        resource.setrlimit = set_limit
        if hidden:
            del sys.modules["wandb"]


@atexit.register
def _let_threads_end() -> None:
    """Leave the interpreter for a moment to threads that have just ended.

    Up to Python 3.12, joining a thread does not wait for what MLX keeps for it in C++. Where that
    is released while Python is being finalised already, the process aborts.
    """
    time.sleep(0.05)


if "mlx_lm.utils" not in sys.modules:
    _import_mlx_lm()
