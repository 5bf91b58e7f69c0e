"""Tiny Hanabi: two seats that want the same, and a safe way to play that is not the best."""

from collections.abc import Mapping, Sequence
from itertools import product

from legos import Game

__all__ = ["TinyHanabi"]

CARDS, MOVES = "12", "abc"
PAYOFFS: Mapping[str, Sequence[Sequence[int]]] = {  # cards -> first move -> second move -> payoff
    "11": ((10, 0, 0), (4, 8, 4), (10, 0, 0)),
    "12": ((0, 0, 10), (4, 8, 4), (0, 0, 10)),
    "21": ((0, 0, 10), (4, 8, 4), (0, 0, 0)),
    "22": ((10, 0, 0), (4, 8, 4), (10, 0, 0)),
}


class TinyHanabi(Game):
    """Two seats with one hidden card each make one move each and share the payoff, 0 to 10.

    A move is ``a``, ``b`` or ``c``, and the second seat sees that of the first. If both always say
    ``b``, they get 8 whatever the cards. To get 10, the first seat must say ``a`` with one card and
    ``c`` with the other, and the second must know which is which: until it does, the first does
    better with ``b``. So most learners stay at 8.

    Credit compares each seat with itself in the plays of the same deal. The number that shows
    learning is the mean payoff, ``joint_value``: 3.72 at random, 10 at the optimum, and anything up
    to 8 may be the trap.

    A state is (cards, moves): ``("12", "a")`` where the first seat has card 1 and said ``a``.

    Source: J. Foerster et al., Bayesian action decoder, arXiv:1811.01458.
    """

    roles = ("first", "second")
    rules = (
        "Tiny Hanabi: both partners get a card, 1 or 2, which the other does not see. The first "
        "says a, b or c; the second hears it and says a, b or c. Both get the same points. If the "
        "first says b: 8 if the second says b too, else 4. If it says a or c: 10 if the second "
        "says a with equal cards, or c with different ones (but with the first's c, not if the "
        "first has 2 and the second 1), else 0. The position shows your card and what your partner "
        "has said, '-' for nothing yet."
    )
    utility = "identical"
    # Rewards go up to 10. With less entropy at first, both seats settle on ``b`` within 20 steps.
    recommended: Mapping[str, object] = {
        "loop.steps": 500,
        "loop.evaluate_every": 25,
        "training.entropy_coef": 3.0,
        "training.entropy_coef_end": 0.3,
        "training.learning_rate_end_fraction": 0.5,
    }

    def starts(self) -> Sequence[tuple[tuple[str, str], float]]:
        """The four deals, equally often."""
        return [((first + second, ""), 1 / 4) for first, second in product(CARDS, repeat=2)]

    def turn(self, state: tuple[str, str]) -> str | None:
        """Each seat moves once."""
        moves = len(state[1])
        return self.roles[moves] if moves < len(self.roles) else None

    def view(self, state: tuple[str, str], role: str) -> str:
        """The role's own card and the first seat's move, ``-`` before it."""
        cards, moves = state
        return f"Hanabi: card {cards[self.roles.index(role)]}, partner {moves or '-'}."

    def legal(self, state: tuple[str, str], role: str) -> Sequence[str]:
        """Any of three moves."""
        return tuple(MOVES)

    def play(self, state: tuple[str, str], move: str) -> tuple[str, str]:
        """Add the move."""
        cards, moves = state
        return cards, moves + move

    def payoff(self, state: tuple[str, str]) -> Mapping[str, float]:
        """The same for both seats."""
        cards, (first, second) = state
        shared = float(PAYOFFS[cards][MOVES.index(first)][MOVES.index(second)])
        return dict.fromkeys(self.roles, shared)

    def reference(self) -> Mapping[str, float]:
        """Exact payoffs."""
        return {"optimal_joint_value": 10.0, "safe_value": 8.0, "uniform_value": 134 / 36}
