"""The slot of a play: it is free while the play waits for something outside."""

import asyncio

from legos.play.slot import Slot


def test_a_slot_that_comes_during_another_wait_is_given_back() -> None:
    async def once() -> None:
        slots, answered = asyncio.Semaphore(1), asyncio.Event()
        async with Slot(slots) as slot:

            async def one_wait() -> None:
                async with slot.released(paused=True):
                    await answered.wait()

            first = asyncio.create_task(one_wait())
            await asyncio.sleep(0)
            await slots.acquire()  # another play has it
            answered.set()
            await asyncio.sleep(0)  # the first wait is over, and queues for the slot
            async with slot.released(paused=True):
                slots.release()
                await first
                assert not slots.locked()
            assert slots.locked()
        assert not slots.locked()

    asyncio.run(once())
