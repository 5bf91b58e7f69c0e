"""A TCP proxy before a server that drops, delays, truncates or refuses while it is told to."""

import asyncio
import threading
from collections import Counter
from typing import Literal

__all__ = ["FaultyProxy", "Mode"]

Mode = Literal["pass", "delay", "drop", "truncate", "refuse"]
DELAY_S = 0.5  # of each part of an answer
BAD_GATEWAY = b"HTTP/1.1 502 Bad Gateway\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


class FaultyProxy:
    """Runs on a thread while entered.

    Attributes:
        mode: what happens to the next request or answer.
        hits: what has happened so often.
        port: where it listens.
    """

    def __init__(self, target: int) -> None:
        self.mode: Mode = "pass"
        self.hits: Counter[str] = Counter()
        self.port = 0
        self._target = target
        self._listens = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)

    def __enter__(self) -> "FaultyProxy":
        self._thread.start()
        self._listens.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join()

    async def _serve(self) -> None:
        self._loop, self._over = asyncio.get_running_loop(), asyncio.Event()
        async with await asyncio.start_server(self._accept, "127.0.0.1", 0) as server:
            self.port = server.sockets[0].getsockname()[1]
            self._listens.set()
            await self._over.wait()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Carry one connection in both directions, until one of them ends."""
        ends = [writer]
        try:
            there, back = await asyncio.open_connection("127.0.0.1", self._target)
            ends.append(back)
            ways = [
                asyncio.create_task(self._requests(reader, back, writer)),
                asyncio.create_task(self._answers(there, writer)),
            ]
            try:
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for way in ways:
                    way.cancel()
                await asyncio.gather(*ways, return_exceptions=True)
        except (OSError, asyncio.CancelledError):
            pass  # the server is not there, or the proxy ends: the connection is closed
        finally:
            for end in ends:
                end.close()

    async def _requests(
        self, source: asyncio.StreamReader, to: asyncio.StreamWriter, back: asyncio.StreamWriter
    ) -> None:
        while data := await source.read(1 << 16):
            if self.mode == "refuse":
                self.hits["refuse"] += 1
                back.write(BAD_GATEWAY)
                await back.drain()
                return
            to.write(data)
            await to.drain()

    async def _answers(self, source: asyncio.StreamReader, to: asyncio.StreamWriter) -> None:
        while data := await source.read(1 << 16):
            mode = self.mode
            if mode in ("delay", "drop", "truncate"):
                self.hits[mode] += 1
            if mode == "drop":
                return
            if mode == "truncate":
                to.write(data[: len(data) * 3 // 4])
                await to.drain()
                return
            if mode == "delay":
                await asyncio.sleep(DELAY_S)
            to.write(data)
            await to.drain()
