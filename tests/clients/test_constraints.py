"""The cache of slow values: one making for all, and a bound on what is kept."""

import asyncio
import threading

import pytest

from legos.clients.constraints import Shared


@pytest.mark.parametrize("use_threads", [False, True])
def test_the_sum_of_sizes_is_bounded_and_the_least_recently_used_value_goes(
    *, use_threads: bool
) -> None:
    made: list[int] = []

    def make(key: int) -> int:
        made.append(key)
        return key

    cache = Shared(make, 10, size_of=lambda value: value, use_threads=use_threads)

    async def ask() -> None:
        for key in (3, 4, 3, 5, 3, 4, 2):
            assert await cache.get(key) == key
            assert cache.size <= 10
        assert made == [3, 4, 5, 4, 2]
        assert await cache.get(50) == await cache.get(50) == 50  # alone, but not made twice
        assert (made[-1], cache.size) == (50, 50)
        assert await cache.get(2) == 2
        assert (made[-2:], cache.size) == ([50, 2], 2)

    asyncio.run(ask())


def test_simultaneous_requests_share_one_making_also_where_the_first_leaves() -> None:
    go_on, made = threading.Event(), []

    def make(key: str) -> str:
        made.append(key)
        assert go_on.wait(20)
        return key

    cache = Shared(make, 10, use_threads=True)

    async def ask() -> None:
        first, second = (asyncio.ensure_future(cache.get("a")) for _ in range(2))
        alone = asyncio.ensure_future(cache.get("b"))
        await asyncio.sleep(0)
        first.cancel()
        alone.cancel()
        await asyncio.wait([first, alone])
        go_on.set()
        assert await second == "a"
        await asyncio.gather(*cache._coming.values())
        assert cache.size == 2  # what nobody waits for is kept as well
        assert await cache.get("b") == "b"

    asyncio.run(ask())
    assert made == ["a", "b"]


@pytest.mark.parametrize("use_threads", [False, True])
def test_what_fails_is_made_again(*, use_threads: bool) -> None:
    errors = iter([ValueError("once")])

    def make(key: int) -> int:
        for error in errors:
            raise error
        return key

    cache = Shared(make, 10, use_threads=use_threads)

    async def ask() -> int:
        with pytest.raises(ValueError, match="once"):
            await cache.get(1)
        return await cache.get(1)

    assert asyncio.run(ask()) == 1
