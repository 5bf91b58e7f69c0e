"""Means over plays, which both training and evaluation report."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

from legos.records.episode import Episode
from legos.records.group import Group

_COUNTS = """
    episodes failed timed_out endpoint_failed void turns token_breaks forfeit illegal
    judge_first judge_agreement judge_right judge_unclear
    endpoint_refused endpoint_replaced generated_tokens
"""
RESERVED = frozenset(_COUNTS.split())
"""Names of numbers that are counted for every arena; an arena's own have other names."""

_COUNTED = ("forfeit", "endpoint_refused", "endpoint_replaced")  # a play without it counts as 0
_EVERY_PLAY = "arena/illegal"  # a mean over all plays that ended, which every batch reports
_PART = "reward_part/"  # then the role and the name of the part


def _metric_means(played: Sequence[Episode]) -> tuple[dict[str, float], dict[str, float]]:
    """Mean of each of the plays' own metrics, and the number of plays that it is over.

    These are the plays that logged it; of what is counted for every play, all of them.
    """
    sums: defaultdict[str, float] = defaultdict(float)
    counts: Counter[str] = Counter()
    for episode in played:
        for name, value in episode.metrics.items():
            sums[name] += value
            counts[name] += 1
    weights = {n: float(len(played) if n in _COUNTED else count) for n, count in counts.items()}
    return {name: total / weights[name] for name, total in sums.items()}, weights


def _seat_returns(played: Sequence[Episode]) -> Iterator[tuple[Episode, str, float, bool]]:
    """The return of each seat that counts in a mean: its play, role, return, and if it is trained.

    A role that no play of its arena asked counts only where it got a reward, as the loser of a game
    who never moved does, and where no spawned play asked it, whose own return counts.
    """
    asked = {(e.arena, r.role) for e in played for r in e.rollouts if r.turns}
    for episode in played:
        below = {r.role for e in with_children(episode.children) for r in e.rollouts if r.turns}
        trained = {r.role for r in episode.rollouts if r.policy is not None}
        for role, found in episode.returns.items():
            if (episode.arena, role) in asked or (found and role not in below):
                yield episode, role, found, role in trained


def trained_returns(played: Sequence[Episode]) -> list[float]:
    """The returns of trained seats that count in the mean reward of plays that ended."""
    return [found for _, _, found, trained in _seat_returns(played) if trained]


def step_metrics(
    episodes: Sequence[Episode], breaks: int
) -> tuple[dict[str, float], dict[str, float]]:
    """The metrics of plays, under flat names.

    Args:
        episodes: all plays, spawned ones included, also those that did not end.
        breaks: number of prompts that did not extend the earlier tokens.

    Returns:
        The metrics, and for each metric that is a mean the number of values averaged.
    """
    played = [episode for episode in episodes if not episode.error and not episode.void]
    trained: list[float] = []
    by_role: defaultdict[str, list[float]] = defaultdict(list)
    parts: defaultdict[tuple[str, str], float] = defaultdict(float)
    for episode, role, found, is_trained in _seat_returns(played):
        trained += [found] if is_trained else []
        by_role[role].append(found)
        for part, value in episode.parts.get(role, {}).items():
            parts[role, part] += value
    metrics = {f"reward/{role}": fmean(found) for role, found in by_role.items()}
    weights = {f"reward/{role}": float(len(found)) for role, found in by_role.items()}
    if trained:
        metrics["reward_mean"] = fmean(trained)
        metrics["reward_square_mean"] = fmean([reward**2 for reward in trained])
        weights |= dict.fromkeys(("reward_mean", "reward_square_mean"), float(len(trained)))
    for (role, part), total in parts.items():  # a play of the role without the part counts as 0
        number = weights[f"{_PART}{role}/{part}"] = float(len(by_role[role]))
        metrics[f"{_PART}{role}/{part}"] = total / number
    own, counts = _metric_means(played)
    metrics |= {f"arena/{name}": mean for name, mean in own.items()}
    weights |= {f"arena/{name}": count for name, count in counts.items()}
    illegal = sum(any(t.legal is False for r in e.rollouts for t in r.turns) for e in played)
    metrics[_EVERY_PLAY] = illegal / max(len(played), 1)
    weights[_EVERY_PLAY] = float(len(played))
    return metrics | {
        "arena/episodes": float(len(episodes)),
        **{f"arena/{name}": float(count) for name, count in _unfinished(episodes).items()},
        "arena/turns": float(sum(len(r.turns) for e in played for r in e.rollouts)),
        "arena/token_breaks": float(breaks),
    }, weights


