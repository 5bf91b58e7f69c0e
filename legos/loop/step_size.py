"""The share of the learning rate that the updates of a policy use.

A step that is left out because too many of its tokens are clipped says that the updates since its
tokens were sampled went too far. Which rate is too high depends on the arena: one-token moves from
a dozen positions move together, and need a smaller one than answers of many tokens. So such a step
halves the share, and updates that stay well inside the trust region raise it again.

Source: the learning rate that follows the KL divergence of an update, Rudin et al., Learning to
Walk in Minutes Using Massively Parallel Deep Reinforcement Learning, arXiv:2109.11978, section 3;
here it follows the share of clipped tokens, which decides about the step already.
"""

from collections.abc import Mapping
from typing import Any

__all__ = ["StepSize"]

CUT = 0.5  # factor of the share after a step that was left out
GROWTH = 1.1  # and after an update that clipped few tokens
FEW = 0.5  # of the share of clipped tokens at which a step is left out


class StepSize:
    """The share for one policy.

    Attributes:
        share: factor of the learning rate, above 0, at most 1.
    """

    def __init__(self) -> None:
        self.share = 1.0
        self._cut_at = -1  # version of the policy at the last cut

    def left_out(self, version: int) -> None:
        """A step was left out: cut the share, once for all steps of one version of the policy.

        The samples of several steps may be older than the update that went too far.
        """
        if version != self._cut_at:
            self.share, self._cut_at = CUT * self.share, version

    def applied(self, clip_fraction: float, threshold: float) -> None:
        """An update was applied.

        Args:
            clip_fraction: share of clipped tokens of its step.
            threshold: a step with a larger share is left out.
        """
        if clip_fraction < FEW * threshold:
            self.share = min(1.0, GROWTH * self.share)

    def state(self) -> Mapping[str, Any]:
        """What a resumed run needs, as JSON values."""
        return {"share": self.share, "cut_at": self._cut_at}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take back what ``state`` returned."""
        self.share, self._cut_at = state["share"], state["cut_at"]
