"""The same numbers from OpenSpiel; run with ``uv run --with open_spiel pytest -m optional``."""

import random
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from arenas.kuhn import Kuhn
from arenas.nim import Nim
from legos.arena.game import Game
from legos.games.exact import (
    GameTree,
    Policy,
    expected_payoffs,
    optimal_policy,
    uniform_policy,
)
from legos.games.solve import nash_conv_of

pytestmark = [pytest.mark.optional, pytest.mark.filterwarnings("ignore")]


@pytest.fixture
def spiel() -> Any:
    return pytest.importorskip("pyspiel")


class Foreign(Game):
    """An OpenSpiel game with all chance at its start; a state is the sequence of its actions."""

    def __init__(self, game: Any) -> None:
        self.foreign = game
        self.roles = tuple(f"p{seat}" for seat in range(game.num_players()))

    def at(self, state: tuple[int, ...]) -> Any:
        position = self.foreign.new_initial_state()
        for action in state:
            position.apply_action(action)
        return position

    def starts(self) -> Sequence[tuple[tuple[int, ...], float]]:
        open_deals: list[tuple[tuple[int, ...], float]] = [((), 1.0)]
        while any(self.at(deal).is_chance_node() for deal, _ in open_deals):
            open_deals = [
                ((*deal, action), chance * share)
                for deal, chance in open_deals
                for action, share in self.at(deal).chance_outcomes()
            ]
        return open_deals

    def turn(self, state: tuple[int, ...]) -> str | None:
        position = self.at(state)
        return None if position.is_terminal() else self.roles[position.current_player()]

    def view(self, state: tuple[int, ...], role: str) -> str:
        return self.at(state).information_state_string(self.roles.index(role))

    def legal(self, state: tuple[int, ...], role: str) -> Sequence[str]:
        return [str(action) for action in self.at(state).legal_actions()]

    def play(self, state: tuple[int, ...], move: str) -> tuple[int, ...]:
        return (*state, int(move))

    def payoff(self, state: tuple[int, ...]) -> Mapping[str, float]:
        return dict(zip(self.roles, self.at(state).returns(), strict=True))


def nim(spiel: Any, piles: str, *, misere: bool) -> Any:
    return spiel.load_game("nim", {"pile_sizes": piles, "is_misere": misere})


def random_policy(tree: GameTree, seed: int) -> Policy:
    rng = random.Random(seed)
    policy: dict[tuple[str, str], dict[str, float]] = {}
    for point in tree.graph.points:
        weights = [rng.random() ** 3 for _ in point.legal]
        moves = zip(point.legal, weights, strict=True)
        policy[point.role, point.view] = {move: w / sum(weights) for move, w in moves}
    return policy


def their_nash_conv(game: Any, rows: Mapping[str, Sequence[float]]) -> float:
    """OpenSpiel's NashConv of a policy: information state -> probability of each action."""
    tabular = pytest.importorskip("open_spiel.python.policy").TabularPolicy(game)
    exploiter = pytest.importorskip("open_spiel.python.algorithms.exploitability")
    assert set(tabular.state_lookup) == set(rows)
    for name, row in rows.items():
        tabular.action_probability_array[tabular.state_lookup[name]] = row
    return exploiter.nash_conv(game, tabular)


@pytest.mark.parametrize("seed", [None, 0, 1, 2, 3, 4])
def test_kuhn_nash_conv(spiel: Any, seed: int | None) -> None:
    tree = GameTree(Kuhn())
    policy = uniform_policy(tree) if seed is None else random_policy(tree, seed)
    rows: dict[str, Sequence[float]] = {}
    for (_, view), moves in policy.items():
        card, bets = view.removeprefix("Kuhn: card ").removesuffix(".").split(", bets ")
        rows[str("JQK".index(card)) + bets.replace("-", "")] = (moves["p"], moves["b"])
    theirs = their_nash_conv(spiel.load_game("kuhn_poker"), rows)
    assert nash_conv_of(tree.graph, tree.everywhere(policy)) == pytest.approx(theirs)


@pytest.mark.parametrize("seed", [None, 0, 1])
def test_kuhn_nash_conv_of_three_players(spiel: Any, seed: int | None) -> None:
    game = spiel.load_game("kuhn_poker(players=3)")
    tree = GameTree(Foreign(game))
    policy = uniform_policy(tree) if seed is None else random_policy(tree, seed)
    rows = {view: (moves["0"], moves["1"]) for (_, view), moves in policy.items()}
    assert nash_conv_of(tree.graph, tree.everywhere(policy)) == pytest.approx(
        their_nash_conv(game, rows)
    )


@pytest.mark.parametrize("largest", [1, 2, 3])
def test_nim_values_up_to_three_stones(spiel: Any, largest: int) -> None:
    """With three stones or fewer, OpenSpiel's "take any number" is the same game."""
    tree = GameTree(Nim(largest=largest))
    ours = optimal_policy(tree)
    assert ours is not None
    uniform = uniform_policy(tree)
    theirs = 0.0
    for stones in range(1, largest + 1):
        foreign = GameTree(Foreign(nim(spiel, str(stones), misere=False)))
        seats = {"p0": uniform_policy(foreign), "p1": uniform_policy(foreign)}
        theirs += expected_payoffs(foreign, seats)["p0"] / largest
    seats = {"first": uniform, "second": uniform}
    assert expected_payoffs(tree, seats)["first"] == pytest.approx(theirs)
    assert expected_payoffs(tree, {"first": ours, "second": ours})["first"] == 1.0


@pytest.mark.parametrize("piles", ["1;2;3", "1;2;2", "2;2;1;1", "1;1;1"])
@pytest.mark.parametrize("misere", [False, True])
def test_nim_heap_values(spiel: Any, piles: str, misere: bool) -> None:
    minimax = pytest.importorskip("open_spiel.python.algorithms.minimax")
    game = nim(spiel, piles, misere=misere)
    tree = GameTree(Foreign(game))
    policy = optimal_policy(tree)
    assert policy is not None
    value, _ = minimax.alpha_beta_search(game)
    assert expected_payoffs(tree, {"p0": policy, "p1": policy})["p0"] == pytest.approx(value)
