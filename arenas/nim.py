"""Nim with one pile: the smallest game with a known optimum, and the first that the kit learns."""

from collections.abc import Mapping, Sequence

from legos import Game

__all__ = ["Nim"]


class Nim(Game):
    """Take 1, 2 or 3 stones in turn; the one who takes the last stone wins +1, the other gets -1.

    The pile holds 1 to ``largest`` stones at the start, each size equally often: from one fixed
    size the same seat would always win, and neither would learn.

    A move is the number of stones: ``1``, ``2`` or ``3``. Optimal play leaves a multiple of 4. A
    player who is left one has lost against it, and every move is as good as any other there.

    Credit compares each seat with itself in the plays that begin with the same pile. The number
    that shows learning is ``optimal_move_rate``, over the positions where moves differ: 0.345 at
    random, 1 at the optimum; a win rate against random does not show what is left to learn.

    A state is (stones left, seat to move).
    """

    roles = ("first", "second")
    rules = (
        "Nim: there is one pile of stones. Two players in turn take 1, 2 or 3 of them. Whoever "
        "takes the last stone wins. A move is the number of stones to take."
    )
    utility = "zero_sum"
    # Much entropy at first, so that large piles are still explored once small ones are solved.
    recommended: Mapping[str, object] = {
        "loop.steps": 500,
        "loop.evaluate_every": 25,
        "training.entropy_coef": 0.4,
        "training.entropy_coef_end": 0.1,
        "training.min_samples_per_step": 256,
    }

    def __init__(self, *, largest: int = 21) -> None:
        """Set the size of the largest pile.

        Raises:
            ValueError: no stones, or more than 100,000.
        """
        if not 1 <= largest <= 100_000:
            raise ValueError(f"largest is {largest}; expected at least 1 stone, at most 100,000")
        self.largest = largest

    def starts(self) -> Sequence[tuple[tuple[int, int], float]]:
        """Every pile size, equally often, the first seat to move."""
        return [((stones, 0), 1 / self.largest) for stones in range(1, self.largest + 1)]

    def turn(self, state: tuple[int, int]) -> str | None:
        """The seats alternate until the pile is empty."""
        stones, seat = state
        return self.roles[seat] if stones else None

    def view(self, state: tuple[int, int], role: str) -> str:
        """The pile; both seats see the same."""
        return f"Nim: {state[0]} left, last one wins."

    def legal(self, state: tuple[int, int], role: str) -> Sequence[str]:
        """Up to three stones, as far as there are any."""
        return ("1", "2", "3")[: state[0]]

    def play(self, state: tuple[int, int], move: str) -> tuple[int, int]:
        """Take the stones and pass the turn."""
        stones, seat = state
        return stones - int(move), 1 - seat

    def payoff(self, state: tuple[int, int]) -> Mapping[str, float]:
        """The seat that would have to move now did not take the last stone: it has lost."""
        loser = state[1]
        return {self.roles[loser]: -1.0, self.roles[1 - loser]: 1.0}

    def reference(self) -> Mapping[str, float]:
        """Exact numbers of the game with 21 stones; none for another size."""
        if self.largest != 21:
            return {}
        return {
            "value": 11 / 21,  # of the first seat when both play optimally
            "optimal_vs_random_win": 0.912998,
            "uniform_optimal_move_rate": 10 / 29,
            "uniform_exploitability": 0.865406,
        }
