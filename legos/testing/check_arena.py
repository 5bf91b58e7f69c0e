"""Check an arena by playing it with scripted players, before a model plays it."""

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import isclose, sqrt
from statistics import fmean, pstdev
from typing import Any

from msgspec import Struct

from legos.arena.arena import Arena, GameArena
from legos.arena.cursor import plays_from
from legos.arena.game import Game
from legos.arena.matchmaker import Cast
from legos.arena.means import with_children
from legos.arena.step import play_all
from legos.data.episode import Episode, Task
from legos.errors import ArenaError, NoEndpointError
from legos.exact.bots import optimal_move
from legos.exact.figures import (
    GameTree,
    Policy,
    expected_payoffs,
    exploitability,
    optimal_move_rate,
    optimal_policy,
    outcome_shares,
    uniform_policy,
)
from legos.protocols import Seat
from legos.testing.client import Asked, ScriptedClient

__all__ = ["Finding", "check_arena"]

CLOSE = 1e-3  # tolerance of reference numbers, which are given with few digits
FAR = 4.5  # standard errors between a bot's mean reward and its exact value
NOT_PLAYED = (
    "not checked (rewards, repeatable, roles, secrets, crash, idle player, time): a program plays "
    "a seat over HTTP, and what it asks is answered by the engine of a model only; play it with "
    "legos train --arena NAME --loop.steps 1, and --serve 0 if programs start the episodes"
)
Answer = Callable[[Asked], str]


class Finding(Struct, frozen=True, kw_only=True):
    """The result of one check."""

    name: str
    passed: bool | None  # None: a figure to look at; no value of it is wrong
    text: str


class _CastError(Exception):
    """The player that crashes in one play."""


class _Players(Cast):
    """A scripted player in every seat, with what each one was asked."""

    def __init__(self, answer: Callable[[str, int], Answer]) -> None:
        """Take a function from a role and the seed of a play to the player's answers."""
        super().__init__(self._seated)
        self._answer = answer
        self.asked: dict[tuple[int, str], ScriptedClient] = {}  # seed of the play and role

    def _seated(self, seat: Seat, seed: int) -> Seat:
        client = self.asked[seed, seat.role] = ScriptedClient(self._answer(seat.role, seed))
        return replace(seat, client=client)


def check_arena(arena: Arena, *, plays: int = 64, seed: int = 0) -> list[Finding]:
    """Play an arena with random, idle and (for small games) optimal players.

    Args:
        arena: the arena, with any client; its matchmaker is replaced while it is checked.
        plays: number of plays of each player.
        seed: seed of tasks and plays.

    Returns:
        What was found, in the order of the checks. The checks end early where plays fail, and
        where programs play over HTTP.

    Raises:
        ArenaError: an attribute of the arena is invalid, it has no tasks, or a play breaks the
            rules for plays; the message says what to write.
    """
    planned, again = (_planned(arena, seed, plays) for _ in range(2))
    same = [(one.id, one.seed, repr(one.data)) for one, _ in planned] == [
        (one.id, one.seed, repr(one.data)) for one, _ in again
    ]
    text = "tasks(rng) yields the same tasks for the same seed"
    findings = [_finding("tasks", same, text, "tasks(rng) differs between two calls with one seed")]
    cast = _Players(_random_player)
    try:
        episodes, took_s = _play(arena, cast, planned, plays)
    except NoEndpointError:
        return [*findings, _finding("plays", None, NOT_PLAYED)]
    failed = [episode for episode in episodes if episode.error]
    if failed:
        text = f"{len(failed)} of {plays} random plays failed; the first:\n{failed[0].error}"
        return [*findings, Finding(name="random player", passed=False, text=text)]
    turns = sum(len(r.turns) for e in episodes for r in e.rollouts)
    text = f"{plays} plays, {turns / plays:.3g} turns each; mean reward {_means(episodes)}"
    findings.append(Finding(name="random player", passed=True, text=text))
    return [
        *findings,
        _repeatable(arena, planned, episodes),
        *_roles(arena, planned, episodes),
        _secrets(cast),
        _crash(arena, planned, episodes),
        _idle(arena, planned),
        *(_exact(arena, arena.game, planned) if isinstance(arena, GameArena) else ()),
        _finding("time", None, f"{took_s / max(turns, 1) * 1e6:.3g} microseconds a turn"),
    ]


