"""Alarms on the metrics of an optimiser step: the levels of each metric, and what to do.

At equal weights, the gap between engine and trainer is noise and should be tiny. On samples of
older policies the gap also contains what was learned since, so only the error levels count there.
``docs/run/alarms.md`` explains each alarm.
"""

import math
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Literal

PAGE = "docs/run/alarms.md"
Level = Literal["warning", "error"]
EQUAL = "equal_reward_steps"  # steps in a row with equal rewards, once they are reported
EQUAL_STEPS = 10  # with equal rewards, until it is reported
EQUAL_ADVICE = (
    "reward partial success, ask for a form that can be read, imitate it first (`legos imitate`) "
    "or change the tasks, unless this is the best"
)
_EARLY = 30  # optimiser steps


@dataclass(frozen=True, slots=True, kw_only=True)
class Alarm:
    """A metric that has reached one of its levels."""

    level: Level
    metric: str
    text: str  # the value, the level, and advice
    lasting: bool = False  # as a warning, it counts only where the step before gave it too


@dataclass(frozen=True, slots=True)
class Rule:
    """The levels of one metric."""

    metric: str
    warning: float
    error: float
    advice: str
    below: bool = False  # True: small values are bad
    fresh: bool = False  # True: warn only in steps on samples of the current policy
    early: bool = False  # True: warn only in the first steps of a run
    lasting: bool = False  # True: a few samples of one step can reach the level by chance


_SKIPPED = (
    "the step was skipped and changed no weight, because too many of its tokens were clipped "
    "(clip_fraction) or its loss was not finite; lower learning_rate or staleness_limit"
)
LEGAL = (
    "sample legal answers only (--play.restrict-choices), ask again (--play.illegal retry), or say "
    "in the prompt what to answer"
)
"""What to do about answers that are not legal."""
_GAP = "lower learning_rate or staleness_limit, or check that engine and trainer agree"
RULES = (
    Rule("applied", 0.0, -math.inf, _SKIPPED, below=True),
    # Below 1e-3 is normal; lasting growth is a reason to stop (NeMo-RL, prime-rl).
    Rule("mismatch_k3", 1e-3, 1e-1, _GAP, fresh=True, lasting=True),
    # 0.011 and flat is healthy; 0.036 after thirty steps was drift (vime 64).
    Rule("logprob_gap", 0.036, 0.36, _GAP, fresh=True, lasting=True),
    # A mean of exp|log r| below 1.01 to 1.02 is healthy (NeMo-RL).
    Rule("error_factor", 1.02, 2.0, _GAP, fresh=True, lasting=True),
    # About 0.99 at an age of one step (marin).
    Rule("effective_sample_share", 0.9, 0.5, _GAP, below=True, lasting=True),
    # gspo clips 0.15 where it works (arXiv:2507.18071); at 0.4 nothing was learned (nim).
    Rule("clip_fraction", 0.3, 0.8, "widen clip_range, or lower learning_rate"),
    Rule("mask_fraction", 0.2, 0.8, "the corrections drop most of what was played"),
    Rule(
        "truncation_share",
        0.2,
        0.8,
        "raise max_tokens, reward answers that end, or turn overlong_filter on",
    ),
    Rule(
        "arena/illegal",
        0.5,
        math.inf,
        f"most plays hold an answer that is not legal; {LEGAL}",
    ),
    # Early only, and never an error: once a game is solved, all plays of most tasks earn the same.
    Rule(
        "zero_advantage_share",
        0.8,
        math.inf,
        "little can be learned; tasks are all solved or all failed, or groups have one play",
        early=True,
    ),
    Rule(
        EQUAL,
        EQUAL_STEPS,
        math.inf,
        "every role earned the same in all plays of so many steps, so nothing can be learned from "
        f"them; {EQUAL_ADVICE}",
    ),
)


def alarms(
    metrics: Mapping[str, float | int | None],
    prefixes: Sequence[str] = ("",),
    rules: Sequence[Rule] = RULES,
) -> list[Alarm]:
    """The alarms of one step's metrics; a missing metric gives no alarm.

    Args:
        metrics: name -> value, with the names of ``step_metrics`` and the trainer.
        prefixes: what the names of each trained policy's metrics begin with.
        rules: the levels of the metrics.

    Returns:
        At most one alarm per metric, errors first; a number that is not finite is an error.
    """
    found: list[Alarm] = []
    for prefix, rule in product(prefixes, rules):
        metric = f"{prefix}{rule.metric}"
        value = metrics.get(metric)
        if value is None:
            continue
        level = _level(rule, float(value))
        excused = (rule.fresh and (metrics.get("staleness_mean") or 0.0) > 0) or (
            rule.early and (metrics.get("step") or 0) > _EARLY
        )
        if level == "error" or (level == "warning" and not excused):
            limit = rule.warning if level == "warning" else rule.error
            side = "at or below" if rule.below else "at or above"
            text = f"{metric} is {value:.4g}, {side} {limit:.4g}: {rule.advice} ({PAGE})"
            found.append(Alarm(level=level, metric=metric, text=text, lasting=rule.lasting))
    return sorted(found, key=lambda alarm: alarm.level != "error")


def counting(found: Sequence[Alarm], before: Container[str]) -> list[Alarm]:
    """The alarms of a step that count: not those that must last, and have only begun.

    Args:
        found: all alarms of the step.
        before: the metrics that had alarms in the step before.
    """
    return [a for a in found if a.level == "error" or not a.lasting or a.metric in before]


def _level(rule: Rule, value: float) -> Level | None:
    if not math.isfinite(value):
        return "error"
    sign = -1.0 if rule.below else 1.0
    if sign * value >= sign * rule.error:
        return "error"
    return "warning" if sign * value >= sign * rule.warning else None
