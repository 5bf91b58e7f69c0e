"""Names of the groups of episodes that a credit rule compares with each other."""

from collections.abc import Hashable, Sequence

from legos.errors import ArenaError
from legos.records.episode import Episode
from legos.records.task_ids import check_task_ids

__all__ = ["group_names"]


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
        check_task_ids(((at, e.arena), e.task) for at, e in zip(scopes, episodes, strict=True))
    except ArenaError as error:
        error.add_note("credit 'hierarchical' compares only the spawned plays of one parent")
        raise
    named: dict[Hashable, str] = {None: ""}
    for scope in scopes:
        named.setdefault(scope, f"/{episodes[0].seed}.{len(named)}")
    return [f"{e.arena}/{e.task.id}{named[at]}" for e, at in zip(episodes, scopes, strict=True)]
