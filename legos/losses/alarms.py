"""When a step's numbers say that something is wrong: levels, and what to do about each.

At equal weights a gap between engine and trainer is noise and should be tiny. On samples of older
policies it is also what has been learned since, so there only the error levels count.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

__all__ = ["Alarm", "alarms"]

Level = Literal["warning", "error"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Alarm:
    """One number beyond its level."""

    level: Level
    metric: str
    text: str  # the number, the level, and what to look at


@dataclass(frozen=True, slots=True)
class _Rule:
    metric: str
    warning: float
    error: float
    advice: str
    below: bool = False  # True: small values are the bad ones
    fresh: bool = False  # True: the warning is for steps on samples of the policy itself


_GAP = "lower learning_rate or staleness_limit, or check that engine and trainer agree"
_RULES = (
    # Below 1e-3 is normal and lasting growth a reason to stop (NeMo-RL, prime-rl).
    _Rule("mismatch_k3", 1e-3, 1e-1, _GAP, fresh=True),
    # 0.011 and flat is healthy; 0.036 after thirty steps was drift (vime 64).
    _Rule("logprob_gap", 0.036, 0.36, _GAP, fresh=True),
    # A mean of exp|log r| below 1.01 to 1.02 is healthy (NeMo-RL).
    _Rule("error_factor", 1.02, 2.0, _GAP, fresh=True),
    # About 0.99 at an age of one step (marin).
    _Rule("effective_sample_share", 0.9, 0.5, _GAP, below=True),
    # 0.15 is what gspo clips where it works (arXiv:2507.18071); at 0.4 nothing was learned (nim).
    _Rule("clip_fraction", 0.3, 0.8, "widen clip_range, or lower learning_rate"),
    _Rule("mask_fraction", 0.2, 0.8, "the corrections drop most of what was played"),
    _Rule("truncation_share", 0.2, 0.8, "raise max_tokens, or turn overlong_filter on"),
    # No error: where a game is solved, a step in which all plays earn the same is nothing unusual.
    _Rule(
        "zero_advantage_share",
        0.8,
        math.inf,
        "little is left to learn from; tasks are all solved or all failed, or groups are 1",
    ),
)


def alarms(metrics: Mapping[str, float | int | None]) -> list[Alarm]:
    """The alarms of one step's metrics; a metric that is missing raises none.

    Args:
        metrics: as ``step_metrics`` and the trainer name them.

    Returns:
        At most one alarm per metric, errors first; a number that is not finite is an error.
    """
    found: list[Alarm] = []
    for rule in _RULES:
        value = metrics.get(rule.metric)
        if value is None:
            continue
        level = _level(rule, float(value))
        excused = level == "warning" and rule.fresh and (metrics.get("staleness_mean") or 0.0) > 0
        if level is not None and not excused:
            limit = rule.warning if level == "warning" else rule.error
            side = "below" if rule.below else "at or above"
            text = f"{rule.metric} is {value:.4g}, {side} {limit:.4g}: {rule.advice}"
            found.append(Alarm(level=level, metric=rule.metric, text=text))
    return sorted(found, key=lambda alarm: alarm.level != "error")


def _level(rule: _Rule, value: float) -> Level | None:
    if not math.isfinite(value):
        return "error"
    sign = -1.0 if rule.below else 1.0
    if sign * value >= sign * rule.error:
        return "error"
    return "warning" if sign * value >= sign * rule.warning else None
