"""Negotiation: two traders whose goods are worth different amounts to them."""

import random
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from legos import Arena, Table, Task

__all__ = ["GOODS", "MODES", "Negotiation", "Offer", "best_surplus", "parse_action"]

GOODS = ("wood", "gold")
MODES = ("surplus", "zero_sum")
STOCK = 10  # units of each good that each trader begins with
VALUES = ((5, 15), (15, 5))  # of a unit of each good to each trader, before they are varied
VARIED = 0.2  # largest relative change of a value
_OFFER = re.compile(r"\[offer (\d{1,9}) (wood|gold) for (\d{1,9}) (wood|gold)\]", re.IGNORECASE)
_OTHER = re.compile(r"\[(accept|end)\]", re.IGNORECASE)
Values = tuple[tuple[int, int], tuple[int, int]]


class Offer(NamedTuple):
    """What a trader would give, and what for; indices of goods."""

    give: int
    good: int
    want: int
    wanted: int

    def __str__(self) -> str:
        """The offer as its receiver reads it."""
        return f"{self.give} {GOODS[self.good]} for {self.want} {GOODS[self.wanted]}"


def parse_action(text: str) -> Offer | str:
    """The only action in brackets: an offer, "accept" or "end".

    Raises:
        ValueError: there is none, or more than one.
    """
    offers, others = _OFFER.findall(text), _OTHER.findall(text)
    if len(offers) + len(others) != 1:
        found = len(offers) + len(others)
        raise ValueError(
            f"it has {found} actions; write one of [offer 2 wood for 3 gold], [accept] and [end]"
        )
    if others:
        return others[0].lower()
    give, good, want, wanted = offers[0]
    return Offer(int(give), GOODS.index(good.lower()), int(want), GOODS.index(wanted.lower()))


def best_surplus(values: Values) -> int:
    """The largest sum of both gains: every good goes to the trader who values it more."""
    return sum(STOCK * abs(values[0][good] - values[1][good]) for good in range(len(GOODS)))


