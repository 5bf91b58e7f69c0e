"""Log the alarms of a run: those of single steps, and that rewards stay equal for many steps."""

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from itertools import islice

from legos.credit.means import with_children
from legos.losses.alarms import (
    EQUAL,
    EQUAL_ADVICE,
    EQUAL_STEPS,
    PAGE,
    Alarm,
    alarms,
    counting,
)
from legos.records.group import Group

logger = logging.getLogger(__name__)
NEAR = 0.02  # distance of a metric of an evaluation from its optimum that counts as none
Metrics = Mapping[str, float | int | None]
Rewards = dict[str, set[float]]
"""Role -> its different rewards."""


class AlarmLog:
    """Logs an error each time it starts, and each warning once per process.

    Attributes:
        evaluated: metrics of the newest evaluation, under flat names.
        alert: also called with each alarm that is logged, and its step.
    """

    def __init__(self) -> None:
        self.evaluated: Mapping[str, float] = {}
        self.alert: Callable[[Alarm, int], object] = lambda _, __: None
        # League -> metric and level of its alarms that were logged; metrics with one in its newest
        # step.
        self._sounding: dict[str, set[tuple[str, str]]] = {}
        self._newest: dict[str, set[str]] = {}
        self._equal: dict[str, tuple[int, Rewards]] = {}  # arena -> steps, and rewards in all

    def after_step(
        self, metrics: Metrics, groups: Sequence[Group], policies: Mapping[str, str]
    ) -> dict[str, float]:
        """Log the alarms of a step; returns metrics that only they have.

        Args:
            metrics: the metrics of the step.
            groups: what it was trained on.
            policies: name of each policy -> what the names of its metrics begin with.
        """
        arenas = list(dict.fromkeys(group.arena for group in groups))
        prefixes = [*policies.values()]
        own = {arena: f"batches/{arena}/" if len(arenas) > 1 and arena else "" for arena in arenas}
        found = alarms(metrics, [*prefixes, *filter(None, own.values())])
        more: dict[str, float] = {}
        for arena, prefix in own.items():
            if equal := self._equal_rewards(arena, [b for b in groups if b.arena == arena]):
                found += equal
                more[f"{prefix}{EQUAL}"] = float(self._equal[arena][0])
        self.sound(found, step=int(metrics["step"] or 0))
        return more

    def sound(self, found: Sequence[Alarm], *, step: int, league: str = "") -> None:
        """Log alarms, except those that have sounded already.

        Args:
            found: all that sound at this step.
            step: the step.
            league: arena whose league they are of; empty: they are of the step.
        """
        before, again = self._sounding.get(league, set()), self._newest.get(league, set())
        self._newest[league] = {alarm.metric for alarm in found}
        found = counting(found, again)
        for alarm in found:
            if (alarm.metric, alarm.level) not in before:
                level = logging.ERROR if alarm.level == "error" else logging.WARNING
                logger.log(level, "step %d: %s", step, alarm.text)
                self.alert(alarm, step)
        warned = {(metric, level) for metric, level in before if level == "warning"}
        self._sounding[league] = warned | {(alarm.metric, alarm.level) for alarm in found}

    def _equal_rewards(self, arena: str, groups: Sequence[Group]) -> list[Alarm]:
        """An alarm if every role of an arena has earned the same in many steps."""
        seen = _rewards(groups)
        if not seen:
            return []
        steps, before = self._equal.get(arena, (0, {}))
        together = {role: before.get(role, set()) | found for role, found in seen.items()}
        if any(len(found) > 1 for found in together.values()):  # others than in the steps before
            steps, together = 0, seen
        equal = all(len(found) == 1 for found in seen.values())
        steps = steps + 1 if equal else 0
        self._equal[arena] = steps, together
        if steps < EQUAL_STEPS or self._solved(arena):
            return []
        where = f" in {arena}" if arena else ""
        listed = ", ".join(f"{role} {r + 0.0:g}" for role, got in together.items() for r in got)
        said = ", ".join(f"{answer[:80]!r}" for answer in _answers(groups)) or "nothing"
        text = (
            f"all rewards of the last {EQUAL_STEPS} steps were equal{where} ({listed}), so "
            f"nothing can be learned from them. Answers of this step: {said} (`legos watch` shows "
            f"more); {EQUAL_ADVICE} ({PAGE})"
        )
        return [Alarm(level="warning", metric=f"equal rewards {arena}", text=text)]

    def _solved(self, arena: str) -> bool:
        """Whether the newest evaluation shows best play in an arena."""

        def metric(name: str, default: float) -> float:
            found = self.evaluated
            return found.get(f"eval/{arena}/{name}", found.get(f"eval/{name}", default))

        if (joint := metric("joint_value", math.inf)) < math.inf:  # all roles earn the same
            best = joint >= metric("optimal_joint_value", math.inf) - NEAR
        else:
            best = metric("exploitability", math.inf) <= NEAR
        return best or metric("optimal_move_rate", 0.0) >= 1.0 - NEAR


def _answers(groups: Sequence[Group]) -> list[str]:
    """The last answers of trained seats in different plays, at most three."""
    said = (
        rollout.turns[-1].completion.text
        for group in groups
        for episode in group.episodes
        for rollout in episode.rollouts
        if rollout.policy is not None and rollout.turns
    )
    return list(islice(dict.fromkeys(said), 3))


def _rewards(groups: Sequence[Group]) -> Rewards:
    """The rewards of each trained role in the plays that ended."""
    found: Rewards = {}
    for episode in with_children(episode for group in groups for episode in group.episodes):
        if episode.error is None and not episode.void:
            for rollout in episode.rollouts:
                if rollout.policy is not None and rollout.role in episode.rewards:
                    reward = episode.rewards[rollout.role] + rollout.turn_rewards
                    found.setdefault(rollout.role, set()).add(round(reward, 9))
    return found
