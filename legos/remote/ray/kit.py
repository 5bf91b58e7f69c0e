"""The version of legos on a node: all processes of a run must have the same one."""

import hashlib
import os
from functools import cache
from pathlib import Path

from legos.errors import ConfigError


@cache
def kit_digest() -> str:
    """Hexadecimal digest of the sources of legos and its arenas: changed copies have others."""
    root = Path(__file__).parents[3]
    state = hashlib.blake2b(digest_size=8)
    for path in sorted((*root.glob("legos/**/*.py"), *root.glob("arenas/**/*.py"))):
        state.update(f"{path.relative_to(root)}\0".encode())
        state.update(path.read_bytes())
    return state.hexdigest()


def check_kit(expected: str) -> None:
    """Compare legos on this node with that of the run.

    Args:
        expected: ``kit_digest`` of the process that started the run.

    Raises:
        ConfigError: they differ.
    """
    found = kit_digest()
    if found != expected:
        raise ConfigError(
            f"node {os.uname().nodename} has another version of legos: its sources have the digest "
            f"{found}, those of the run {expected}; install the same version of legos on every "
            "node, without changes in its arenas/"
        )
