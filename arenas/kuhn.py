"""Kuhn poker: the smallest game in which a player has to bluff."""

from collections.abc import Mapping, Sequence
from itertools import permutations

from legos import Game

__all__ = ["Kuhn"]

RANKS = "JQK"
ENDS = frozenset({"pp", "bp", "bb", "pbp", "pbb"})


class Kuhn(Game):
    """Three cards, one each, ante 1 chip, at most one bet of 1 chip; rewards are chips.

    A move is ``p`` (pass: check, or fold against a bet) or ``b`` (bet, or call a bet). After ``pp``
    the higher card wins 1; after ``bp`` the first seat wins 1 and after ``pbp`` the second does,
    whatever the cards; after ``bb`` and ``pbb`` the higher card wins 2.

    The game is worth -1/18 chips to the first seat. Its equilibria of the first seat are one line,
    0 <= alpha <= 1/3: bet a jack with alpha, a king with 3 alpha, never a queen; call with a queen
    with alpha + 1/3. The second seat calls with a queen and bluffs with a jack one time in three.

    Credit compares each seat with itself in the plays of the same deal. The number that shows
    learning is the exploitability, in chips a seat: 0.458 at random, 0 in equilibrium. Wins against
    a random player rise also in play that a best response beats.

    A state is (cards, bets): ``("QK", "pb")`` where the first seat holds a queen.

    Source: H. W. Kuhn, A simplified two-person poker, 1950.
    """

    roles = ("first", "second")
    rules = (
        "Kuhn poker: the cards are J, Q and K, from low to high. Both players put 1 chip in the "
        "pot and get one card, which the other does not see. 'p' passes: it checks, or folds "
        "against a bet. 'b' bets 1 more chip, or calls a bet. Whoever folds loses the pot; "
        "otherwise the higher card wins it. The position shows your card and the moves so far."
    )
    utility = "zero_sum"
    # Entropy and the pull towards a slow average keep the two seats from chasing each other.
    recommended: Mapping[str, object] = {
        "loop.steps": 800,
        "loop.evaluate_every": 40,
        "training.entropy_coef": 0.1,
        "training.entropy_coef_end": 0.1,
        "training.ema_kl_coef": 0.5,
        "training.ema_decay": 0.98,
        "training.kl_estimator": "exact",
        "training.learning_rate": 1e-3,
        "training.min_samples_per_step": 256,
    }

    def starts(self) -> Sequence[tuple[tuple[str, str], float]]:
        """The six deals, equally often."""
        return [((first + second, ""), 1 / 6) for first, second in permutations(RANKS, 2)]

    def turn(self, state: tuple[str, str]) -> str | None:
        """The seats alternate until the bets are settled."""
        bets = state[1]
        return None if bets in ENDS else self.roles[len(bets) % 2]

    def view(self, state: tuple[str, str], role: str) -> str:
        """The role's own card and the bets so far, ``-`` for none."""
        cards, bets = state
        return f"Kuhn: card {cards[self.roles.index(role)]}, bets {bets or '-'}."

    def legal(self, state: tuple[str, str], role: str) -> Sequence[str]:
        """Pass or bet."""
        return ("p", "b")

    def play(self, state: tuple[str, str], move: str) -> tuple[str, str]:
        """Add the move to the bets."""
        cards, bets = state
        return cards, bets + move

    def payoff(self, state: tuple[str, str]) -> Mapping[str, float]:
        """Chips won, in the unit of the ante."""
        cards, bets = state
        if bets in ("bp", "pbp"):
            first = 1.0 if bets == "bp" else -1.0
        else:
            pot = 1.0 if bets == "pp" else 2.0
            first = pot if RANKS.index(cards[0]) > RANKS.index(cards[1]) else -pot
        return {"first": first, "second": -first}

    def reference(self) -> Mapping[str, float]:
        """Exact numbers: chips for ``value``, chips a seat for exploitability."""
        return {
            "value": -1 / 18,  # of the first seat in equilibrium
            "uniform_value": 1 / 8,  # of the first seat when both play at random
            "uniform_exploitability": 11 / 24,
        }
