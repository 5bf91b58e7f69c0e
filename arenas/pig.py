"""Pig: roll a die as often as you dare."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from legos import Game

__all__ = ["Pig"]


class State(NamedTuple):
    """The position before or after a roll; with nothing collected, the seat has yet to roll."""

    seat: int  # the seat whose turn it is
    points: tuple[int, int]  # of each seat, without the turn
    total: int = 0  # collected in this turn
    rolls: bool = True  # whether the die is thrown next


class Pig(Game):
    """Collect points by rolling a die, and hold before a 1 comes; the first to ``goal`` wins +1.

    A turn begins with a roll. Any number but 1 is added to the total of the turn, and the seat may
    roll again (``r``) or hold (``h``), which adds the total to its points. A 1 ends the turn with 1
    point instead of the total. A seat whose points and total reach the goal has won.

    In other rules a 1 scores nothing. Then a position could come back in the same play, and the
    game could not be evaluated exactly by reasoning back from its ends. The die has two faces, 1
    and 2: with six, it would be right to roll again at any total below 21, and in a game that is
    small enough to evaluate, always.

    Credit ``gae`` compares the value of a seat's next position with that of this one, because most
    of a play's result is luck. The number that shows learning is the share of wins against optimal
    play, averaged over the seats: 0.384 at random, 0.5 at the optimum.
    """

    roles = ("first", "second")
    utility = "zero_sum"
    # Most of a play's result is luck, so the value of the next position replaces what follows it.
    recommended: Mapping[str, object] = {
        "loop.steps": 300,
        "loop.evaluate_every": 20,
        "play.credit": "gae",
        "training.entropy_coef": 0.1,
        "training.entropy_coef_end": 0.01,
        "training.learning_rate_end_fraction": 0.2,
    }

    def __init__(self, *, goal: int = 10, faces: int = 2) -> None:
        """Set the points that win, and the die.

        Raises:
            ValueError: fewer than 2 points or faces, or more than 1000 faces.
        """
        if goal < 2:
            raise ValueError(f"goal is {goal}; expected at least 2 points")
        if not 2 <= faces <= 1000:
            raise ValueError(f"faces is {faces}; expected at least 2, at most 1000")
        self.goal, self.faces = goal, faces
        self.rules = (
            f"Pig: two players in turn collect points with a die that has the faces 1 to {faces}. "
            "'r' rolls again: any face but 1 is added to the total of your turn, and a 1 ends the "
            "turn with 1 point in place of the total. 'h' holds: it adds the total to your points "
            f"and ends the turn. Whoever first reaches {goal} points, with the total, wins. The "
            "position shows the total of the turn, your points and those of your rival."
        )

    def starts(self) -> Sequence[tuple[State, float]]:
        """The first seat rolls."""
        return [(State(0, (0, 0)), 1.0)]

    def chance(self, state: State) -> Sequence[tuple[State, float]]:
        """Throw the die."""
        if not state.rolls or self._winner(state) is not None:
            return ()
        thrown = [
            state._replace(total=state.total + face, rolls=False)
            for face in range(2, self.faces + 1)
        ]
        return [(after, 1 / self.faces) for after in (_pass_on(state, 1), *thrown)]

    def turn(self, state: State) -> str | None:
        """The seat that has rolled decides, until one has won."""
        return None if self._winner(state) is not None else self.roles[state.seat]

    def view(self, state: State, role: str) -> str:
        """All points; both seats see the same."""
        seat = self.roles.index(role)
        own, rival = state.points[seat], state.points[1 - seat]
        return f"Pig: turn {state.total}, you {own}, rival {rival}."

    def legal(self, state: State, role: str) -> Sequence[str]:
        """Roll or hold."""
        return ("r", "h")

    def play(self, state: State, move: str) -> State:
        """Throw the die next, or keep the total and pass the die on."""
        return state._replace(rolls=True) if move == "r" else _pass_on(state, state.total)

    def payoff(self, state: State) -> Mapping[str, float]:
        """+1 for the seat that has reached the goal, -1 for the other."""
        winner = self._winner(state)
        return {role: 1.0 if seat == winner else -1.0 for seat, role in enumerate(self.roles)}

    def reference(self) -> Mapping[str, float]:
        """Exact numbers of the game to 10 with two faces; none for another one."""
        if (self.goal, self.faces) != (10, 2):
            return {}
        return {
            "value": 0.140719,  # of the first seat when both play optimally
            "optimal_vs_random_win": 0.615820,
            "uniform_vs_optimal_win": 0.384180,
            "always_roll_vs_optimal_win": 0.361539,
            "hold_at_4_vs_optimal_win": 0.477642,
            "uniform_exploitability": 0.242710,
        }

    def _winner(self, state: State) -> int | None:
        """The seat that has reached the goal."""
        for seat, points in enumerate(state.points):
            if points + (state.total if seat == state.seat else 0) >= self.goal:
                return seat
        return None


def _pass_on(state: State, won: int) -> State:
    """The other seat's turn, after this one has won some points."""
    first, second = state.points
    points = (first + won, second) if state.seat == 0 else (first, second + won)
    return State(1 - state.seat, points)
