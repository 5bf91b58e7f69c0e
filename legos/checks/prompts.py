"""Which seat reads what of another one: what prompts hold, checked on finished plays."""

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from legos.arena.arena import Arena
from legos.checks.players import Finding, Played, finding
from legos.credit.means import with_children
from legos.errors import user_code
from legos.records.episode import Episode, Turn

_MARK = re.compile(r"\b(?:said|thought)-[0-9a-f]{16}\b")  # what random players say and think
THOUGHT = "thought"
NO_THINKING = "not checked: the game writes the prompts, or only choices can be said"


class _Place(NamedTuple):
    """A seat of a play."""

    play: int  # number of the play
    episode: int  # number of the episode in it: 0, or a spawned one
    role: str
    task: str


def prompt_findings(arena: Arena, batches: Sequence[Played]) -> list[Finding]:
    """Check the prompts of plays of scripted players, who say texts that only they know.

    Args:
        arena: the arena.
        batches: the plays of one kind of player each, spawned ones included.

    Returns:
        Findings about thinking, about free answers, and about the texts that ``private`` names.
    """
    read = [each for batch in batches for each in _readings(batch)]
    thoughts, strange, answers = (
        [text for what, text in read if what == kind] for kind in (THOUGHT, "strange", "answer")
    )
    turns = (r.turns for b in batches for e in with_children(b.episodes) for r in e.rollouts)
    thinks = any(f"{THOUGHT}-" in turn.completion.text for each in turns for turn in each)
    return [
        finding(
            "thinking",
            not thoughts if thinks else None,
            "no seat reads the thinking of another one" if thinks else NO_THINKING,
            f"{'; '.join(thoughts[:1])}: give other seats reply.answer, not reply.text",
        ),
        finding(
            "secrets",
            False if strange else None,
            "; ".join(sorted(set(answers))) or "no role reads a free answer of another one",
            "; ".join(strange[:1]),
        ),
        *_private(arena, batches),
    ]


def _readings(batch: Played) -> Iterator[tuple[str, str]]:
    """What seats read of each other in plays: its kind, and a sentence that says who reads what."""
    turns = [
        (place, turn)
        for number, episode in enumerate(batch.episodes)
        for place, turn in _turns(number, episode)
    ]
    authors = {mark: place for place, turn in turns for mark in _MARK.findall(turn.completion.text)}
    stored = set(_MARK.findall(batch.stored))
    for reader, turn in turns:
        for mark in sorted(set(_MARK.findall(_prompt(turn)))):
            author = authors.get(mark)  # None: a seat of the plays of an earlier batch
            if author == reader:
                continue
            who = "somebody" if author is None else repr(author.role)
            where = f"(task {reader.task!r})"
            if mark.startswith(THOUGHT):
                yield THOUGHT, f"{reader.role!r} reads what {who} thinks {where}"
            elif author is not None and (author.play == reader.play or mark in stored):
                yield "answer", f"{reader.role} reads the answers of {author.role}"
            else:
                text = f"{reader.role!r} reads what {who} answered in another play {where}"
                yield "strange", text


def _private(arena: Arena, batches: Sequence[Played]) -> Iterator[Finding]:
    """Whether texts that only one role may read stay out of the prompts of the others."""
    number, found = 0, list[str]()
    for episode in (episode for batch in batches for episode in batch.episodes):
        with user_code(f"private() of arena {arena.name!r}"):
            for owner, given in arena.private(episode.task).items():
                texts = (given,) if isinstance(given, str) else given
                number += len(texts)
                found += [
                    f"{place.role!r} reads {text[:60]!r} of {owner!r} (task {place.task!r})"
                    for place, turn in _turns(0, episode)
                    for text in texts
                    if place.role != owner and text in _prompt(turn)
                ]
    if number:
        good = f"none of the {number} texts of private() is in a prompt of another role"
        yield finding("private", not found, good, "; ".join(found[:1]))


def _turns(play: int, episode: Episode) -> Iterator[tuple[_Place, Turn]]:
    """The turns of a play and of those that it spawned."""
    for index, each in enumerate(with_children([episode])):
        for rollout in each.rollouts:
            place = _Place(play, index, rollout.role, each.task.id)
            yield from ((place, turn) for turn in rollout.turns)


def _prompt(turn: Turn) -> str:
    """What the seat reads that it has not said itself."""
    return "\n".join(m.content for m in turn.messages if m.role != "assistant")
