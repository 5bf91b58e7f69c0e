"""A whole play of arenas of tasks and talk, compared with the stored one.

After a change of an arena on purpose, `WRITE_TRANSCRIPTS=1 pytest tests/arenas/test_transcripts.py`
writes the plays anew; read the difference before it is committed.
"""

import asyncio
import os
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from legos import Arena, Episode, Seat, make_arena
from legos.apps.transcript import ending, heading, turns_of
from legos.arena.cursor import plays_from
from legos.arena.matchmaker import Cast
from legos.arena.step import play_all
from legos.config.schema import PlayConfig
from legos.run.stored import episode_to_json
from legos.testing import Asked, ScriptedClient

FOLDER = Path(__file__).parent / "transcripts"
NAMES = ("zorplex", "negotiation", "refine", "duel", "absolute_zero", "spice")
TEXT = "The mast of the ship was built by Ana Ruiz in the harbour of Lima, from a single oak."
QUESTIONS = "".join(f'{{"question": "What is a {word}?"}}\n' for word in ("mast", "sail", "deck"))


def made(name: str, folder: Path) -> Arena:
    """The arena with its own example answers in every seat."""
    (folder / "text.txt").write_text(TEXT)
    (folder / "questions.jsonl").write_text(QUESTIONS)
    options = {
        "absolute_zero": {"answers": 2},
        "duel": {"data": str(folder / "questions.jsonl")},
        "spice": {"texts": str(folder), "answers": 2, "held_out": 0.0},
    }
    arena = make_arena(name, ScriptedClient([]), play=PlayConfig(options=options.get(name, {})))

    def seated(seat: Seat, _: int) -> Seat:
        def answer(asked: Asked) -> str:
            rng = random.Random(asked.sampling.seed)
            said = arena.example(seat.role, asked.prompt, rng)
            return f"A text of {seat.role}." if said is None else said

        return replace(seat, client=ScriptedClient(answer))

    arena.matchmaker = Cast(seated)
    return arena


def lines(episode: Episode) -> Iterator[str]:
    """A play and those that it spawned."""
    stored = episode_to_json(episode)
    yield heading(stored)
    yield from turns_of(stored)
    yield ending(stored)
    parts = stored["reward_parts"]
    yield f"parts: {parts}, metrics: {stored['metrics']}"
    for child in episode.children:
        yield from lines(child)


@pytest.mark.parametrize("name", NAMES)
def test_a_whole_play_is_the_stored_one(name: str, tmp_path: Path) -> None:
    arena = made(name, tmp_path)
    [play] = plays_from(arena, 3, 1, held_out=False)
    [episode] = asyncio.run(play_all(arena, [play], asyncio.Semaphore(1)))
    assert episode.error is None
    text = "\n".join(lines(episode)).replace(str(tmp_path), "FOLDER") + "\n"
    file = FOLDER / f"{name}.txt"
    if os.environ.get("WRITE_TRANSCRIPTS"):
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
    assert text == file.read_text()
