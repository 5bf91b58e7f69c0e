"""How hard the question of a proposer was, from the answers that it got."""

from collections.abc import Sequence
from statistics import fmean

from legos import Episode

__all__ = ["share_solved"]


def share_solved(answers: Sequence[Episode]) -> float:
    """Mean reward of the solver over the answers that ended; those that failed show nothing.

    Raises:
        RuntimeError: every answer failed.
    """
    ended = [answer.rewards["solver"] for answer in answers if not answer.error]
    if not ended:
        raise RuntimeError(f"every answer failed; the first:\n{answers[0].error}")
    return fmean(ended)
