"""Check an arena by playing it with scripted players, before a model plays it."""

import random
from collections.abc import Iterator, Sequence
from statistics import fmean
from typing import Any

from legos.arena.arena import Arena, GameArena
from legos.arena.cursor import check_levels
from legos.chat.reply import split_thinking
from legos.checks.game import game_findings, payoffs_of, tree_of
from legos.checks.players import (
    Finding,
    Played,
    Player,
    earned,
    failure,
    finding,
    planned_plays,
    played,
    random_player,
    reference_of,
    returns,
    slack,
    with_thinking,
)
from legos.checks.prompts import prompt_findings
from legos.credit.means import with_children
from legos.errors import NoEndpointError
from legos.fakes.client import Asked
from legos.games.exact import GameTree
from legos.records.episode import Episode, Task, Turn
from legos.records.task_ids import same_data

SAME_SUM = 1e-9  # tolerance of sums of rewards
NOT_PLAYED = (
    "not checked (rewards, repeatable, roles, secrets, idle player, time): a program plays "
    "a seat over HTTP, and what it asks is answered by the engine of a model only; play it with "
    "legos train --arena NAME --loop.steps 1, and --serve 0 if programs start the episodes"
)
Plays = Sequence[tuple[Task, int]]
_Expected = dict[tuple[int, str, str], float]
"""Seed of the play, question and answer -> the reward that ``oracle`` says."""


def check_arena(arena: Arena, *, plays: int = 64, seed: int = 0) -> list[Finding]:
    """Play an arena with random, idle and (for small games) optimal players.

    Players that give the answers of ``example`` and ``oracle`` play too, if the arena has these.

    Args:
        arena: the arena, with any client; its matchmaker is replaced while it is checked.
        plays: number of plays of each player.
        seed: seed of tasks and plays.

    Returns:
        What was found, in the order of the checks. The checks end early where plays fail, and
        where programs play over HTTP.

    Raises:
        ArenaError: an attribute of the arena is invalid, it has no tasks, or none of a level, or a
            play breaks the rules for plays; the message says what to write.
    """
    planned, again = (planned_plays(arena, seed, plays) for _ in range(2))
    same = all(
        (one.id, one.seed) == (two.id, two.seed) and same_data(one.data, two.data)
        for (one, _), (two, _) in zip(planned, again, strict=True)
    )
    text = "tasks(rng) yields the same tasks for the same seed"
    findings = [finding("tasks", same, text, "tasks(rng) differs between two calls with one seed")]
    tree, problem = tree_of(arena.game) if isinstance(arena, GameArena) else (None, None)
    if problem is not None and problem.passed is False:  # such as a game that never ends
        return [*findings, problem]
    try:
        first = played(arena, random_player, planned)
    except NoEndpointError:
        return [*findings, finding("plays", None, NOT_PLAYED)]
    check_levels(arena, seed)
    if failed := failure("random player", "a random player", first.episodes):
        return [*findings, failed]
    turns = sum(len(r.turns) for e in first.episodes for r in e.rollouts)
    means = earned(arena.roles, first.episodes)
    text = f"{plays} plays, {turns / plays:.3g} turns each; mean reward {means}"
    findings += [finding("random player", True, text), _repeatable(arena, planned, first)]
    batches = [first]
    if type(arena).example is not Arena.example:
        batches.append(played(arena, _example(arena), planned))
        episodes = batches[-1].episodes
        failed = failure("example player", "example()", episodes)
        text = f"mean reward {earned(arena.roles, episodes)}"
        findings.append(failed or finding("example player", True, text))
    if type(arena).oracle is not Arena.oracle:
        expected = _Expected()
        batches.append(played(arena, _oracle(arena, expected), planned))
        findings.append(_oracle_finding(arena, batches[-1].episodes, expected))
    return [
        *findings,
        *_roles(arena, batches),
        *_reward_sums(arena, batches, tree),
        *prompt_findings(arena, batches),
        *_idle(arena, planned),
        *([problem] if problem else ()),
        *(game_findings(arena, planned, tree) if isinstance(arena, GameArena) else ()),
        finding("time", None, f"{first.took_s / max(turns, 1) * 1e6:.3g} microseconds a turn"),
    ]


