"""Leduc poker: two rounds of bets around one shared card."""

from collections.abc import Mapping, Sequence
from itertools import product

from legos import Game

__all__ = ["Leduc"]

RANKS = "JQK"
COPIES = 2  # cards of each rank
RAISE = (2, 4)  # chips of a raise in the first round and in the second
MAX_RAISES = 2  # in one round

State = tuple[str, str, str]


class Leduc(Game):
    """Two jacks, two queens, two kings; one card each, then a shared one; rewards are chips.

    Both seats ante 1 chip and get a card. The first seat begins each of two rounds of bets. A move
    is ``c`` (call a raise; without one, check), ``r`` (raise by 2 chips in the first round, by 4 in
    the second; at most twice in a round) or ``f`` (fold, after a raise). After the first round a
    shared card is turned up. Whoever holds a card of its rank wins, otherwise the higher card does;
    with equal cards nobody wins.

    Credit ``same_view`` compares the moves of a seat that had the same view, which averages over
    the hidden cards. The number that shows learning is the exploitability, in chips a seat: 2.37 at
    random, 0 in equilibrium, where the game is worth -0.0856 chips to the first seat.

    A state is (cards, shared card, bets): ``("QK", "J", "rc/c")`` where the first seat holds a
    queen, raised and was called, and has checked after a jack was turned up.

    Source: F. Southey et al., Bayes' bluff: opponent modelling in poker, 2005.
    """

    roles = ("first", "second")
    rules = (
        "Leduc poker: the cards are two J, two Q and two K, from low to high. Both players put 1 "
        "chip in the pot and get one card, which the other does not see. In two rounds of bets, "
        "'c' checks, or calls a raise; 'r' raises, by 2 chips in the first round and by 4 in the "
        "second, at most twice in a round; 'f' folds and loses the pot. After the first round a "
        "card is turned up on the board. A pair with the board wins the pot, else the higher card. "
        "The position shows your card, the board and the moves so far; '/' separates the rounds."
    )
    utility = "zero_sum"
    forfeit_reward = -13.0  # the largest loss
    # Entropy and KL are in proportion to the stakes. The exploitability falls only after some 240
    # steps, when the network tells cards apart.
    recommended: Mapping[str, object] = {
        "loop.steps": 400,
        "loop.evaluate_every": 20,
        "play.credit": "same_view",
        "play.restrict_choices": True,
        "training.entropy_coef": 0.3,
        "training.entropy_coef_end": 0.1,
        "training.ema_kl_coef": 1.0,
        "training.ema_decay": 0.98,
        "training.kl_estimator": "exact",
        "training.learning_rate_end_fraction": 0.2,
        "training.min_samples_per_step": 256,
        "training.staleness_limit": 0,
    }

    def starts(self) -> Sequence[tuple[State, float]]:
        """The deals; two cards of one rank are rarer than two given different ranks."""
        return [
            ((first + second, "", ""), (COPIES - (first == second)) / 15)
            for first, second in product(RANKS, repeat=2)
        ]

    def chance(self, state: State) -> Sequence[tuple[State, float]]:
        """After the first round, one of the four other cards is turned up."""
        cards, shared, bets = state
        if shared or not _settled(bets):
            return ()
        left = {rank: COPIES - cards.count(rank) for rank in RANKS}
        return [((cards, rank, f"{bets}/"), num / 4) for rank, num in left.items() if num]

    def turn(self, state: State) -> str | None:
        """The seats alternate until a seat folds or the second round is settled."""
        _, shared, bets = state
        if bets.endswith("f") or (shared and _settled(bets)):
            return None
        return self.roles[len(_of_round(bets)) % 2]

    def view(self, state: State, role: str) -> str:
        """The role's own card, the shared card and the bets so far, ``-`` for none; a pair."""
        cards, shared, bets = state
        card = cards[self.roles.index(role)]
        board = "pair" if card == shared else shared or "-"
        return f"Leduc: card {card}, board {board}, bets {bets or '-'}."

    def legal(self, state: State, role: str) -> Sequence[str]:
        """Call always; fold after a raise; raise up to the limit of the round."""
        bets = _of_round(state[2])
        fold = ("f",) if bets.endswith("r") else ()
        more = ("r",) if bets.count("r") < MAX_RAISES else ()
        return (*fold, "c", *more)

    def play(self, state: State, move: str) -> State:
        """Add the move to the bets."""
        cards, shared, bets = state
        return cards, shared, bets + move

    def payoff(self, state: State) -> Mapping[str, float]:
        """Chips won; the winner gets what the other seat has put in."""
        cards, shared, bets = state
        chips = _chips(bets)
        if bets.endswith("f"):
            winner = len(_of_round(bets)) % 2
        else:
            strength = [(card == shared, RANKS.index(card)) for card in cards]
            if strength[0] == strength[1]:
                return dict.fromkeys(self.roles, 0.0)
            winner = strength.index(max(strength))
        won = float(chips[1 - winner])
        return {self.roles[winner]: won, self.roles[1 - winner]: -won}

    def reference(self) -> Mapping[str, float]:
        """Exact numbers: chips for ``value``, chips a seat for exploitability."""
        return {
            "value": -0.085606,  # of the first seat in equilibrium
            "uniform_exploitability": 2.373611,
        }


def _of_round(bets: str) -> str:
    """The bets of the newest round."""
    return bets.rpartition("/")[2]


def _settled(bets: str) -> bool:
    """Whether both seats have moved in the newest round and the last one called or checked."""
    newest = _of_round(bets)
    return len(newest) > 1 and newest.endswith("c")


def _chips(bets: str) -> list[int]:
    """The chips that each seat has put in."""
    chips = [1, 1]
    for size, moves in zip(RAISE, bets.split("/"), strict=False):
        for number, move in enumerate(moves):
            seat = number % 2
            if move == "c":
                chips[seat] = chips[1 - seat]
            elif move == "r":
                chips[seat] = chips[1 - seat] + size
    return chips
