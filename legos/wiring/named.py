"""Adapters by the names that users give them: a folder, a run, or a run's step."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from legos.errors import CheckpointError
from legos.records.names import POLICY, frozen_name
from legos.run.find import find_adapter, find_run, named_step, split_place, with_parents
from legos.run.metrics import MetricTail
from legos.weights.adapter import Adapter
from legos.weights.folder import read_adapter


def named_adapter(text: str, *, name: str = POLICY) -> Adapter:
    """Read the adapter that a user names.

    Args:
        text: an adapter folder, ``RUN``, ``RUN@STEP``, ``RUN@best`` or ``RUN@vN``.
        name: name of the adapter in an engine.

    Raises:
        CheckpointError: the run or the adapter is not found.
        AdapterError: the adapter is damaged.
    """
    return replace(read_adapter(find_adapter(text)), name=name)


def adapters_beside(text: str, version: int, policies: Sequence[str]) -> list[Adapter]:
    """The adapters that further policies had together with one of the first policy of a run.

    Args:
        text: what names that adapter, as ``named_adapter`` takes it. Where it names no step, the
            newest of which the run keeps all of them counts: a version can last for several.
        version: its version.
        policies: names of the further policies.

    Raises:
        CheckpointError: the run has not trained one of them, or its metrics lack the step.
        AdapterError: the run does not keep an adapter of that step.
    """
    if not policies:
        return []
    place, at = split_place(text)
    run = find_run(place)
    if lacking := [name for name in policies if not (run.adapters / name).exists()]:
        raise CheckpointError(
            f"{run.path} has trained no policy {lacking[0]!r}, which the arena has; name a run of "
            "that arena"
        )
    step = named_step(run, at)
    found = [
        row
        for each, last in with_parents(run)
        for row in MetricTail(each.metrics).read().rows()
        if (row["step"] or 0) <= last
        and step in (None, row["step"])
        and (row.get("policy_version") or 0) == version
    ]
    if version and not found:
        raise CheckpointError(
            f"{run.metrics} does not say which adapters {', '.join(policies)} had together with "
            f"v{version}; give another step"
        )
    places = [
        [run.adapters / one / f"v{row.get(f'{one}/policy_version') or 0:.0f}" for one in policies]
        for row in reversed(found or [{}])  # before the first step, all have version 0
    ]
    kept = (each for each in places if all(place.exists() for place in each))
    return [read_adapter(place) for place in next(kept, places[0])]


def frozen_adapters(text: str, policies: Sequence[str]) -> Mapping[str, Adapter]:
    """Policy -> its adapter of the step that a user names; equal weights have equal names.

    Raises:
        CheckpointError: the run or the adapter is not found.
        AdapterError: an adapter is damaged, or the run keeps none of a policy.
    """
    first = named_adapter(text)
    found = (first, *adapters_beside(text, first.version, policies[1:]))
    named = (replace(one, name=frozen_name(one.digest)) for one in found)
    return dict(zip(policies, named, strict=True))
