"""Credit rules: they turn the rewards of plays into one advantage per turn.

A rule is one file in this folder and one line in ``RULES``.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from legos.credit.gae import GAECredit
from legos.credit.group import DrGRPOCredit, GRPOCredit, RLOOCredit
from legos.credit.hierarchical import HierarchicalCredit
from legos.credit.imitated import ImitationCredit
from legos.credit.joint import JointCredit
from legos.credit.maxrl import MaxRLCredit
from legos.credit.role import RAECredit
from legos.credit.turns import TurnCredit
from legos.credit.views import SameViewCredit
from legos.credit.whitened import ReinforcePPCredit
from legos.errors import ConfigError, did_you_mean
from legos.protocols import CreditAssigner

RULES: Mapping[str, Callable[..., CreditAssigner]] = {
    "dr_grpo": DrGRPOCredit,
    "grpo": GRPOCredit,
    "rloo": RLOOCredit,
    "rae": RAECredit,
    "reinforce_pp": ReinforcePPCredit,
    "reinforce_pp_baseline": partial(ReinforcePPCredit, baseline=True),
    "maxrl": MaxRLCredit,
    "hierarchical": HierarchicalCredit,
    "joint": JointCredit,
    "turn": TurnCredit,
    "same_view": SameViewCredit,
    "gae": GAECredit,
    "imitation": ImitationCredit,
}
"""Name in ``--play.credit`` -> makes the rule."""

WITHOUT_GROUPS = frozenset({"rae", "reinforce_pp", "same_view", "gae", "imitation"})
"""Rules that make sense where every task is played once."""


def make_credit(name: str, **options: Any) -> CreditAssigner:
    """Make a credit rule.

    Args:
        name: one of ``RULES``.
        options: arguments of the rule, such as ``discount`` of rules that credit single turns.

    Raises:
        ConfigError: there is no such rule, or it does not take an option.
    """
    if name not in RULES:
        raise ConfigError(f"there is no credit rule {name!r}{did_you_mean(name, RULES)}")
    try:
        return RULES[name](**options)
    except TypeError as error:
        raise ConfigError(f"credit {name!r} cannot be made: {error}") from error
