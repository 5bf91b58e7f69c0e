"""Pause a run between steps while the Mac runs on battery."""

import asyncio
import logging

from legos.loop.batcher import Batcher
from legos.mac import on_battery

__all__ = ["mains_power"]

logger = logging.getLogger(__name__)
CHECK_S = 10.0  # seconds between two looks at the power source


async def mains_power(batcher: Batcher) -> None:
    """Wait while the Mac runs on battery; the end of the run ends the wait.

    Args:
        batcher: the run's batcher, which knows of its end.
    """
    if not await asyncio.to_thread(on_battery):
        return
    logger.warning("on battery: training pauses until the Mac is connected to power")
    while await asyncio.to_thread(on_battery):
        if await batcher.ends_within(CHECK_S):
            return
    logger.warning("connected to power: training goes on")
