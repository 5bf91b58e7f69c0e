"""The simulated link and engine, against times worked out by hand."""

import asyncio
import math

import pytest

from legos.testing import SharedLink, SimulatedEngine, in_virtual_time


def arrivals(
    sizes: list[tuple[float, float]], *, bytes_per_s: float, each: float = math.inf
) -> list[float]:
    """When transfers that start at some time, of some bytes, arrive."""
    ends = [0.0] * len(sizes)

    async def transfer(link: SharedLink, number: int) -> None:
        start, size = sizes[number]
        await asyncio.sleep(start)
        await link.send(size)
        ends[number] = asyncio.get_running_loop().time()

    async def story() -> None:
        link = SharedLink(bytes_per_s, each_bytes_per_s=each)
        async with asyncio.TaskGroup() as transfers:
            for number in range(len(sizes)):
                transfers.create_task(transfer(link, number))

    in_virtual_time(story())
    return ends


def test_transfers_share_a_link_equally() -> None:
    # 10 B/s: alone for 1 s, then 5 B/s each until the second one ends at 3 s, then alone again.
    assert arrivals([(0, 30), (1, 10)], bytes_per_s=10) == pytest.approx([4.0, 3.0])


def test_no_transfer_is_faster_than_its_receiver() -> None:
    assert arrivals([(0, 30), (0, 30)], bytes_per_s=10, each=2) == pytest.approx([15.0, 15.0])


def test_an_engine_computes_as_many_requests_as_it_has_rows() -> None:
    async def story() -> tuple[float, float]:
        engine = SimulatedEngine(2)
        await asyncio.gather(*(engine.compute(3.0) for _ in range(5)))
        return engine.row_seconds, engine.figures()["worked_seconds_total"]

    assert in_virtual_time(story()) == ((15.0, 9.0), 9.0)