def _random_player(role: str, seed: int) -> Answer:
    """Takes a random choice, and otherwise says a text that only this seat of this play knows."""

    def answer(asked: Asked) -> str:
        choices = asked.sampling.choices
        return choices[asked.sampling.seed % len(choices)] if choices else _secret(role, seed)

    return answer


def _idle_player(*_: object) -> Answer:
    """Says nothing."""
    return _say_nothing


def _say_nothing(_: Asked) -> str:
    return ""


def _secret(role: str, seed: int) -> str:
    return f"{role}-{seed:016x}"


def _play(
    arena: Arena, cast: _Players, planned: Sequence[tuple[Task, int]], at_once: int
) -> tuple[list[Episode], float]:
    """Play with a cast; returns the episodes and the seconds that they took."""
    matchmaker, arena.matchmaker = arena.matchmaker, cast
    try:
        started = time.perf_counter()
        episodes = asyncio.run(play_all(arena, planned, asyncio.Semaphore(at_once)))
        return episodes, time.perf_counter() - started
    finally:
        arena.matchmaker = matchmaker


def _repeatable(
    arena: Arena, planned: Sequence[tuple[Task, int]], episodes: Sequence[Episode]
) -> Finding:
    """Whether plays one after another are the same plays as all at once."""
    alone, _ = _play(arena, _Players(_random_player), planned, 1)
    pairs = list(zip(episodes, alone, strict=True))
    differ = [one.task.id for one, other in pairs if _story(one) != _story(other)]
    bad = f"{len(differ)} plays differ when played again one by one, such as {differ[:1]}; " + (
        "take chance from t.rng or the task, and keep nothing of a play in the arena"
    )
    good = "plays at once and one after another are the same"
    return _finding("repeatable", not differ, good, bad)


def _story(episode: Episode) -> Any:
    said = [[t.completion.text for t in rollout.turns] for rollout in episode.rollouts]
    return said, episode.rewards, episode.error is None, episode.void


def _planned(arena: Arena, seed: int, plays: int) -> list[tuple[Task, int]]:
    """Plays of the tasks, and as many of the held-out ones if there are some."""
    trained = plays_from(arena, seed, plays, held_out=False)
    if arena.held_out(random.Random(seed)) is None:
        return trained
    half = plays // 2
    return [*trained[: plays - half], *plays_from(arena, seed, half)]


def _roles(
    arena: Arena, planned: Sequence[tuple[Task, int]], episodes: Sequence[Episode]
) -> list[Finding]:
    """Whether every role is asked, by random players or by those that give the arena's examples."""

    def player(role: str, seed: int) -> Answer:
        def answer(asked: Asked) -> str:
            rng = random.Random(asked.sampling.seed)
            given = arena.example(role, asked.prompt, rng)
            return _random_player(role, seed)(asked) if given is None else given

        return answer

    findings: list[Finding] = []
    if arena.example(arena.roles[0], "", random.Random(0)) is not None:
        played, _ = _play(arena, _Players(player), planned, len(planned))
        failed = [episode.error for episode in played if episode.error]
        text = f"mean reward {_means(played)}"
        bad = f"{len(failed)} plays of example() fail; the first:\n{next(iter(failed), '')}"
        findings.append(_finding("example player", not failed, text, bad))
        episodes = [*episodes, *played]
    rollouts = [r for e in with_children(episodes) for r in e.rollouts if r.turns]
    asked = {rollout.role for rollout in rollouts}
    trained = {rollout.role for rollout in rollouts if rollout.policy}
    silent = [role for role in arena.roles if role not in asked]
    note = "".join(f"; {role} is not trained" for role in arena.roles if role in asked - trained)
    bad = (
        f"never asked in any play: {', '.join(silent)}; if that is because a random text means "
        "nothing here, write example(self, role, prompt, rng)"
    )
    return [*findings, _finding("roles", not silent, f"every role is asked{note}", bad)]


def _secrets(cast: _Players) -> Finding:
    """Which role reads the free answers of which other role, and none those of another play."""
    secrets = {_secret(role, seed): (role, seed) for seed, role in cast.asked}
    reads: set[tuple[str, str]] = set()
    for (seed, role), client in cast.asked.items():
        texts = "\n".join(m.content for asked in client.asked for m in asked.messages)
        for secret in (s for s in secrets if s in texts):
            author, of = secrets[secret]
            if of != seed:
                text = f"{role!r} reads what {author!r} answered in another play"
                return Finding(name="secrets", passed=False, text=text)
            if author != role:
                reads.add((role, author))
    lines = [f"{role} reads the answers of {author}" for role, author in sorted(reads)]
    text = "; ".join(lines) or "no role reads a free answer of another one"
    return Finding(name="secrets", passed=None, text=text)


