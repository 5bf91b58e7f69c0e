"""Compare two answers through a judge, in both orders, and measure how far it can be trusted."""

import re
from collections import defaultdict
from collections.abc import Sequence
from statistics import fmean

from msgspec import Struct

from legos.arena.answer import Reply

_CHOICE = re.compile(r"\[(A|B|tie)\]", re.IGNORECASE)
_SCORES = {"A": 1.0, "B": 0.0, "TIE": 0.5}


class Verdict(Struct, frozen=True, kw_only=True):
    """The result of comparing one answer with another."""

    score: float  # 1: the first answer is better, 0: the other, 0.5: a tie; mean over the orders
    agreed: bool | None  # whether both orders gave the same; None: one order, or one is unclear
    replies: tuple[Reply, ...]  # the judge's replies, the given order first


def comparison(question: str, first: str, second: str) -> str:
    """The prompt of a comparison."""
    return (
        f"{question}\n\nAnswer A:\n{first}\n\nAnswer B:\n{second}\n\n"
        "Which answer is better? End with [A], [B] or [tie]."
    )


def score_of(answer: str) -> float | None:
    """The score of the answer shown first: the last choice in brackets; None: there is none."""
    found = _CHOICE.findall(answer)
    choice = found[-1] if found else answer.strip()
    return _SCORES.get(choice.upper())


def verdict_of(replies: Sequence[Reply]) -> tuple[Verdict, list[float | None]]:
    """The verdict of a judge's replies; an unclear reply counts as a tie.

    Returns:
        The verdict, and for each order the score of the answer shown first, or None if unclear.
    """
    shown_first = [score_of(reply.answer) for reply in replies]
    scores = [
        score if score is None or number == 0 else 1.0 - score
        for number, score in enumerate(shown_first)
    ]
    clear = len(scores) == 2 and None not in scores
    return Verdict(
        score=fmean(0.5 if score is None else score for score in scores),
        agreed=scores[0] == scores[1] if clear else None,
        replies=tuple(replies),
    ), shown_first


class JudgeTally:
    """Counts the verdicts of one play."""

    def __init__(self) -> None:
        self._values: defaultdict[str, list[float]] = defaultdict(list)

    def add(
        self, verdict: Verdict, shown_first: Sequence[float | None], truth: float | None
    ) -> dict[str, float]:
        """Count a verdict.

        Args:
            verdict: the verdict.
            shown_first: for each order the score of the answer shown first; None: unclear.
            truth: the known score; None: it is not known.

        Returns:
            The play's means so far: ``judge_first``, the score of the answer shown first (0.5: the
            order has no influence), ``judge_agreement`` of the two orders, ``judge_right``,
            the share of verdicts nearer to the truth than to its opposite, and ``judge_unclear``.
        """
        values = self._values
        values["judge_first"] += [score for score in shown_first if score is not None]
        if verdict.agreed is not None:
            values["judge_agreement"].append(verdict.agreed)
        values["judge_unclear"] += [score is None for score in shown_first]
        if truth is not None:
            values["judge_right"].append(abs(verdict.score - truth) < 0.5)
        return {name: fmean(found) for name, found in values.items() if found}
