"""Which figures of an evaluation say most about a run."""

from collections.abc import Iterable

from legos.run.metrics import MetricTable

__all__ = ["before_and_after", "key_figures"]

_LARGER_IS_BETTER = {"exploitability": False, "joint_value": True, "reward_mean": True}


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
    evaluations: MetricTable,
) -> dict[str, tuple[float | None, float | None]]:
    """Metric -> its value in the first and in the last of some evaluations, key figures first.

    The last value is None where there is one evaluation only, a value that is not defined is too.
    """
    if not evaluations.num_steps:
        return {}
    first = next(evaluations.rows())
    last = evaluations.newest if evaluations.num_steps > 1 else {}
    names = [name for name in evaluations if name.startswith("eval/")]
    ordered = dict.fromkeys((*key_figures(names), *names))
    return {name: (first.get(name), last.get(name)) for name in ordered}