class Negotiation(Arena):
    """Two traders offer each other goods, in turns; nobody sees what they are worth to the other.

    Each reply has one action in brackets: ``[offer 2 wood for 3 gold]``, ``[accept]`` of the last
    offer, which is carried out at once, or ``[end]``. Only the action is shown to the other trader.
    Values vary by up to 20 % from task to task. An action that is not understood, or an offer of
    goods that the trader does not have, forfeits, which is never better than the largest loss.

    With ``mode=surplus`` a trader's reward is its own gain divided by 100; with ``zero_sum`` it is
    +1 for the larger gain and -1 for the smaller one, so that a rational trader refuses whatever
    helps the other more. Credit compares the plays of one task for each role. The numbers that show
    learning are ``arena/efficiency`` (both gains, divided by the largest possible sum),
    ``arena/agreement`` (share of plays with a trade) and ``arena/exploited`` (with a trader who has
    lost); with the middle values the largest sum is 200, and the fair bargain gives 100 to each.
    """

    roles = ("ann", "bob")
    remember = False  # every prompt holds all that its seat may know
    max_tokens = 64
    forfeit_reward = -2.4  # the largest loss: all goods, at the highest values, for nothing

    def __init__(
        self, client: Any = None, *, mode: str = "surplus", turns: int = 10, **kwargs: Any
    ) -> None:
        """Choose the rewards, and the number of actions of both traders together.

        Raises:
            ValueError: an unknown mode, or fewer than two actions.
        """
        if mode not in MODES:
            raise ValueError(f"mode is {mode!r}; expected one of {', '.join(MODES)}")
        if turns < 2:
            raise ValueError(f"turns is {turns}; expected at least an offer and its answer")
        super().__init__(client, **kwargs)
        self.mode, self.turns = mode, turns
        self.utility = "zero_sum" if mode == "zero_sum" else None

    def tasks(self, rng: random.Random) -> Iterable[Task]:
        """Random values around the middle ones."""
        while True:
            values = tuple(
                tuple(round(value * rng.uniform(1 - VARIED, 1 + VARIED)) for value in own)
                for own in VALUES
            )
            yield Task(id=f"values {values}", data=values)

    def example(self, role: str, prompt: str, rng: random.Random) -> str:
        """Accept an offer if there is one, and otherwise offer a unit."""
        last = prompt.splitlines()[-2] if prompt else ""
        return "Well, [accept]." if "[offer" in last else "[offer 1 wood for 1 gold]"

    def oracle(
        self, role: str, prompt: str, task: Task, rng: random.Random
    ) -> tuple[str, float] | None:
        """The fair bargain: every good goes to the trader who values it more."""
        if self.mode != "surplus":
            return None
        ann, bob = task.data
        if role == "bob":
            return "[accept]", STOCK * (bob[0] - bob[1]) / 100
        said = "[end]" if "bob: [accept]" in prompt else "[offer 10 wood for 10 gold]"
        return said, STOCK * (ann[1] - ann[0]) / 100

    def private(self, task: Task) -> Mapping[str, Sequence[str]]:
        """What the goods are worth to each trader."""
        return {role: [_worths(own)] for role, own in zip(self.roles, task.data, strict=True)}

    def reference(self) -> Mapping[str, float]:
        """Rewards of the fair bargain and of silence, and the largest mean sum of both rewards."""
        if self.mode != "surplus":
            return {"idle_ann": -2.4}
        fair = {"oracle_ann": 1.0, "oracle_bob": 1.0}
        return {**fair, "largest_sum": 2.0, "no_trade": 0.0, "idle_ann": -2.4}

    async def play(self, t: Table) -> Mapping[str, float]:
        """Take turns until one ends, or the actions are used up."""
        values: Values = t.task.data
        stocks = [[STOCK] * len(GOODS) for _ in self.roles]
        offer: Offer | None = None
        log: list[str] = []
        trades = 0
        for turn in range(self.turns):
            seat = turn % 2
            role = self.roles[seat]
            can_accept = offer is not None and stocks[seat][offer.wanted] >= offer.want

            def action(
                text: str, stock: list[int] = stocks[seat], may: bool = can_accept
            ) -> Offer | str:
                found = parse_action(text)
                if found == "accept" and not may:
                    raise ValueError("there is no offer that you could accept")
                if isinstance(found, Offer) and stock[found.good] < found.give:
                    raise ValueError(f"you have only {stock[found.good]} {GOODS[found.good]}")
                return found

            prompt = _prompt(role, values[seat], stocks[seat], log, self.turns - turn)
            chosen = (await t.ask(role, prompt, parse=action)).parsed
            log.append(f"{role}: [{f'offer {chosen}' if isinstance(chosen, Offer) else chosen}]")
            if chosen == "end":
                break
            if chosen == "accept" and offer is not None:
                _trade(stocks[1 - seat], stocks[seat], offer)
                trades += 1
            offer = chosen if isinstance(chosen, Offer) else None
        both = zip(values, stocks, strict=True)
        gains = [_worth(own, stock) - STOCK * sum(own) for own, stock in both]
        t.metric(
            efficiency=sum(gains) / (best_surplus(values) or 1),
            agreement=float(trades > 0),
            exploited=float(min(gains) < 0),
        )
        if self.mode == "surplus":
            return {role: gain / 100 for role, gain in zip(self.roles, gains, strict=True)}
        won = float((gains[0] > gains[1]) - (gains[0] < gains[1]))
        return {self.roles[0]: won, self.roles[1]: -won}


def _prompt(role: str, values: tuple[int, int], stock: list[int], log: list[str], left: int) -> str:
    """What a trader knows."""
    owned = " and ".join(f"{number} {good}" for good, number in zip(GOODS, stock, strict=True))
    so_far = "\n".join(log) or "Nobody has offered anything yet."
    return (
        f"You are {role}. Your goods are worth {_worths(values)} to you. You have {owned}.\n"
        f"{so_far}\n"
        f"{left} actions are left. Write [offer 2 wood for 3 gold], [accept] or [end]."
    )


def _worths(values: tuple[int, int]) -> str:
    """What a unit of each good is worth to a trader."""
    return " and ".join(f"{value} a {good}" for good, value in zip(GOODS, values, strict=True))


def _trade(giver: list[int], taker: list[int], offer: Offer) -> None:
    """Carry out an offer of ``giver`` that ``taker`` has accepted."""
    for stock, sign in ((giver, 1), (taker, -1)):
        stock[offer.good] -= sign * offer.give
        stock[offer.wanted] += sign * offer.want


def _worth(values: tuple[int, int], stock: list[int]) -> int:
    """What a trader's goods are worth to it."""
    return sum(value * number for value, number in zip(values, stock, strict=True))
