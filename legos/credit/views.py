"""Same-view credit: turns that saw the same prompt, in whatever play, are compared."""

from collections.abc import Hashable

from legos.credit.turns import TurnComparison
from legos.data.episode import Episode, Rollout

__all__ = ["SameViewCredit"]


def SameViewCredit(*, discount: float = 1.0) -> TurnComparison:  # noqa: N802 - see TurnCredit
    """Compare turns of one arena and role whose prompt tokens are equal, across tasks and plays.

    What the prompt does not show (other seats' cards, what is still to come) is averaged over,
    which is what a value of that view would do. In small games nearly every view repeats; where
    none does, every turn is a singleton and learns nothing.

    Args:
        discount: what a reward one turn later is worth.

    Source: the step-level groups of GiGPO, arXiv:2505.10978, section 4.2, alone.
    """

    def key(episode: Episode, rollout: Rollout, turn: int) -> Hashable:
        return episode.arena, rollout.role, rollout.turns[turn].completion.prompt_ids

    return TurnComparison(key, discount=discount, needs_step=True)
