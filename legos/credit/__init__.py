"""Credit rules: they turn the rewards of plays into one advantage per turn."""

from legos.credit.gae import GAECredit
from legos.credit.group import GRPOCredit, RLOOCredit
from legos.credit.hierarchical import HierarchicalCredit
from legos.credit.joint import JointCredit
from legos.credit.maxrl import MaxRLCredit
from legos.credit.overlong import OverlongPenalty
from legos.credit.registry import make_credit
from legos.credit.role import RAECredit
from legos.credit.turns import TurnCredit
from legos.credit.views import SameViewCredit
from legos.credit.whitened import ReinforcePPCredit

__all__ = [
    "GAECredit",
    "GRPOCredit",
    "HierarchicalCredit",
    "JointCredit",
    "MaxRLCredit",
    "OverlongPenalty",
    "RAECredit",
    "RLOOCredit",
    "ReinforcePPCredit",
    "SameViewCredit",
    "TurnCredit",
    "make_credit",
]
