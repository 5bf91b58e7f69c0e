"""Goofspiel: two seats or more bid for prizes at once, with equal hands."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from legos import Game

__all__ = ["Goofspiel"]


class State(NamedTuple):
    """The position before or after a prize is turned up."""

    prize: str  # the prize that is bid for; empty before one is turned up
    left: str  # the prizes after it
    hands: tuple[str, ...]  # the cards that each seat has left
    points: tuple[int, ...]  # the prizes that each seat has won, added up


class Goofspiel(Game):
    """All seats bid a card at once for a prize; the highest bid wins it, and a tie wins nothing.

    Every seat has the cards 1 to ``cards``. The prizes have the same numbers and are turned up one
    by one in random order. Every card is bid once, and all see all bids afterwards. At the end the
    seats with the most points share +1 and the others share -1; with equal points all get 0.

    A move is the number of the card. Credit ``same_view`` compares the bids of a seat that saw the
    same prizes, points and cards.

    With two seats the game is symmetric and zero-sum, so its value is 0, and the number that shows
    learning is the exploitability: 0.667 at random with three cards, 0 in equilibrium. With more
    seats it is the gain of a best response of one seat, averaged over seats.
    """

    utility = "zero_sum"
    recommended: Mapping[str, object] = {
        "loop.steps": 500,
        "loop.evaluate_every": 50,
        "play.credit": "same_view",
        "play.restrict_choices": True,
        "training.entropy_coef": 0.15,
        "training.entropy_coef_end": 0.03,
        "training.ema_kl_coef": 1.0,
        "training.ema_decay": 0.98,
        "training.kl_estimator": "exact",
        "training.learning_rate_end_fraction": 0.2,
    }

    def __init__(self, *, cards: int = 3, seats: int = 2) -> None:
        """Set the size of the game.

        Raises:
            ValueError: fewer than two cards or seats, or more than nine cards or 100 seats.
        """
        if not 2 <= cards <= 9:
            raise ValueError(f"cards is {cards}; expected 2 to 9")
        if not 2 <= seats <= 100:
            raise ValueError(f"seats is {seats}; expected at least 2, at most 100")
        self.cards = "123456789"[:cards]
        self.roles = tuple(f"seat{number}" for number in range(1, seats + 1))
        self.rules = (
            f"Goofspiel: every player has the cards 1 to {cards}. Prizes with the same numbers are "
            "turned up one by one in random order. All players bid one of their cards at the same "
            "time; the highest bid wins the points of the prize, and equal highest bids win "
            "nothing. Each card is bid once. The most points at the end win. The position shows "
            "the prize, the prizes that are left, and the points and cards of you and your rivals."
        )

    def starts(self) -> Sequence[tuple[State, float]]:
        """Full hands, and no prize turned up."""
        seats = len(self.roles)
        return [(State("", self.cards, (self.cards,) * seats, (0,) * seats), 1.0)]

    def chance(self, state: State) -> Sequence[tuple[State, float]]:
        """Turn up the next prize."""
        if state.prize or not state.left:
            return ()
        return [
            (state._replace(prize=prize, left=state.left.replace(prize, "")), 1 / len(state.left))
            for prize in state.left
        ]

    def turn(self, state: State) -> Sequence[str] | None:
        """All seats bid at once until the cards are gone."""
        return self.roles if state.prize else None

    def view(self, state: State, role: str) -> str:
        """The prizes, and the points and cards of all seats, the role's own first."""
        own = self.roles.index(role)
        seats = [(own + after) % len(self.roles) for after in range(len(self.roles))]
        held = [f"{state.points[seat]} with {' '.join(state.hands[seat])}" for seat in seats]
        prizes = f"prize {state.prize}, left {' '.join(state.left) or '-'}"
        return f"Goofspiel: {prizes}, you {held[0]}, rival {', rival '.join(held[1:])}."

    def legal(self, state: State, role: str) -> Sequence[str]:
        """The role's own cards."""
        return tuple(state.hands[self.roles.index(role)])

    def play_all(self, state: State, moves: Mapping[str, str]) -> State:
        """Take the bids from the hands, and give the prize to the single highest one."""
        bids = [moves[role] for role in self.roles]
        hands = tuple(hand.replace(bid, "") for hand, bid in zip(state.hands, bids, strict=True))
        points = list(state.points)
        if bids.count(max(bids)) == 1:
            points[bids.index(max(bids))] += int(state.prize)
        return State("", state.left, hands, tuple(points))

    def payoff(self, state: State) -> Mapping[str, float]:
        """Shares of +1 for the seats with the most points, shares of -1 for the others."""
        most = max(state.points)
        num_winners = state.points.count(most)
        num_losers = len(self.roles) - num_winners
        if not num_losers:
            return dict.fromkeys(self.roles, 0.0)
        return {
            role: 1.0 / num_winners if points == most else -1.0 / num_losers
            for role, points in zip(self.roles, state.points, strict=True)
        }

    def reference(self) -> Mapping[str, float]:
        """Exact numbers of the game with three cards and two seats; none for another size."""
        if (len(self.cards), len(self.roles)) != (3, 2):
            return {}
        return {"value": 0.0, "uniform_exploitability": 2 / 3}
