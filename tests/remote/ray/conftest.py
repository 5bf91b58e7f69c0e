"""A real cluster of two nodes on this machine."""

import os
from collections.abc import Generator
from typing import Any

import pytest

# As legos sets it before it imports Ray, which reads it once: a test may import Ray by itself.
os.environ["RAY_ENABLE_UV_RUN_RUNTIME_ENV"] = "0"


@pytest.fixture(scope="module")  # other modules need a process that is not connected
def cluster() -> Generator[Any]:
    """Two nodes, each with processes of its own; this process is connected."""
    ray: Any = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    made: Any = Cluster(initialize_head=True, head_node_args={"num_cpus": 2})
    made.add_node(num_cpus=2)
    ray.init(address=made.address, log_to_driver=False, logging_level="ERROR")
    yield ray
    ray.shutdown()
    made.shutdown()
