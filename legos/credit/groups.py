"""Check task ids: plays with the same id are compared, so an id must belong to one task."""

import pickle
from collections.abc import Hashable, Iterable, Sequence
from contextlib import suppress
from typing import Any

from legos.errors import ArenaError, text_of
from legos.records.episode import Episode, Task

__all__ = ["check_tasks", "group_names"]

_SHOWN = 200  # maximum number of characters of a task's data in a message


def check_tasks(arena: str, tasks: Iterable[Task]) -> None:
    """Check that tasks of one step with the same id have the same data.

    Data counts as the same if it is the same object, compares equal, pickles to the same bytes (for
    objects without equality), or can be neither compared nor pickled.

    Raises:
        ArenaError: two tasks differ; the message gives the id and both data.
    """
    _check(((None, arena), task) for task in tasks)


def group_names(episodes: Sequence[Episode], scopes: Sequence[Hashable]) -> list[str]:
    """[E] name of the group of each episode: its arena, its task, and its scope unless it is None.

    Args:
        episodes: [E] episodes that are compared, children included.
        scopes: [E] keys; a rule compares only episodes with equal ones.

    Raises:
        ArenaError: plays of different tasks that share an id would be compared; the message gives
            the id and both data.
    """
    try:
        _check(((at, e.arena), e.task) for at, e in zip(scopes, episodes, strict=True))
    except ArenaError as error:
        error.add_note("credit 'hierarchical' compares only the spawned plays of one parent")
        raise
    named: dict[Hashable, str] = {None: ""}
    for scope in scopes:
        named.setdefault(scope, f"/{episodes[0].seed}.{len(named)}")
    return [f"{e.arena}/{e.task.id}{named[at]}" for e, at in zip(episodes, scopes, strict=True)]


def _check(tasks: Iterable[tuple[tuple[Hashable, str], Task]]) -> None:
    first: dict[Hashable, Task] = {}
    for scope, task in tasks:
        known = first.setdefault((scope, task.id), task)
        if known is not task and not _same(known.data, task.data):
            one, other = (text_of(data, repr)[:_SHOWN] for data in (known.data, task.data))
            raise ArenaError(
                f"two tasks of arena {scope[1]!r} have the id {task.id!r} but different data: "
                f"{one} and {other}; the plays of one id are compared with each other, so give "
                f"every task an id of its own, such as '{task.id}/0' and '{task.id}/1'"
            )


def _same(one: Any, other: Any) -> bool:
    if one is other:
        return True
    with suppress(Exception):  # comparing arrays gives no single truth value
        if one == other:
            return True
    try:
        return pickle.dumps(one) == pickle.dumps(other)
    except Exception:  # whatever an object's own code raises
        return True
