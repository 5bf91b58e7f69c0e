"""Log the alarms of a run: those of single steps, and those of many steps in which nothing changes.

Rewards that are all equal teach nothing, and a policy that gives the same answer every time
explores nothing. Where the newest evaluation shows that a game is solved, both are in order.
"""

import logging
from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from statistics import fmean
from typing import NamedTuple

from legos.credit.means import with_children
from legos.losses.alarms import PAGE, Alarm, alarms
from legos.records.group import Group
from legos.records.sample import Sample

__all__ = ["AlarmLog"]

logger = logging.getLogger(__name__)
EQUAL_STEPS = 10  # with equal rewards, until it is reported
STILL_STEPS = 30  # with equal answers, until it is reported
TURNS = 8  # answers of a sample that are compared, to bound the time that it takes
SAME = 0.97  # share of answers that equal the most frequent one to their prompt
FLAT = 0.02  # change of a metric, or distance from its optimum, that counts as none
EXACT = ("/exploitability", "/joint_value")  # metrics of exact evaluations
Metrics = Mapping[str, float | int | None]


class _Still(NamedTuple):
    """A step of a policy that gave the same answers."""

    reward: float
    metric: float | None  # of the newest evaluation


class AlarmLog:
    """Logs an error each time it starts, and each warning once per process.

    Attributes:
        evaluated: metrics of the newest evaluation, under flat names.
    """

    def __init__(self) -> None:
        self.evaluated: Mapping[str, float] = {}
        self._sounding: set[tuple[str, str]] = set()  # metric and level of alarms already logged
        self._first: dict[str, float] = {}  # prefix of a policy -> entropy of its first step
        self._rewards: defaultdict[str, deque[dict[str, Counter[float]]]] = defaultdict(
            lambda: deque(maxlen=EQUAL_STEPS)
        )
        self._still: defaultdict[str, deque[_Still]] = defaultdict(
            lambda: deque(maxlen=STILL_STEPS)
        )

    def after_step(
        self, metrics: Metrics, batches: Sequence[Group], policies: Mapping[str, str]
    ) -> None:
        """Log the alarms of a step.

        Args:
            metrics: the metrics of the step.
            batches: what it was trained on.
            policies: name of each policy -> what the names of its metrics begin with.
        """
        arenas = {batch.arena: None for batch in batches if batch.arena}
        prefixes = [*policies.values()]
        if len(arenas) > 1:
            prefixes += [f"batches/{arena}/" for arena in arenas]
        found = [*alarms(metrics, prefixes), *self._equal_rewards(batches)]
        for policy, prefix in policies.items():
            own = [s for batch in batches for s in batch.samples if s.policy == policy]
            found += self._standstill(prefix, own, metrics)
        for alarm in found:
            if (alarm.metric, alarm.level) not in self._sounding:
                level = logging.ERROR if alarm.level == "error" else logging.WARNING
                logger.log(level, "step %d: %s", metrics["step"], alarm.text)
        warned = {(metric, level) for metric, level in self._sounding if level == "warning"}
        self._sounding = warned | {(alarm.metric, alarm.level) for alarm in found}

    def _equal_rewards(self, batches: Sequence[Group]) -> list[Alarm]:
        """An alarm for each arena in which every role has earned the same in many steps."""
        found: list[Alarm] = []
        for arena in {batch.arena: None for batch in batches}:
            seen = _rewards([batch for batch in batches if batch.arena == arena])
            newest = self._rewards[arena]
            if seen:
                newest.append(seen)
            roles = {
                role: sum((each.get(role, Counter()) for each in newest), Counter[float]())
                for role in seen
            }
            equal = all(len(rewards) == 1 for rewards in roles.values())
            if len(newest) < EQUAL_STEPS or not seen or not equal or self._solved(arena):
                continue
            where = f" in {arena}" if arena else ""
            listed = ", ".join(
                f"{role} {value + 0.0:g}" for role, got in roles.items() for value in got
            )
            text = (
                f"all rewards of the last {EQUAL_STEPS} steps were equal{where} ({listed}), so "
                "nothing can be learned from them; see with `legos watch` what is answered, and "
                f"reward partial success or change the tasks, unless this is the best ({PAGE})"
            )
            found.append(Alarm(level="warning", metric=f"equal rewards {arena}", text=text))
        return found

    def _standstill(self, prefix: str, samples: Sequence[Sample], metrics: Metrics) -> list[Alarm]:
        """An alarm if a policy has given the same answers in many steps without a better metric."""
        entropy, share = metrics.get(f"{prefix}entropy"), _same_share(samples)
        if entropy is None or share is None:
            return []
        first = self._first.setdefault(prefix, entropy)
        name, exact = self._exact()
        newest = self._still[prefix]
        newest.append(_Still(metrics.get("reward_mean") or 0.0, exact))
        if share < SAME:
            newest.clear()
        if len(newest) < STILL_STEPS or self._solved(""):
            return []
        half = STILL_STEPS // 2
        before, after = (
            fmean(each.reward for each in part) for part in ([*newest][:half], [*newest][half:])
        )
        values = [each.metric for each in newest if each.metric is not None]
        if abs(after - before) > FLAT or (values and abs(values[-1] - values[0]) > FLAT):
            return []
        shown = f" and {name} {exact:.3g}" if exact is not None else ""
        text = (
            f"the policy stands still: for {STILL_STEPS} steps it has given the same answer to the "
            f"same prompt ({share:.0%}, entropy {entropy:.3f} after {first:.3f} at first), at "
            f"reward {after:+.3f}{shown}; raise entropy_coef or the temperature, or lower "
            f"learning_rate, and start again, unless it plays as well as can be ({PAGE})"
        )
        return [Alarm(level="warning", metric=f"{prefix}standstill", text=text)]

    def _exact(self) -> tuple[str, float | None]:
        """The exact metric of the newest evaluation, if there is one."""
        for name, value in self.evaluated.items():
            if name.endswith(EXACT):
                return name.rpartition("/")[2].replace("_", " "), value
        return "", None

    def _solved(self, arena: str) -> bool:
        """Whether the newest evaluation shows best play in an arena, or in all of them."""
        places = {n.rpartition("/")[0] for n in self.evaluated if n.endswith(EXACT)}
        own = places & {"eval", f"eval/{arena}"} if arena else places
        return bool(own) and all(map(self._best_play, own))

    def _best_play(self, place: str) -> bool:
        metrics = self.evaluated
        best = metrics.get(f"{place}/optimal_joint_value")
        return (
            metrics.get(f"{place}/exploitability", 1.0) <= FLAT
            or metrics.get(f"{place}/optimal_move_rate", 0.0) >= 1.0 - FLAT
            or (best is not None and metrics[f"{place}/joint_value"] >= best - FLAT)
        )


