"""Which plays the table shows, and each of them as JSON values."""

from typing import Any, Literal

from pydantic import BaseModel, Field

from legos.run.index.plays import PlayIndex
from legos.run.index.rows import IndexedPlay

_ORDERS = {  # what the table is sorted by -> the order with the largest first, and the other one
    "number": ("newest", "oldest"),
    "reward": ("best", "worst"),
    "tokens": ("longest", "shortest"),
    "turns": ("most turns", "fewest turns"),
}


class PlayQuery(BaseModel, extra="forbid"):
    """Which plays of a run are looked for, in which order, and which part of them is shown.

    None or an empty text: any.
    """

    run: str
    text: str = ""  # words that questions, answers, notes or errors contain, all of them
    arena: str = ""
    task: str = ""
    role: str = ""  # whose reward is meant
    seat: str = ""  # who sat in one of the seats
    kind: Literal["", "training", "evaluation"] = ""
    failed: bool = False  # only those that failed or were void
    reward_min: float | None = None
    reward_max: float | None = None
    step_min: int | None = Field(None, gt=-(1 << 62), lt=1 << 62)
    step_max: int | None = Field(None, gt=-(1 << 62), lt=1 << 62)
    sort: Literal["number", "reward", "tokens", "turns"] = "number"
    descending: bool = True
    offset: int = Field(0, ge=0)
    limit: int = Field(50, ge=1, le=200)

    def wanted(self) -> dict[str, Any]:
        """The arguments of ``PlayIndex.search``."""
        exact = ("arena", "task", "role", "seat")
        reward, step = (self.reward_min, self.reward_max), (self.step_min, self.step_max)
        return {
            **{name: getattr(self, name) or None for name in exact},
            "text": self.text.split(),
            "evaluation": self.kind == "evaluation" if self.kind else None,
            "failure": True if self.failed else None,
            "reward": None if reward == (None, None) else reward,
            "step": step,
            "order": _ORDERS[self.sort][not self.descending],
        }


def row_values(play: IndexedPlay) -> dict[str, Any]:
    """A play as a row of the table."""
    seats = {s.role: s for s in (*play.seats, *reversed(play.seats))}  # a play's own, not spawned
    return {
        **{name: value for name, value in play._asdict().items() if name != "seats"},
        "rewards": {r: seat.reward for r, seat in seats.items() if seat.reward is not None},
        "advantages": {role: seat.advantage for role, seat in seats.items()},
        "seats": {role: seat.seat for role, seat in seats.items()},
    }


def group_of(index: PlayIndex, number: int, *, most: int) -> list[IndexedPlay]:
    """The plays that are compared with a play, itself included."""
    for play in index.known([number]):
        names = ("arena", "task", "seed", "step", "evaluation")
        same: dict[str, Any] = {name: getattr(play, name) for name in names}
        return list(index.search(**same, order="oldest", page=slice(most)).plays)
    return []


def same_task(index: PlayIndex, number: int, *, most: int) -> list[IndexedPlay]:
    """A play of the same task at each other step, or at some of them that lie apart."""
    for play in index.known([number]):
        numbers = index.first_of_steps(play.arena, play.task)
        found = index.known(numbers[:: -(-len(numbers) // most) or 1])
        here = play.step, play.evaluation
        return [other for other in found if (other.step, other.evaluation) != here]
    return []
