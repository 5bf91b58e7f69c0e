"""Same-view credit: compare turns with the same prompt, across all plays."""

from collections.abc import Hashable

from legos.credit.returns import part_of
from legos.credit.turns import TurnComparison
from legos.records.episode import Episode, Rollout


def SameViewCredit(*, discount: float = 1.0) -> TurnComparison:  # noqa: N802 - see TurnCredit
    """Compare turns of one arena and role whose prompt tokens are equal, across tasks and plays.

    What the prompt does not show (other seats' cards, future chance) is averaged over, as a value
    function of that view would do. In small games nearly every view repeats; if no view repeats,
    every turn is a singleton with advantage 0.

    Args:
        discount: discount factor per turn.

    Source: the step-level groups of GiGPO, arXiv:2505.10978, section 4.2, alone.
    """

    def key(episode: Episode, rollout: Rollout, turn: int) -> Hashable:
        return episode.arena, part_of(episode, rollout), rollout.turns[turn].completion.prompt_ids

    return TurnComparison(key, discount=discount, needs_step=True)