def _crash(
    arena: Arena, planned: Sequence[tuple[Task, int]], episodes: Sequence[Episode]
) -> Finding:
    """Whether a player that crashes in one play leaves the others as they were."""
    victim = planned[len(planned) // 2][1]

    def player(role: str, seed: int) -> Answer:
        def crash(_: Asked) -> str:
            raise _CastError("this player crashes")

        return crash if seed == victim else _random_player(role, seed)

    crashed, _ = _play(arena, _Players(player), planned, len(planned))
    changed = [
        one.task.id
        for one, other in zip(crashed, episodes, strict=True)
        if one.seed != victim and _story(one) != _story(other)
    ]
    bad = f"a player that crashes in one play changes {len(changed)} others, such as {changed[:1]}"
    return _finding("crash", not changed, "a player that crashes leaves the other plays alone", bad)


def _idle(arena: Arena, planned: Sequence[tuple[Task, int]]) -> Finding:
    """The reward of a player that says nothing."""
    if arena.restrict_choices:
        return _finding("idle player", None, "only legal choices can be said in this arena")
    episodes, _ = _play(arena, _Players(_idle_player), planned, len(planned))
    ended = [episode for episode in episodes if not episode.error]
    text = f"mean reward {_means(ended)}" if ended else f"every play fails:\n{episodes[0].error}"
    return _finding("idle player", None, text)


def _exact(arena: GameArena, game: Game, planned: Sequence[tuple[Task, int]]) -> list[Finding]:
    """The references of a game, computed, and whether the optimal player reaches its value."""
    try:
        tree = GameTree(game)
    except ArenaError as error:
        return [_finding("reference", None, f"not computed: {error}")]
    best = optimal_policy(tree)
    known = _computed(tree, best)
    given = {name: value for name, value in game.reference().items() if name in known}
    wrong = [name for name in given if not isclose(given[name], known[name], abs_tol=CLOSE)]
    bad = "; ".join(f"{name} is {given[name]:g}, computed {known[name]:g}" for name in wrong)
    good = ", ".join(f"{name} {value:.6g}" for name, value in known.items())
    findings = [_finding("reference", not wrong, good, bad)]
    if best is not None:
        findings.append(_optimal(arena, tree, best, planned))
    return findings


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
    arena: GameArena, tree: GameTree, best: Policy, planned: Sequence[tuple[Task, int]]
) -> Finding:
    """Whether a player with the optimal policy gets what theory says."""

    def player(role: str, _: int) -> Answer:
        def answer(asked: Asked) -> str:
            return optimal_move(best, role, asked.prompt, seed=asked.sampling.seed)

        return answer

    episodes, _ = _play(arena, _Players(player), planned, len(planned))
    failed = [episode.error for episode in episodes if episode.error]
    if failed:
        return _finding("optimal player", False, "", f"its plays fail; the first:\n{failed[0]}")
    expected = expected_payoffs(tree, dict.fromkeys(arena.roles, best))
    far: list[str] = []
    for role in arena.roles:
        got = [episode.rewards[role] for episode in episodes]
        slack = FAR * pstdev(got) / sqrt(len(got)) + CLOSE
        if abs(fmean(got) - expected[role]) > slack:
            far.append(f"{role} gets {fmean(got):.3g}, expected {expected[role]:.3g}")
    text = f"mean reward {_means(episodes)}, as computed"
    return _finding("optimal player", not far, text, "; ".join(far))


def _means(episodes: Sequence[Episode]) -> str:
    """Mean reward of each role, as text."""
    roles = list(episodes[0].rewards) if episodes else []
    means = {role: fmean(e.rewards.get(role, 0.0) for e in episodes) for role in roles}
    return ", ".join(f"{role} {mean:.3g}" for role, mean in means.items()) or "none"


def _finding(name: str, passed: bool | None, good: str, bad: str = "") -> Finding:
    return Finding(name=name, passed=passed, text=bad if passed is False else good)
