"""What plays of an arena keep for later plays, also after a resume."""

import copy
import json
from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any

from legos.errors import ArenaError
from legos.records.numbers import brief


class Store(MutableMapping[str, Any]):
    """Key -> JSON value, oldest first; a key that is set again becomes the newest.

    Attributes:
        limit: maximum number of keys, beyond which the oldest are removed; None: no limit.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._values: dict[str, Any] = {}
        self.limit: int | None = None

    def set_limit(self, limit: int | None) -> None:
        """Change the limit; raises ``ArenaError`` if it is no whole number, or below 1."""
        if limit is not None and not (isinstance(limit, int) and limit >= 1):
            what = f"limit of store {self._name!r} is {brief(limit)}"
            raise ArenaError(f"{what}; expected at least 1, a whole number, or None")
        self.limit = limit
        self._shorten()

    def _shorten(self) -> None:
        while self.limit is not None and len(self._values) > self.limit:
            del self._values[next(iter(self._values))]

    def __getitem__(self, key: str) -> Any:
        return copy.deepcopy(self._values[key])

    def __setitem__(self, key: str, value: Any) -> None:
        """Keep a value; raises ``ArenaError`` if it cannot be stored as JSON."""
        if not isinstance(key, str):
            raise ArenaError(f"store {self._name!r} got the key {brief(key)}; expected text")
        try:
            stored = json.loads(json.dumps(value, allow_nan=False))
        except (TypeError, ValueError, RecursionError) as error:
            raise ArenaError(
                f"store {self._name!r} got {brief(value)} for key {key!r}, which is no JSON value: "
                f"{error}; store texts, numbers, lists and dicts"
            ) from error
        self._values.pop(key, None)
        self._values[key] = stored
        self._shorten()

    def __delitem__(self, key: str) -> None:
        del self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(tuple(self._values))

    def __len__(self) -> int:
        return len(self._values)


class Stores:
    """The stores of an arena, by name."""

    def __init__(self) -> None:
        self._stores: dict[str, Store] = {}

    def get(self, name: str, limit: int | None) -> Store:
        """The store of a name, which is empty at first.

        Raises:
            ArenaError: the name is no text, or the limit no whole number from 1.
        """
        if not isinstance(name, str):
            raise ArenaError(f"store({brief(name)}) got no text; expected the name of a store")
        store = self._stores.setdefault(name, Store(name))
        if store.limit != limit:
            store.set_limit(limit)
        return store

    def copy(self) -> "Stores":
        """Stores with the same contents, for plays that must not change these."""
        copied = Stores()
        copied.restore(self.state())
        return copied

    def state(self) -> dict[str, Any]:
        """The contents, as JSON values: name -> list of keys and values, oldest first."""
        return {
            name: [list(item) for item in store.items()] for name, store in self._stores.items()
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take back what ``state`` returned."""
        self._stores = {}
        for name, items in state.items():
            self.get(name, None).update(dict(items))
