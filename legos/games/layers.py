"""Sort the edges of a graph into layers, so that values can be propagated down or up."""

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.intp]


def layered(parent: IntArray, child: IntArray, group: IntArray) -> tuple[IntArray, ...]:
    """Sort edges into layers: all edges into a group are in layers before every edge out of it.

    Args:
        parent: [E] node that the edge leaves.
        child: [E] node that the edge enters.
        group: [N] group of each node, numbered from 0; edges out of one group share a layer.

    Returns:
        Edge indices by layer, ascending in each. Edges on or after a cycle of groups are left out.

    Source: Kahn, Topological sorting of large networks, 1962, one round per layer.
    """
    source, target = group[parent], group[child]
    num_groups = int(group.max()) + 1
    order = np.argsort(source, kind="stable")
    bounds = np.searchsorted(source[order], np.arange(num_groups + 1))
    waiting = np.bincount(target, minlength=num_groups)
    ready = np.flatnonzero(waiting == 0)
    layers: list[IntArray] = []
    while ready.size:
        edges = np.concatenate([order[bounds[node] : bounds[node + 1]] for node in ready])
        if edges.size:
            layers.append(np.sort(edges))
        np.subtract.at(waiting, target[edges], 1)
        reached = np.unique(target[edges])
        ready = reached[waiting[reached] == 0]
    return tuple(layers)


def node_on_cycle(parent: IntArray, child: IntArray, layers: tuple[IntArray, ...]) -> int:
    """Find a node on a cycle, given that ``layers`` lack some of the edges."""
    loose = np.ones(len(parent), dtype=np.bool_)
    for edges in layers:
        loose[edges] = False
    back = dict(zip(child[loose].tolist(), parent[loose].tolist(), strict=True))
    node, seen = next(iter(back)), set[int]()
    while node not in seen:  # each loose edge leaves a node that another loose edge enters
        seen.add(node)
        node = back[node]
    return node
