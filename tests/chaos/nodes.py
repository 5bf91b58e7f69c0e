"""A Ray cluster on this machine: its head, and one more node, which can die."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["Nodes"]

CPUS = 2  # of each node, as Ray counts them


class Nodes:
    """The nodes of a cluster.

    Attributes:
        address: where Ray's programs find it.
    """

    def __init__(self, cluster: Any) -> None:
        self._cluster = cluster
        self.address: str = cluster.address
        self._second = cluster.add_node(num_cpus=CPUS)

    def kill(self) -> int:
        """Kill the second node with all that runs there; returns the id of its first process."""
        (raylet,) = self._second.all_processes["raylet"]
        pid = raylet.process.pid
        self._cluster.remove_node(self._second, allow_graceful=False)
        return pid

    def add(self) -> None:
        """Start a node in place of the one that was killed."""
        self._second = self._cluster.add_node(num_cpus=CPUS)

    @classmethod
    @contextmanager
    def running(cls) -> "Iterator[Nodes]":
        """A cluster of two nodes."""
        os.environ |= {"RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0", "RAY_worker_niceness": "0"}
        from ray.cluster_utils import Cluster

        cluster: Any = Cluster(initialize_head=True, head_node_args={"num_cpus": CPUS})
        try:
            yield cls(cluster)
        finally:
            cluster.shutdown()
