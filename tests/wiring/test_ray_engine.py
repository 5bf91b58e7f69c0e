"""What a process of a Ray cluster does when it makes an engine; the cluster itself is elsewhere."""

import os
import subprocess
import sys

ENGINE = """
from threadpoolctl import threadpool_info

from legos.config.schema import RunConfig
from legos.wiring.model import load_model, apply_lora
from legos.wiring.ray import _engine_there

model = load_model()
apply_lora(model)
engine, _ = _engine_there(RunConfig(), model.lora, 64)
engine.close()
print([found["num_threads"] for found in threadpool_info() if found["user_api"] == "blas"])
"""


def test_an_engine_leaves_cores_to_the_other_parts_of_its_node() -> None:
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "2"}
    done = subprocess.run(
        [sys.executable, "-c", ENGINE], env=environment, capture_output=True, text=True, check=True
    )
    threads = done.stdout.strip()
    assert "1" in threads
    assert "2" not in threads