def _silent(*_: object) -> str:
    """A player that says nothing."""
    return ""


def _example(arena: Arena) -> Player:
    """A player that answers by ``example``, and at random where that says nothing."""

    def player(role: str, task: Task, seed: int, asked: Asked) -> str:
        given = arena.example(role, asked.prompt, random.Random(asked.sampling.seed))
        if given is None:
            return random_player(role, task, seed, asked)
        return with_thinking(asked, given)

    return player


def _oracle(arena: Arena, expected: _Expected) -> Player:
    """A player that answers by ``oracle``, and by ``example`` where that says nothing."""
    example = _example(arena)

    def player(role: str, task: Task, seed: int, asked: Asked) -> str:
        given = arena.oracle(role, asked.prompt, task, random.Random(asked.sampling.seed))
        if given is None:
            return example(role, task, seed, asked)
        said, reward = given
        expected[seed, asked.prompt, said] = reward
        return with_thinking(asked, said)

    return player


def _repeatable(arena: Arena, planned: Plays, together: Played) -> Finding:
    """Whether plays one after another are the same plays as all at once."""
    alone = played(arena, random_player, planned, at_once=1)
    pairs = list(zip(together.episodes, alone.episodes, strict=True))
    differ = [one.task.id for one, other in pairs if _story(one) != _story(other)]
    kept = together.stored != "{}"
    if differ and kept:
        text = f"{len(differ)} plays differ when played one by one; what t.store holds may be why"
        return finding("repeatable", None, text)
    bad = f"{len(differ)} plays differ when played again one by one, such as {differ[:1]}; " + (
        "take chance from t.rng or the task, and keep nothing of a play in the arena or t.task.data"
    )
    good = "plays at once and one after another are the same"
    return finding("repeatable", not differ, good, bad)


def _story(episode: Episode) -> Any:
    said = [[t.completion.text for t in rollout.turns] for rollout in episode.rollouts]
    return said, episode.rewards, episode.error is None, episode.void


def _oracle_finding(arena: Arena, episodes: Sequence[Episode], expected: _Expected) -> Finding:
    """Whether every seat that is answered by ``oracle`` alone earns what this said."""
    if failed := failure("oracle", "oracle()", episodes):
        return failed
    low: list[str] = []
    seats = 0
    for play in episodes:
        for episode in with_children([play]):
            for rollout in episode.rollouts:
                told = [expected.get((play.seed, *_asked(turn))) for turn in rollout.turns]
                if not told or None in told:
                    continue
                seats += 1
                got, best = episode.returns[rollout.role], told[-1] or 0.0
                if got < best - SAME_SUM:
                    place = f"{rollout.role} in task {episode.task.id!r}"
                    low.append(f"{place} earns {got:g} instead of {best:g}")
    text = f"mean reward {earned(arena.roles, episodes)}"
    if not seats:
        return finding("oracle", False, "", f"oracle() answers no seat's questions; {text}")
    wrong = [*low[:1], *_unlike(arena, "oracle", episodes)]
    bad = f"{len(low)} of {seats} seats earn less than oracle() says: {'; '.join(wrong)}; {text}"
    return finding("oracle", not wrong, f"{text}: what oracle() says, in {seats} seats", bad)


def _asked(turn: Turn) -> tuple[str, str]:
    """The question of a turn, and its answer."""
    return turn.messages[-1].content, split_thinking(turn.completion.text)[1]


