"""A server is brought back once for all requests that met its failure."""

import asyncio

import pytest

from legos.clients.recovery import Recovery
from legos.errors import EngineError

FAILURE = ConnectionError("refused")


def test_the_failure_of_an_epoch_is_mended_once() -> None:
    async def go() -> int:
        calls: list[Exception] = []

        async def mend(failure: Exception) -> None:
            calls.append(failure)
            await asyncio.sleep(0)

        recovery = Recovery()
        with pytest.raises(EngineError, match="refused"):  # nobody knows how to mend it
            await recovery.after(FAILURE, recovery.epoch)
        recovery.on_failure(mend)
        await asyncio.gather(*(recovery.after(FAILURE, 0) for _ in range(5)))
        await recovery.after(FAILURE, 0)  # of a request that was sent before
        await recovery.after(FAILURE, 1)
        return len(calls)

    assert asyncio.run(go()) == 2


def test_a_server_that_did_not_come_back_is_not_asked_again() -> None:
    async def go() -> int:
        calls: list[Exception] = []

        async def give_up(failure: Exception) -> None:
            calls.append(failure)
            raise EngineError("it is gone")

        recovery = Recovery(give_up)
        for _ in range(3):
            with pytest.raises(EngineError, match="it is gone"):
                await recovery.after(FAILURE, recovery.epoch)
        return len(calls)

    assert asyncio.run(go()) == 1
