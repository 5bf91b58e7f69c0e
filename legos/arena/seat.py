"""A seat: one role in one play, with someone in it."""

from dataclasses import dataclass, field

from legos.data.message import Sampling
from legos.data.names import POLICY, adapter_name
from legos.protocols import Client

__all__ = ["Seat"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """Who answers for a role; pinned for the whole episode and recorded in its rollout."""

    role: str
    client: Client
    name: str = POLICY  # the policy being trained, an older adapter, a bot, an outside endpoint
    adapter: str = POLICY  # which of the client's adapters speaks; NAME@VERSION pins a version
    trainable: bool = True  # False: its turns are recorded and never trained on
    sampling: Sampling = field(default_factory=Sampling)  # what an ask does not say otherwise

    @property
    def policy(self) -> str | None:
        """Name of the trained adapter that its tokens belong to; None: they are not trained on."""
        return adapter_name(self.adapter) if self.trainable else None