def _unlike(arena: Arena, player: str, episodes: Sequence[Episode]) -> Iterator[str]:
    """Where a player earns something else than the reference number of its name says."""
    reference = reference_of(arena)
    for role in arena.roles:
        name = player if len(arena.roles) == 1 else f"{player}_{role}"
        if name not in reference:
            continue
        got = returns(role, episodes)
        if not got:
            yield f"{name} is {reference[name]:g}, but {role} is never asked"
            continue
        if abs(fmean(got) - reference[name]) > slack(got):
            yield f"{name} is {reference[name]:g}, but {role} gets {fmean(got):.3g}"


def _roles(arena: Arena, batches: Sequence[Played]) -> list[Finding]:
    """Whether every role is asked, and trained, in some play."""
    episodes = with_children([episode for batch in batches for episode in batch.episodes])
    rollouts = [r for e in episodes for r in e.rollouts if r.turns]
    asked = {rollout.role for rollout in rollouts}
    trained = {rollout.role for rollout in rollouts if rollout.policy}
    silent = [role for role in arena.roles if role not in asked]
    fixed = [role for role in arena.roles if role in asked - trained]
    bad = (
        f"never asked in any play: {', '.join(silent)}; if that is because a random text means "
        "nothing here, write example(self, role, prompt, rng)"
    )
    never = f"never trained: {', '.join(fixed)}; no play has a trainable seat of it"
    none = f"no role is trained in any play: every seat of {', '.join(fixed)} is not trainable"
    passed = False if not trained and asked else None if fixed else True
    return [
        finding("roles", not silent, "every role is asked", bad),
        finding(
            "training", passed, never if fixed else "every role that is asked is trained", none
        ),
    ]


def _reward_sums(
    arena: Arena, batches: Sequence[Played], tree: GameTree | None
) -> Iterator[Finding]:
    """Whether rewards sum to 0 or are identical, as declared; else what can be seen of them."""
    if len(arena.roles) == 1:
        return
    episodes = [episode for batch in batches for episode in batch.episodes]
    ended = [e for e in episodes if not e.error and not e.void and "forfeit" not in e.metrics]
    rows = [episode.returns for episode in ended] if tree is None else payoffs_of(tree)
    if not rows:
        yield finding("reward sums", None, "not checked: every play was forfeited or void")
        return
    sums = [sum(row.values()) for row in rows]
    spreads = [max(row.values()) - min(row.values()) for row in rows]
    what = "plays" if tree is None else "ends of the game"
    if arena.utility is None:
        text = f"the rewards of {len(rows)} {what} sum to {min(sums):g} to {max(sums):g}"
        if max(spreads) <= SAME_SUM:
            text = f"all roles get the same reward in {len(rows)} {what}; utility may declare it"
        elif max(sums) - min(sums) <= SAME_SUM:
            text = f"the rewards sum to {sums[0]:g} in all of {len(rows)} {what}"
        yield finding("reward sums", None, text)
        return
    errors = sums if arena.utility == "zero_sum" else spreads
    wrong = [dict(row) for row, by in zip(rows, errors, strict=True) if abs(by) > SAME_SUM]
    good = f"{arena.utility}, as declared, in {len(rows)} {what}"
    bad = f"utility is {arena.utility!r}, but {len(wrong)} {what} have rewards such as {wrong[:1]}"
    yield finding("reward sums", not wrong, good, bad)


def _idle(arena: Arena, planned: Plays) -> Iterator[Finding]:
    """The reward of a player that says nothing."""
    if arena.restrict_choices:
        yield finding("idle player", None, "only legal choices can be said in this arena")
        return
    episodes = played(arena, _silent, planned).episodes
    ended = [episode for episode in episodes if not episode.error]
    text = (
        f"mean reward {earned(arena.roles, ended)}"
        if ended
        else f"every play fails:\n{episodes[0].error}"
    )
    wrong = list(_unlike(arena, "idle", ended))
    declared = any(key.partition("_")[0] == "idle" for key in reference_of(arena))
    yield finding(
        "idle player", (not wrong if declared else None), text, f"{'; '.join(wrong)}; {text}"
    )
