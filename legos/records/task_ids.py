"""Check task ids: plays with the same id are compared, so an id must belong to one task."""

import pickle
from collections.abc import Hashable, Iterable
from contextlib import suppress
from typing import Any

from legos.errors import ArenaError, text_of
from legos.records.episode import Task

_SHOWN = 200  # maximum number of characters of a task's data in a message


def check_task_ids(tasks: Iterable[tuple[tuple[Hashable, str], Task]]) -> None:
    """Check that tasks with the same id have the same data.

    Data counts as the same if it is the same object, compares equal, pickles to the same bytes (for
    objects without equality), or can be neither compared nor pickled.

    Args:
        tasks: each with what its plays are compared within, of which the last is its arena's name.

    Raises:
        ArenaError: two tasks differ; the message gives the id and both data.
    """
    first: dict[Hashable, Task] = {}
    for scope, task in tasks:
        known = first.setdefault((scope, task.id), task)
        if known is not task and not same_data(known.data, task.data):
            one, other = (text_of(data, repr)[:_SHOWN] for data in (known.data, task.data))
            raise ArenaError(
                f"two tasks of arena {scope[1]!r} have the id {task.id!r} but different data: "
                f"{one} and {other}; the plays of one id are compared with each other, so give "
                f"every task an id of its own, such as '{task.id}/0' and '{task.id}/1'"
            )


def same_data(one: Any, other: Any) -> bool:
    """Whether the data of two tasks counts as the same, as for ``check_task_ids``."""
    if one is other:
        return True
    with suppress(Exception):  # comparing arrays gives no single truth value
        if one == other:
            return True
    try:
        return pickle.dumps(one) == pickle.dumps(other)
    except Exception:  # whatever an object's own code raises
        return True
