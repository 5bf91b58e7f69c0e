"""The same numbers from other packages: choix and OpenSpiel.

Run with ``uv run --isolated --extra openspiel --with choix --with networkx pytest -m optional``.
"""

from typing import Any

import numpy as np
import pytest

from arenas.kuhn import Kuhn
from legos.games.exact import GameTree, exploitability
from legos.games.solve import normalised
from legos.league.payoffs import PayoffTable, Tally, exact_payoffs
from legos.league.ratings import ELO, cyclic_share, nash_mixture, ratings

pytestmark = [pytest.mark.optional, pytest.mark.filterwarnings("ignore")]

ROCK = np.array([[0.0, -1.0, 1.0], [1.0, 0.0, -1.0], [-1.0, 1.0, 0.0]])


def part(name: str) -> Any:
    return pytest.importorskip(name)


def sampled_wins(seed: int, most: int) -> np.ndarray:
    """[M, M] wins of each row against each column, of members of planted strengths."""
    rng = np.random.default_rng(seed)
    strengths = rng.normal(size=7)
    plays = np.triu(rng.integers(most // 2, most, size=(7, 7)), 1)
    wins = rng.binomial(plays, 1 / (1 + np.exp(strengths - strengths[:, None])))
    return wins + (plays - wins).T


def our_strengths(wins: np.ndarray) -> np.ndarray:
    table = PayoffTable()
    for one in range(len(wins)):
        for two in range(len(wins)):
            if one != two:
                tally = Tally(float(wins[one, two]), 0.0, float(wins[two, one]))
                table.put(str(one), str(two), "r", tally)
    found = sorted(ratings(table), key=lambda rating: int(rating.member))
    return np.array([rating.elo for rating in found]) / ELO


@pytest.mark.parametrize("seed", range(5))
def test_choix_with_the_same_virtual_plays(seed: int) -> None:
    """Exact agreement at few plays: choix gets the virtual plays as fractions of wins."""
    wins = sampled_wins(seed, most=8)
    plays = wins + wins.T
    resistances = np.linalg.pinv(np.diag(plays.sum(axis=1)) - plays)
    spread = np.diag(resistances)
    virtual = plays * (spread[:, None] + spread - 2 * resistances)
    theirs = part("choix").ilsr_pairwise_dense((wins + virtual / 2).astype(float), tol=1e-12)
    np.testing.assert_allclose(our_strengths(wins), theirs - theirs.mean(), atol=1e-6)


@pytest.mark.parametrize("method", ["ilsr_pairwise", "mm_pairwise"])
def test_choix_at_many_plays(method: str) -> None:
    """With thousands of plays, the virtual ones are 6 in 90,000."""
    wins = sampled_wins(0, most=6000)
    pairs = [pair for pair, count in np.ndenumerate(wins) for _ in range(count)]
    theirs = getattr(part("choix"), method)(len(wins), pairs)
    np.testing.assert_allclose(our_strengths(wins), theirs - theirs.mean(), atol=2e-3)


def alpha_ranks(rewards: np.ndarray) -> np.ndarray:
    """OpenSpiel's stationary distribution of a symmetric game with payoffs to the row."""
    alpharank = part("open_spiel.python.egt.alpharank")
    return np.asarray(alpharank.compute([rewards], alpha=100.0)[2])


def their_nash_conv(rewards: np.ndarray, mixture: np.ndarray) -> float:
    """OpenSpiel's NashConv of two sides that both choose a member by a mixture."""
    pyspiel = part("pyspiel")
    game = pyspiel.create_matrix_game(rewards.tolist(), (-rewards).tolist())
    game = pyspiel.convert_to_turn_based(game)
    chosen = part("open_spiel.python.policy").TabularPolicy(game)
    chosen.action_probability_array[:] = mixture
    return float(part("open_spiel.python.algorithms.exploitability").nash_conv(game, chosen))


def test_rock_paper_scissors() -> None:
    ranks = alpha_ranks(ROCK)
    np.testing.assert_allclose(ranks, 1 / 3, atol=1e-6)
    np.testing.assert_allclose(nash_mixture(ROCK), ranks, atol=1e-6)
    assert their_nash_conv(ROCK, np.array([1.0, 0.0, 0.0])) == pytest.approx(2)


@pytest.mark.parametrize("seed", range(4))
def test_mixtures_of_sampled_games(seed: int) -> None:
    drawn = np.random.default_rng(seed).normal(size=(9, 9))
    rewards = drawn - drawn.T
    assert their_nash_conv(rewards, np.full(9, 1 / 9)) > 0.1
    assert their_nash_conv(rewards, nash_mixture(rewards)) == pytest.approx(0, abs=1e-6)


def kuhn_rows(policy: Any) -> dict[str, tuple[float, float]]:
    """OpenSpiel's information state -> probabilities of pass and bet."""
    rows: dict[str, tuple[float, float]] = {}
    for (_, view), moves in policy.items():
        card, bets = view.removeprefix("Kuhn: card ").removesuffix(".").split(", bets ")
        rows[str("JQK".index(card)) + bets.replace("-", "")] = (moves["p"], moves["b"])
    return rows


def test_a_table_of_kuhn_policies() -> None:
    """Every pay-off and exploitability, and the mixture, as OpenSpiel has them."""
    tabular = part("open_spiel.python.policy").TabularPolicy
    scored = part("open_spiel.python.algorithms.expected_game_score").policy_value
    exploited = part("open_spiel.python.algorithms.exploitability").exploitability
    game = part("pyspiel").load_game("kuhn_poker")
    tree, rng = GameTree(Kuhn()), np.random.default_rng(3)
    slots = len(tree.graph.point_of_slot)
    policies = {
        f"m{index}": tree.policy(normalised(tree.graph, rng.random(slots) ** 2))
        for index in range(5)
    }
    theirs: dict[str, Any] = {}
    for name, policy in policies.items():
        theirs[name] = tabular(game)
        for view, row in kuhn_rows(policy).items():
            theirs[name].action_probability_array[theirs[name].state_lookup[view]] = row
        assert exploitability(tree, policy) == pytest.approx(exploited(game, theirs[name]))
    table = exact_payoffs(tree, policies)
    first, second = Kuhn.roles
    for mine in policies:
        for other in policies:
            values = scored(game.new_initial_state(), [theirs[mine], theirs[other]])
            assert table.tally(mine, other, first).mean == pytest.approx(values[0])
            assert table.tally(other, mine, second).mean == pytest.approx(values[1])
    rewards = table.rewards(table.members)
    gain = (rewards - rewards.T) / 2
    assert their_nash_conv(gain, nash_mixture(rewards)) == pytest.approx(0, abs=1e-6)


def test_a_ladder_is_ranked_alike() -> None:
    rewards = np.tanh(np.subtract.outer(np.arange(5.0), np.arange(5.0)) / 2)
    assert cyclic_share((rewards + 1) / 2) < 0.01
    np.testing.assert_allclose(alpha_ranks(rewards), nash_mixture(rewards), atol=1e-6)
