"""Count every generated token as trained, filtered or discarded, with the reason."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from legos.errors import TrainerError
from legos.losses.metrics import SKIPPED


class Ledger:
    """Counts tokens since the start of the run.

    generated = trained + filtered(reason) + discarded(reason) + queued, checked at every step.
    Filtered tokens were in valid samples that were not used (too old, a skipped step). Discarded
    tokens never became samples (a failed play, an endpoint without log-probabilities, a play
    interrupted by the end of the run, a play of an evaluation).

    Attributes:
        trained_by: trained tokens by policy; they add up to ``trained``.
    """

    def __init__(self) -> None:
        self.generated = 0
        self.trained_by: Counter[str] = Counter()
        self.filtered: Counter[str] = Counter()
        self.discarded: Counter[str] = Counter()

    @property
    def trained(self) -> int:
        """Tokens that were trained on."""
        return self.trained_by.total()

    def lose(self, reason: str, tokens: int) -> None:
        """Add tokens that were generated but reach no batch, and are counted nowhere else."""
        if tokens:
            self.generated += tokens
            self.discarded[reason] += tokens

    def check(self, *, queued: int) -> None:
        """Check that the counts balance.

        Raises:
            TrainerError: they do not; the message gives both sides of the equation.
        """
        spent = self.trained + self.filtered.total() + self.discarded.total() + queued
        if spent != self.generated:
            raise TrainerError(
                f"{self.generated} tokens were generated, but {self.trained} trained + "
                f"{dict(self.filtered)} filtered + {dict(self.discarded)} discarded + {queued} "
                f"queued make {spent}"
            )

    def check_applied(self) -> None:
        """Refuse to end as if all were well where most steps changed nothing.

        Raises:
            TrainerError: most tokens were in steps whose update was not applied.
        """
        skipped = sum(self.filtered[reason] for reason in SKIPPED)
        if skipped > self.trained:
            raise TrainerError(
                f"{skipped / (skipped + self.trained):.0%} of the tokens were in steps that were "
                "not applied, so the policy has hardly been trained: too many of their tokens were "
                "clipped (clip_fraction), or their loss was not finite; see docs/run/alarms.md, "
                "lower "
                "training.learning_rate or training.staleness_limit, or check that engine and "
                "trainer have the same model"
            )

    def metrics(self, *, queued: int) -> dict[str, int]:
        """Totals since the start of the run, under flat names."""
        metrics = {
            "tokens_generated": self.generated,
            "tokens_trained": self.trained,
            "tokens_filtered": self.filtered.total(),
            "tokens_discarded": self.discarded.total(),
            "tokens_queued": queued,
        }
        if len(self.trained_by) > 1:
            metrics |= {f"trained/{policy}_tokens": n for policy, n in self.trained_by.items()}
        metrics |= {f"filtered/{reason}_tokens": n for reason, n in self.filtered.items()}
        metrics |= {f"discarded/{reason}_tokens": n for reason, n in self.discarded.items()}
        return metrics

    def state(self) -> dict[str, Any]:
        """The counts for the checkpoint, as JSON values."""
        return {
            "generated": self.generated,
            "trained_by": dict(self.trained_by),
            "filtered": dict(self.filtered),
            "discarded": dict(self.discarded),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore what ``state`` returned."""
        self.generated = state["generated"]
        self.trained_by = Counter(state["trained_by"])
        self.filtered = Counter(state["filtered"])
        self.discarded = Counter(state["discarded"])
