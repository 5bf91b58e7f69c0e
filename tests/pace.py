"""How fast the machine is at this moment, for tests whose limits are seconds."""

import json
import statistics
import time

__all__ = ["slowness"]

USUAL_S = 0.05  # on the machine for which the limits were chosen


def slowness() -> float:
    """How many times as long as usual a fixed computation on one core takes, at least 1."""
    times: list[float] = []
    for _ in range(9):
        began = time.perf_counter()
        for _ in range(10):
            json.loads(json.dumps(list(range(20_000))))
        times.append(time.perf_counter() - began)
    return max(1.0, statistics.median(times) / USUAL_S)
