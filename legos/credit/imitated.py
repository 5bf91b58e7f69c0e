"""The credit of imitation: what is said is right, whatever it earns."""

from collections.abc import Sequence

from legos.credit.returns import Advantages, trained
from legos.protocols import CreditAssigner
from legos.records.episode import Episode


class ImitationCredit(CreditAssigner):
    """A = 1 for every turn, so that the policy gradient is that of the log-likelihood."""

    def assign(self, episodes: Sequence[Episode]) -> list[Advantages]:
        """One mapping per episode: trained role -> one advantage per turn."""
        return [{r.role: [1.0] * len(r.turns) for r in trained(episode)} for episode in episodes]
