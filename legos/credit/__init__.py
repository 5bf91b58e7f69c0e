"""Credit rules: rewards of plays to one advantage per turn."""

from legos.credit.group import GRPOCredit, RLOOCredit
from legos.credit.role import RAECredit

__all__ = ["GRPOCredit", "RAECredit", "RLOOCredit"]
