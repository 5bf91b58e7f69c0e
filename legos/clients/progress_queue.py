"""The tokens of a streamed completion on their way from the engine to a reader."""

import asyncio
from collections.abc import AsyncGenerator

from legos.records.request import Generated, Progress

MOST_PARTS = 256  # that wait for the reader; also tokens of a part of the rest


class ProgressQueue:
    """The tokens of one completion that wait for its reader.

    A reader that falls far behind gets the rest once the completion has ended, from its record,
    which the engine holds in any case.
    """

    def __init__(self, answer: "asyncio.Future[Generated]") -> None:
        """Wait for tokens of the completion that the future will hold."""
        self._answer = answer
        self._parts: asyncio.Queue[Progress | None] = asyncio.Queue()
        self._behind = False
        answer.add_done_callback(self._end)

    def put(self, part: Progress) -> None:
        """Take new tokens."""
        self._behind |= self._parts.qsize() >= MOST_PARTS
        if not self._behind:
            self._parts.put_nowait(part)

    async def read(self) -> AsyncGenerator[Progress]:
        """All tokens, several at once where the reader is slow.

        Raises:
            LegosError: the completion failed.
        """
        num_sent = 0
        while not (self._answer.done() and self._parts.empty()):
            parts = [await self._parts.get()]
            while not self._parts.empty():
                parts.append(self._parts.get_nowait())
            if progress := [part for part in parts if part is not None]:
                joined = Progress.joined(progress)
                num_sent += len(joined.token_ids)
                yield joined
        generated = self._answer.result()
        for start in range(num_sent, len(generated.token_ids), MOST_PARTS):
            rest = slice(start, start + MOST_PARTS)
            fields = {name: getattr(generated, name)[rest] for name in Progress.__struct_fields__}
            yield Progress(**fields)

    def _end(self, _: object) -> None:
        self._parts.put_nowait(None)
