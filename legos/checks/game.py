"""Check the rules of a game: information sets, reference numbers, and the optimal player."""

import random
from collections.abc import Mapping, Sequence
from math import isclose
from statistics import fmean

from legos.arena.arena import GameArena
from legos.arena.game import Game
from legos.checks.players import (
    CLOSE,
    Finding,
    earned,
    failure,
    finding,
    played,
    reference_of,
    slack,
)
from legos.errors import ArenaError, GameSizeError, story_of
from legos.fakes.client import Asked
from legos.games.bots import optimal_move
from legos.games.exact import (
    GameTree,
    Policy,
    expected_payoffs,
    exploitability,
    optimal_move_rate,
    optimal_policy,
    outcome_shares,
    uniform_policy,
)
from legos.records.episode import Task

LONGEST = 10_000  # moves of a sampled play after which it is left


def tree_of(game: Game) -> tuple[GameTree | None, Finding | None]:
    """All states of a game; None, and the finding that says why, if they are not written out.

    A game that does not list its starts, and one that has too many states, is played and not
    computed; any other reason is a defect, which ``legos train`` refuses too.
    """
    if game.starts() is None:
        return None, finding("reference", None, "not computed: the game does not list its starts")
    try:
        return GameTree(game), None
    except GameSizeError as error:
        return None, finding("reference", None, f"not computed: {error}")
    except ArenaError as error:
        return None, finding("reference", False, "", str(error))


def payoffs_of(tree: GameTree) -> Sequence[Mapping[str, float]]:
    """The payoffs of all ends of a game."""
    graph = tree.graph
    ends = set(range(len(graph.start))) - set(graph.parent.tolist())
    return [
        dict(zip(graph.roles, graph.payoffs[node].tolist(), strict=True)) for node in sorted(ends)
    ]


def game_findings(
    arena: GameArena, plays: Sequence[tuple[Task, int]], tree: GameTree | None
) -> list[Finding]:
    """Check a game: computed exactly with its tree, otherwise on the views of random plays."""
    if tree is None:
        try:
            return [_views(arena.game, plays)]
        except Exception as error:  # the game's own code may raise anything
            return [finding("views", False, "", f"a random play fails:\n{story_of(error)}")]
    best = optimal_policy(tree)
    known = _computed(tree, best)
    reference = reference_of(arena)
    given = {name: value for name, value in reference.items() if name in known}
    wrong = [name for name in given if not isclose(given[name], known[name], abs_tol=CLOSE)]
    bad = "; ".join(f"{name} is {given[name]:g}, computed {known[name]:g}" for name in wrong)
    good = ", ".join(f"{name} {round(value, 7) + 0.0:.6g}" for name, value in known.items())
    if taken := ", ".join(name for name in reference if name not in known):
        good += f"; not computed, and taken as given: {taken}"
    findings = [finding("reference", not wrong, good, bad)]
    if best is None:
        return [*findings, finding("optimal player", None, f"not computed: {tree.unsolved}")]
    return [*findings, _optimal(arena, tree, best, plays)]


def _views(game: Game, plays: Sequence[tuple[Task, int]]) -> Finding:
    """Whether a role has the same moves and the same prompt wherever it has the same view."""
    known: dict[tuple[str, str], tuple[tuple[str, ...], str]] = {}
    seen, again = 0, 0
    for task, seed in plays:
        rng = random.Random(seed)
        state = game.after_chance(task.data, rng)
        for _ in range(LONGEST):
            turn = game.turn(state)
            if turn is None:
                break
            moves: dict[str, str] = {}
            for role in (turn,) if isinstance(turn, str) else turn:
                view, legal = game.view(state, role), tuple(game.legal(state, role))
                offered = legal, game.prompt(state, role)
                seen, again = seen + 1, again + ((role, view) in known)
                before = known.setdefault((role, view), offered)
                if before != offered:
                    return finding("views", False, "", _differ(role, view, before, offered))
                moves[role] = rng.choice(legal)
            state = game.after_chance(game.after_moves(state, turn, moves), rng)
    text = (
        f"{again} of {seen} positions of {len(plays)} random plays had a view that was seen "
        "before, and offered the same moves"
    )
    return finding("views", True, text)


def _differ(
    role: str, view: str, one: tuple[tuple[str, ...], str], other: tuple[tuple[str, ...], str]
) -> str:
    """How two states with one view differ."""
    if one[0] != other[0]:
        what = f"has the legal moves {one[0]} and {other[0]}"
    else:
        what = f"is asked {one[1]!r} and {other[1]!r}"
    return (
        f"{role} {what} with one view {view!r}; a role must have the same moves and the same "
        "prompt where it cannot tell states apart"
    )


def _computed(tree: GameTree, best: Policy | None) -> dict[str, float]:
    """The reference numbers that can be computed, under their usual names."""
    graph, first = tree.graph, tree.game.roles[0]
    uniform = uniform_policy(tree)
    known = {
        "uniform_value": expected_payoffs(tree, dict.fromkeys(tree.game.roles, uniform))[first]
    }
    if best is not None:
        value = expected_payoffs(tree, dict.fromkeys(tree.game.roles, best))[first]
        known["optimal_joint_value" if graph.cooperative else "value"] = value
    if graph.zero_sum and len(tree.game.roles) > 1:
        known["uniform_exploitability"] = exploitability(tree, uniform)
    if best is not None and graph.duel:
        known["optimal_vs_random_win"] = outcome_shares(tree, best, uniform).win
        if (rate := optimal_move_rate(tree, uniform)) is not None:
            known["uniform_optimal_move_rate"] = rate
    return known


def _optimal(
    arena: GameArena, tree: GameTree, best: Policy, plays: Sequence[tuple[Task, int]]
) -> Finding:
    """Whether a player with the optimal policy gets what theory says."""

    def player(role: str, _: Task, __: int, asked: Asked) -> str:
        return optimal_move(best, role, asked.prompt, seed=asked.sampling.seed)

    episodes = played(arena, player, plays).episodes
    if failed := failure("optimal player", "the optimal policy", episodes):
        return failed
    expected = expected_payoffs(tree, dict.fromkeys(arena.roles, best))
    far: list[str] = []
    for role in arena.roles:
        got = [episode.rewards[role] for episode in episodes]
        if abs(fmean(got) - expected[role]) > slack(got):
            far.append(f"{role} gets {fmean(got):.3g}, expected {expected[role]:.3g}")
    text = f"mean reward {earned(arena.roles, episodes)}, as computed"
    return finding("optimal player", not far, text, "; ".join(far))
