"""All credit rules by their configured names; a new rule is one file and one line here."""

from collections.abc import Callable, Mapping
from typing import Literal, get_args

from legos.credit.gae import GAECredit
from legos.credit.group import GRPOCredit, RLOOCredit
from legos.credit.hierarchical import HierarchicalCredit
from legos.credit.joint import JointCredit
from legos.credit.maxrl import MaxRLCredit
from legos.credit.role import RAECredit
from legos.credit.turns import TurnCredit
from legos.credit.views import SameViewCredit
from legos.credit.whitened import ReinforcePPCredit
from legos.errors import ConfigError, did_you_mean
from legos.protocols import CreditAssigner

__all__ = ["DISCOUNTED", "WITHOUT_GROUPS", "CreditName", "make_credit"]

CreditName = Literal[
    "grpo",
    "grpo_std",
    "rloo",
    "rae",
    "reinforce_pp",
    "reinforce_pp_baseline",
    "maxrl",
    "hierarchical",
    "joint",
    "turn",
    "same_view",
    "gae",
]
WITHOUT_GROUPS: frozenset[CreditName] = frozenset({"rae", "reinforce_pp", "same_view", "gae"})
"""Rules that make sense where every task is played once."""


_PLAIN: Mapping[str, Callable[[], CreditAssigner]] = {
    "grpo": lambda: GRPOCredit(deviation=False),
    "grpo_std": GRPOCredit,
    "rloo": RLOOCredit,
    "rae": RAECredit,
    "maxrl": MaxRLCredit,
    "hierarchical": HierarchicalCredit,
    "joint": JointCredit,
}
DISCOUNTED: Mapping[str, Callable[[float], CreditAssigner]] = {
    "reinforce_pp": lambda discount: ReinforcePPCredit(discount=discount),
    "reinforce_pp_baseline": lambda discount: ReinforcePPCredit(baseline=True, discount=discount),
    "turn": lambda discount: TurnCredit(discount=discount),
    "same_view": lambda discount: SameViewCredit(discount=discount),
    "gae": lambda discount: GAECredit(discount=discount),
}
"""Rules that look at each turn's own return, which a discount may bend."""


def make_credit(name: str, *, discount: float = 1.0) -> CreditAssigner:
    """Make a credit rule.

    Args:
        name: one of ``CreditName``.
        discount: discount factor per turn, for rules that credit single turns.

    Raises:
        ConfigError: there is no such rule, or it does not support a discount.
    """
    if name in DISCOUNTED:
        return DISCOUNTED[name](discount)
    if name not in _PLAIN:
        hint = did_you_mean(name, get_args(CreditName))
        raise ConfigError(f"there is no credit rule {name!r}{hint}")
    if discount != 1.0:
        raise ConfigError(
            f"discount is {discount} but credit {name!r} gives all turns of a play the same "
            f"advantage; use one of {', '.join(DISCOUNTED)}, or discount 1"
        )
    return _PLAIN[name]()