def merged_metrics(batches: Sequence[Group]) -> dict[str, float]:
    """Merge the metrics of batches: means are weighted by their number of values, counts added.

    A reward part that no play of a batch has counts as 0 for its plays, as does a count.
    """
    if len(batches) == 1:
        return dict(batches[0].metrics)
    merged: dict[str, float] = {}
    for name in sorted({name for batch in batches for name in batch.metrics}):
        values = [batch.metrics.get(name, 0.0) for batch in batches]
        if all(name not in batch.weights for batch in batches):
            merged[name] = sum(values)
        else:
            other = _over_all_plays(name)
            weights = [b.weights.get(name, b.weights.get(other, 0.0)) for b in batches]
            total = sum(w * value for w, value in zip(weights, values, strict=True))
            merged[name] = total / (sum(weights) or 1.0)
    return merged


def _over_all_plays(name: str) -> str:
    """A metric that has the number of plays that a mean is over, also where no play has it."""
    if name.removeprefix("arena/") in _COUNTED:
        return _EVERY_PLAY
    if name.startswith(_PART):
        return f"reward/{name.removeprefix(_PART).rpartition('/')[0]}"
    return name


def evaluation_metrics(episodes: Sequence[Episode]) -> dict[str, Any]:
    """Evaluation metrics of a policy from plays.

    Args:
        episodes: all plays, spawned ones included, also those that did not end.

    Returns:
        Mean returns, of trained seats (``reward_mean``) and by role (``reward``); named reward
        parts before their weights (``reward_part``); the arena's own numbers (``metric``); shares
        of plays that a role forfeited and of plays with an illegal answer; share of the trained
        seats' turns that the token limit cut short; counts of plays, of failed ones, of those that
        failed by their time limit or by an endpoint, and of void ones. None: there is nothing to
        take a mean of.
    """
    found, _ = step_metrics(episodes, 0)
    played = [episode for episode in episodes if not episode.error and not episode.void]
    rollouts = [rollout for episode in episodes for rollout in episode.rollouts]
    own, _ = _metric_means(played)
    forfeited = own.pop("forfeit", 0.0) if played else None
    cut = [r.was_cut(turn) for r in rollouts if r.policy for turn in r.turns]
    return {
        "reward_mean": found.get("reward_mean"),
        "reward": _below("reward/", found),
        "reward_part": _below(_PART, found),
        "metric": own,
        "forfeit_share": forfeited,
        "illegal_share": found[_EVERY_PLAY] if played else None,
        "truncation_share": fmean(cut) if cut else None,
        "plays": len(episodes),
        **_unfinished(episodes),
    }


def _below(prefix: str, metrics: Mapping[str, float]) -> dict[str, float]:
    return {n.removeprefix(prefix): m for n, m in metrics.items() if n.startswith(prefix)}


def _unfinished(episodes: Sequence[Episode]) -> dict[str, int]:
    """Number of plays that failed, in total and by kind of failure, and of void plays."""
    failures = Counter(episode.failure for episode in episodes)
    return {
        "failed": sum(1 for episode in episodes if episode.error),
        "timed_out": failures["timed_out"],
        "endpoint_failed": failures["endpoint"],
        "void": sum(1 for episode in episodes if episode.void),
    }


def with_children(episodes: Iterable[Episode]) -> Iterable[Episode]:
    """Each play, followed by those that it spawned."""
    for episode in episodes:
        yield episode
        yield from with_children(episode.children)
