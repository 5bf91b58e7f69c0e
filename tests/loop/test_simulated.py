"""The simulated engine, against times worked out by hand."""

import asyncio

from simulated import SimulatedEngine
from virtual_time import in_virtual_time


def test_an_engine_computes_as_many_requests_as_it_has_rows() -> None:
    async def story() -> tuple[float, float]:
        engine = SimulatedEngine(2)
        await asyncio.gather(*(engine.compute(3.0) for _ in range(5)))
        return engine.row_seconds, engine.figures()["worked_seconds_total"]

    assert in_virtual_time(story()) == ((15.0, 9.0), 9.0)
