"""Negotiation: actions, trades, private values and rewards."""

import random
from typing import Any

import pytest
from scripted_play import played

from arenas.negotiation import VALUES, Negotiation, Offer, best_surplus, parse_action
from legos import Task
from legos.fakes import Asked

MIDDLE = Task(id="middle", data=VALUES)


def rewards(*actions: str, mode: str = "surplus", turns: int = 10) -> tuple[dict[str, float], ...]:
    """Rewards and metrics of a play in which the traders say these actions in turn."""
    script = iter(actions)

    def answer(_: Asked) -> str:
        return next(script, "[end]")

    episode, _ = played(Negotiation(mode=mode, turns=turns), MIDDLE, answer)
    return dict(episode.rewards), dict(episode.metrics)


def test_reference_numbers() -> None:
    assert best_surplus(VALUES) == 200
    found, metrics = rewards("[offer 10 wood for 10 gold]", "[accept]")
    assert found == {"ann": 1.0, "bob": 1.0}
    assert (metrics["efficiency"], metrics["agreement"], metrics["exploited"]) == (1.0, 1.0, 0.0)


def test_nothing_is_gained_without_a_trade() -> None:
    assert rewards("[end]") == (
        {"ann": 0.0, "bob": 0.0},
        {"efficiency": 0.0, "agreement": 0.0, "exploited": 0.0},
    )


def test_the_last_action_is_carried_out() -> None:
    found, _ = rewards("[offer 1 wood for 1 gold]", "[accept]", turns=2)
    assert found == {"ann": 0.1, "bob": 0.1}


def test_several_trades_and_a_new_offer_instead_of_an_answer() -> None:
    found, _ = rewards(
        "[offer 1 wood for 2 gold]", "[offer 1 gold for 1 wood]", "[accept]", "[end]"
    )
    assert found == {"ann": 0.1, "bob": 0.1}


def test_a_trader_who_gives_too_much_is_exploited() -> None:
    found, metrics = rewards("[offer 9 gold for 1 wood]", "[accept]", mode="zero_sum")
    assert found == {"ann": -1.0, "bob": 1.0}
    assert metrics["exploited"] == 1.0


@pytest.mark.parametrize(
    "actions",
    [
        ("I refuse.",),
        ("[accept]",),
        ("[offer 11 wood for 1 gold]",),
        ("[offer 1 wood for 1 gold] [end]",),
        ("[offer 1 wood for 11 gold]", "[accept]"),
        (f"[offer {'9' * 5000} wood for 1 gold]",),
    ],
)
def test_what_is_not_possible_forfeits(actions: tuple[str, ...]) -> None:
    found, metrics = rewards(*actions)
    assert min(found.values()) == -2.4
    assert metrics["forfeit"] == 1.0


def test_a_forfeit_is_no_way_out_of_a_bad_trade() -> None:
    all_away = ("[offer 10 gold for 0 wood]", "[accept]")
    lost, _ = rewards(*all_away, "[end]")
    escaped, _ = rewards(*all_away, "I refuse.")
    assert lost["ann"] == -1.5
    assert escaped["ann"] < lost["ann"]


def test_actions_are_read_outside_of_the_thinking() -> None:
    found, _ = rewards("<think>[accept]?</think>[offer 1 wood for 1 gold]", "Fine: [Accept].")
    assert found == {"ann": 0.1, "bob": 0.1}


def test_a_trader_sees_its_own_values_and_only_the_actions_of_the_other() -> None:
    said = iter(["My secret. [offer 2 wood for 3 gold]", "[end]"])
    _, prompts = played(Negotiation(), MIDDLE, lambda _: next(said))
    assert "worth 5 a wood and 15 a gold to you" in prompts[0]
    assert "worth 15 a wood and 5 a gold to you" in prompts[1]
    assert "ann: [offer 2 wood for 3 gold]" in prompts[1]
    assert "secret" not in prompts[1]


def test_parse() -> None:
    assert parse_action("ok [OFFER 2 Wood for 3 gold]") == Offer(2, 0, 3, 1)
    with pytest.raises(ValueError, match="it has 2 actions"):
        parse_action("[accept] or [end]")


def test_values_vary_by_a_fifth() -> None:
    tasks = Negotiation().tasks(random.Random(1))
    values = [next(iter(tasks)).data for _ in range(200)]
    assert {v[0][0] for v in values} == {4, 5, 6}
    assert min(v[1][0] for v in values) == 12
    assert max(v[1][0] for v in values) == 18


@pytest.mark.parametrize("options", [{"mode": "win"}, {"turns": 1}])
def test_bad_options(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="expected"):
        Negotiation(**options)
