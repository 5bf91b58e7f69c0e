"""The MLX device.

- ``device``: what the rest of legos asks for a model, an engine or a backend
- ``model``: one module tree, loaded, adapted, run, owned by one thread
- ``generate``: the engine, on a tree of its own
- ``train``: the backend, on another one
- ``checks``: bare loops and checks for the benches and the self-test
- ``pretraining``: how the built-in model was made
"""

import resource
import sys


def _import_mlx_lm() -> None:
    """Import mlx-lm without what it does to the process's limit on open files.

    It sets the limit to 2048 and its upper bound to 4096, which nobody but root can raise again;
    where the bound is lower already, the import fails.
    """
    set_limit = resource.setrlimit
    resource.setrlimit = lambda *_: None
    try:
        import mlx_lm.utils  # noqa: F401
    finally:
        resource.setrlimit = set_limit


if "mlx_lm.utils" not in sys.modules:
    _import_mlx_lm()
