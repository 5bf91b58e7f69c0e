"""The MLX device.

- ``model``: one module tree, loaded, adapted, run, owned by one thread
- ``generate``: the engine, on a tree of its own
- ``train``: the backend, on another
- ``checks``: what both are measured and checked against
"""
