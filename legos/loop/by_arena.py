"""The metrics of an optimiser step from its groups: of all arenas together, and of each one."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence

from legos.credit.means import RESERVED, merged_metrics
from legos.records.group import Group

_SQUARE = "reward_square_mean"
_COMMON = frozenset({"reward_mean", "reward_std", "credit/singletons"}) | {
    f"arena/{name}" for name in RESERVED
}
_OWN = ("reward_mean", "reward_std", "reward_part/")  # beginnings of what each arena reports


def play_metrics(groups: Sequence[Group], *, mixed: bool) -> dict[str, float]:
    """Merge the metrics of a step's groups.

    Args:
        groups: the groups of one optimiser step.
        mixed: whether the run has several arenas. Metrics that only one arena has (its own metrics,
            the rewards of its roles) then carry its name: ``batches/ARENA/…``.
    """
    by_arena: dict[str, list[Group]] = {}
    for group in groups:
        by_arena.setdefault(group.arena, []).append(group)
    merged = _with_deviation(merged_metrics(groups))
    if mixed:
        merged = {name: value for name, value in merged.items() if name in _COMMON}
    amounts = {name: _amounts(own) for name, own in by_arena.items()}
    tokens = sum(amount["tokens"] for amount in amounts.values())
    for name, own in by_arena.items():
        if not name:
            continue
        found = _with_deviation(merged_metrics(own))
        if not mixed:
            found = {key: value for key, value in found.items() if key.startswith(_OWN)}
        found |= {
            "generated_tokens": sum(b.metrics.get("arena/generated_tokens", 0.0) for b in own),
            **amounts[name],
            "token_share": amounts[name]["tokens"] / (tokens or 1.0),
        }
        merged |= {f"batches/{name}/{key}": value for key, value in found.items()}
    return merged


def _amounts(groups: Sequence[Group]) -> dict[str, float]:
    """Counts of rollouts, samples and tokens, of a policy's seat too, and shares of them."""
    samples = [sample for group in groups for sample in group.samples]
    seats, tokens = Counter[str](), Counter[str]()  # by policy
    for group in groups:
        seats.update(policy for policy, _ in {(one.policy, one.rollout) for one in group.samples})
        for sample in group.samples:
            tokens[sample.policy] += len(sample.advantages)
    advantages = [a for sample in samples for a in sample.advantages]
    found = {
        "rollouts": float(seats.total()),
        "samples": float(len(samples)),
        "tokens": float(len(advantages)),
        **{f"seat_tokens/{policy}": tokens[policy] / number for policy, number in seats.items()},
    }
    if samples:
        found["truncation_share"] = sum(sample.truncated for sample in samples) / len(samples)
        found["zero_advantage_share"] = sum(abs(a) < 1e-9 for a in advantages) / len(advantages)
    return found


def _with_deviation(metrics: Mapping[str, float]) -> dict[str, float]:
    """Replace the mean of squared rewards by their standard deviation."""
    found = dict(metrics)
    if _SQUARE in found:
        square, mean = found.pop(_SQUARE), found["reward_mean"]
        found["reward_std"] = math.sqrt(max(0.0, square - mean * mean))
    return found
