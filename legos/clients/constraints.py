"""What requests allow, in the form that engines use: trees of choices and grammars, cached."""

import asyncio
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Generic, TypeVar

from legos.chat.tokenizer import ChatTokenizer
from legos.records.choices import ChoiceNode, choice_tree, tree_bytes
from legos.records.request import Grammar

SMALL = 256  # characters of choices, whose tree is made at once
TREES = 1 << 26  # bytes of trees that are kept
GRAMMARS = 32  # number of grammars that are kept
Legal = tuple[ChoiceNode | None, Grammar | None]

K = TypeVar("K")
V = TypeVar("V")


@dataclass(eq=False)
class Shared(Generic[K, V]):
    """A cache of values that are slow to make; simultaneous requests for one share its making.

    Attributes:
        size: sum of the sizes of the values that are kept.
    """

    make: Callable[[K], V]  # makes the value of a key; it may take seconds
    most: int  # maximum sum of the sizes of values kept; the last value used is always kept
    _: KW_ONLY
    size_of: Callable[[V], int] = lambda _: 1  # in any unit; by default values are counted
    use_threads: bool  # make values on threads

    def __post_init__(self) -> None:
        """Begin without values."""
        self._values: dict[K, tuple[V, int]] = {}  # with its size, in the order of their last use
        self._coming: dict[K, asyncio.Future[tuple[V, int]]] = {}
        self.size = 0

    async def get(self, key: K) -> V:
        """The value of a key; raises what ``make`` raises."""
        if not self.use_threads or key in self._values:
            return self.at_once(key)
        loop = asyncio.get_running_loop()
        coming = self._coming.get(key)
        if coming is None or coming.get_loop() is not loop:
            coming = self._coming[key] = loop.run_in_executor(None, self._made, key)
            coming.add_done_callback(partial(self._came, key))
        return (await asyncio.shield(coming))[0]  # other requests may wait for it

    def at_once(self, key: K) -> V:
        """The value of a key, made on this thread if there is none."""
        return self._keep(key, self._values.get(key) or self._made(key))

    def _made(self, key: K) -> tuple[V, int]:
        value = self.make(key)
        return value, self.size_of(value)

    def _came(self, key: K, coming: "asyncio.Future[tuple[V, int]]") -> None:
        """Keep a value that a thread has made, even if nobody waits for it any more."""
        if self._coming.get(key) is coming:
            del self._coming[key]
        if not coming.cancelled() and coming.exception() is None:
            self._keep(key, coming.result())

    def _keep(self, key: K, made: tuple[V, int]) -> V:
        """Make a value the last one used; drop those that were not used for longest."""
        self.size += made[1] - self._values.pop(key, (None, 0))[1]
        self._values[key] = made
        while self.size > self.most and len(self._values) > 1:
            self.size -= self._values.pop(next(iter(self._values)))[1]
        return made[0]


class Constraints:
    """The trees and grammars of one tokenizer."""

    def __init__(self, tokenizer: ChatTokenizer, *, use_threads: bool) -> None:
        """Start without any.

        Args:
            tokenizer: the model's tokenizer.
            use_threads: make grammars and large trees on threads.
        """
        self._tokenizer = tokenizer
        self.trees = Shared(self._tree, TREES, size_of=tree_bytes, use_threads=use_threads)
        self._grammars = Shared(self._grammar, GRAMMARS, use_threads=use_threads)

    def known(self, choices: tuple[str, ...], schema: str | None) -> Legal | None:
        """The tree and the grammar of a request; None if they take long to make."""
        if schema is not None or len("".join(choices)) > SMALL:
            return None
        return self.trees.at_once(choices) if choices else None, None

    async def of(self, choices: tuple[str, ...], schema: str | None) -> Legal:
        """The tree and the grammar of a request.

        Raises:
            RequestError: the schema or a choice cannot be used.
        """
        if (found := self.known(choices, schema)) is not None:
            return found
        tree = await self.trees.get(choices) if choices else None
        return tree, None if schema is None else await self._grammars.get(schema)

    def _tree(self, choices: tuple[str, ...]) -> ChoiceNode:
        return choice_tree(self._tokenizer.encode_each(choices), end_ids=self._tokenizer.end_ids)

    def _grammar(self, schema: str) -> Grammar:
        from legos.chat.grammar import json_grammar  # slow to import, and rarely needed

        return json_grammar(schema, self._tokenizer)
