"""Adapters by the names that users give them: a folder, a run, or a run's step."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from legos.errors import CheckpointError
from legos.records.names import POLICY, frozen_name
from legos.run.find import find_adapter, find_run, split_place
from legos.run.folder import RunFolder
from legos.run.metrics import MetricTail
from legos.weights.adapter import Adapter
from legos.weights.folder import read_adapter

__all__ = ["adapters_beside", "frozen_adapters", "named_adapter"]


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


def adapters_beside(run: RunFolder, version: int, policies: Sequence[str]) -> list[Adapter]:
    """The adapters of further policies after the newest step with a version of the first.

    Raises:
        CheckpointError: the run has not trained one of them.
        AdapterError: the run does not keep an adapter of that step.
    """
    if lacking := [name for name in policies if not (run.adapters / name).exists()]:
        raise CheckpointError(
            f"{run.path} has trained no policy {lacking[0]!r}, which the arena has; name a run of "
            "that arena"
        )
    versions = MetricTail(run.metrics).read().of_version(version)  # {}: version 0 of all
    numbers = {name: int(versions.get(f"{name}/policy_version") or 0) for name in policies}
    return [read_adapter(run.adapters / name / f"v{numbers[name]}") for name in policies]


def frozen_adapters(text: str, policies: Sequence[str]) -> Mapping[str, Adapter]:
    """Policy -> its adapter of the step that a user names; equal weights have equal names.

    Raises:
        CheckpointError: the run or the adapter is not found.
        AdapterError: an adapter is damaged, or the run keeps none of a policy.
    """
    found = [named_adapter(text)]
    if len(policies) > 1:
        found += adapters_beside(find_run(split_place(text)[0]), found[0].version, policies[1:])
    named = (replace(one, name=frozen_name(one.digest)) for one in found)
    return dict(zip(policies, named, strict=True))
