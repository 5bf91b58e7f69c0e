"""Which server has the keys and values of a prompt's beginning, because it was asked with it."""

from collections.abc import Iterator, Sequence

BLOCK = 32  # tokens; beginnings are compared in steps of so many
MOST_BLOCKS = 1 << 16  # that are remembered, the newest


class PrefixAffinity:
    """Remembers where prompts were sent, so that a conversation returns to its prefix.

    A prompt returns to where the longest known beginning of it was sent, if that is at least half
    of it: two conversations whose rules are the same need not share a server.
    """

    def __init__(self) -> None:
        self._homes: dict[int, int] = {}  # hash of a beginning -> server, oldest first

    def find(self, adapter: str, prompt_ids: Sequence[int]) -> int | None:
        """The server of a prompt's beginning; None: no server has enough of it.

        Args:
            adapter: what the prompt is answered with; keys and values depend on it.
            prompt_ids: [T] token ids.
        """
        home, known = None, 0
        for key in _beginnings(adapter, prompt_ids):
            if key not in self._homes:
                break
            home, known = self._homes[key], known + 1
        return home if 2 * known * BLOCK >= len(prompt_ids) else None

    def settle(self, adapter: str, prompt_ids: Sequence[int], server: int) -> None:
        """Remember where a prompt was sent."""
        for key in _beginnings(adapter, prompt_ids):
            self._homes.pop(key, None)
            self._homes[key] = server
        while len(self._homes) > MOST_BLOCKS:
            del self._homes[next(iter(self._homes))]


def _beginnings(adapter: str, prompt_ids: Sequence[int]) -> Iterator[int]:
    """A hash of each beginning of whole blocks, shortest first."""
    key = hash(adapter)
    for start in range(0, len(prompt_ids) - BLOCK + 1, BLOCK):
        key = hash((key, tuple(prompt_ids[start : start + BLOCK])))
        yield key
