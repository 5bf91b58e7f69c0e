"""Which figures of an evaluation say most about a run."""

from collections.abc import Iterable

from legos.run.metrics import MetricTable

_LARGER_IS_BETTER = {"joint_value": True, "exploitability": False, "reward_mean": True}
"""By rank: where all roles earn the same, a bad agreement has an exploitability of 0, too."""


def key_figures(names: Iterable[str]) -> dict[str, bool]:
    """The metric that says most about each arena of a run -> whether a larger value is better.

    Args:
        names: names of metrics of evaluations, such as ``eval/exploitability``, or of one arena of
            a mix ``eval/kuhn/exploitability``.
    """
    found: dict[str, tuple[str, bool]] = {}  # what the name begins with -> metric
    names = list(names)
    for metric, larger in _LARGER_IS_BETTER.items():
        for name in names:
            start, slash, last = name.rpartition("/")
            if last == metric and slash and start.startswith("eval"):
                found.setdefault(start, (name, larger))
    return dict(found.values())


def before_and_after(
    evaluations: MetricTable, *, version: int | None = None
) -> dict[str, tuple[float | None, float | None]]:
    """Metric -> its value in the first evaluation, and in a later one; key figures come first.

    A value is None where it is not defined, or where there is no later evaluation.

    Args:
        evaluations: the evaluations of a run.
        version: policy version of the other evaluation, which may be the first; None: the last one.
    """
    first, *later = evaluations.rows() if evaluations.num_steps else [{}]
    if version is not None:
        later = [row for row in (first, *later) if row.get("policy_version") == version]
    last = later[-1] if later else {}
    names = [name for name in evaluations if name.startswith("eval/")]
    ordered = dict.fromkeys((*key_figures(names), *names))
    return {name: (first.get(name), last.get(name)) for name in ordered}
