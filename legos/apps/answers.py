"""``legos arenas answers``: scripted answers of an arena, as rows for ``legos imitate``."""

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from legos.arena.arena import Arena
from legos.arena.cursor import plays_from
from legos.chat.fields import message_fields
from legos.chat.tools import arguments_text
from legos.checks.players import failure, played
from legos.config.schema import PlayConfig
from legos.credit.means import with_children
from legos.errors import ArenaError, ConfigError
from legos.fakes.client import Asked, ScriptedClient
from legos.files.atomic import write_file
from legos.records.episode import Episode, Task
from legos.records.message import Message
from legos.wiring.arena import make_arena

By = Literal["oracle", "example"]
"""Right answers, or answers that have the right form and any content."""


def write_answers(
    name: str, to: Path, *, by: By, settings: PlayConfig, plays: int, seed: int
) -> int:
    """Write a row with ``prompt`` and ``completion`` for each answer of scripted plays.

    The tasks are those that are trained on, never those that are held out.

    Args:
        name: name of the arena, as ``--arena`` takes it.
        to: the .jsonl file.
        by: the method of the arena that gives the answers; where there are choices and it gives
            none, a choice at random.
        settings: settings of the arena.
        plays: number of plays.
        seed: seed of tasks, plays and answers.

    Returns:
        The number of rows.

    Raises:
        ArenaError: the arena is not found, gives no such answer, or a play fails.
        ConfigError: the file has another ending.
    """
    if to.suffix != ".jsonl":
        raise ConfigError(f"--to is {to}; expected the name of a .jsonl file")
    arena = make_arena(name, ScriptedClient([]), play=settings)

    def player(role: str, task: Task, _: int, asked: Asked) -> str:
        return _answer(arena, by, role, task, asked)

    episodes = played(arena, player, plays_from(arena, seed, plays, held_out=False)).episodes
    if failed := failure("answers", f"{by}()", episodes):
        raise ArenaError(failed.text)
    rows = [row for episode in episodes for row in _rows(episode)]
    write_file(to, "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows))
    return len(rows)


def _answer(arena: Arena, by: By, role: str, task: Task, asked: Asked) -> str:
    """What a seat says."""
    rng = random.Random(asked.sampling.seed)
    said: str | None = None
    if by == "example":
        said = arena.example(role, asked.prompt, rng)
    elif right := arena.oracle(role, asked.prompt, task, rng):
        said = right[0]
    if said is None and asked.sampling.choices:
        said = rng.choice(asked.sampling.choices)
    if said is None:
        raise ArenaError(
            f"{arena.name} has no {by} answer of {role} to {asked.prompt!r:.80}; write "
            f"{by}() in the arena, or ask for another: --by oracle, --by example"
        )
    return said


def _rows(episode: Episode) -> Iterator[dict[str, object]]:
    """The answers of a play, and of those it spawned."""
    for play in with_children([episode]):
        for turn in (turn for rollout in play.rollouts for turn in rollout.turns):
            said = turn.completion
            answer = Message("assistant", said.text, said.tool_calls)
            row: dict[str, object] = {
                "prompt": [message_fields(each, arguments_text) for each in turn.messages],
                "completion": [message_fields(answer, arguments_text)]
                if said.tool_calls
                else said.text,
            }
            if turn.sampling is not None and turn.sampling.tools:
                row["tools"] = json.loads(turn.sampling.tools)
            yield row
