"""The graph of lazy arrays: what a device would compute for them."""

import io
import re
from collections import Counter

import mlx.core as mx

__all__ = ["operations"]


def operations(*arrays: mx.array) -> Counter[str]:
    """How often each operation has to be computed for some arrays."""
    graph = io.StringIO()
    mx.export_to_dot(graph, *arrays)
    return Counter(re.findall(r'label ="([^"]+)", shape=rectangle', graph.getvalue()))