def _rewards(batches: Sequence[Group]) -> dict[str, Counter[float]]:
    """Each trained role -> the rewards of its plays that ended, with their counts."""
    found: defaultdict[str, Counter[float]] = defaultdict(Counter)
    for episode in with_children(episode for batch in batches for episode in batch.episodes):
        if episode.error is None and not episode.void:
            for rollout in episode.rollouts:
                if rollout.policy is not None and rollout.role in episode.rewards:
                    reward = episode.rewards[rollout.role] + rollout.turn_rewards
                    found[rollout.role][round(reward, 9)] += 1
    return found


def _same_share(samples: Sequence[Sample]) -> float | None:
    """Share of answers that equal the most frequent one to their prompt; None: no prompt twice."""
    answers: defaultdict[tuple[int, ...], Counter[tuple[int, ...]]] = defaultdict(Counter)
    for sample in samples:
        for start, end in islice(_answers(sample.positions), TURNS):
            answers[sample.token_ids[:start]][sample.token_ids[start:end]] += 1
    several = [same for same in answers.values() if same.total() > 1]
    total = sum(same.total() for same in several)
    return sum(max(same.values()) for same in several) / total if total else None


def _answers(positions: Sequence[int]) -> Iterator[tuple[int, int]]:
    """First position of each answer, and the one after its end: the runs without a gap."""
    starts = [p for p, before in zip(positions, (-1, *positions), strict=False) if p != before + 1]
    ends = [p for p, after in zip(positions, (*positions[1:], -1), strict=True) if after != p + 1]
    yield from zip(starts, (end + 1 for end in ends), strict=True)
