"""A whole play of every arena, compared with the stored one, which the pages show too.

After a change of an arena on purpose, `WRITE_TRANSCRIPTS=1 pytest tests/arenas/test_transcripts.py`
writes the plays anew, also in `docs/arenas/games.md` and `docs/arenas/talk.md`; read the
difference before it is committed.
"""

import asyncio
import json
import os
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from legos import Arena, Episode, Game, Seat, Task, make_arena
from legos.apps.transcript import ending, heading, turns_of
from legos.arena.cursor import plays_from
from legos.arena.matchmaker import ArenaSeats
from legos.arena.registry import known_arenas
from legos.config.schema import PlayConfig
from legos.fakes import Asked, ScriptedClient
from legos.play.step import play_all
from legos.protocols import Seating
from legos.run.episodes import stored_episode

FOLDER = Path(__file__).parent / "transcripts"
DOCS = Path(__file__).parents[2] / "docs" / "arenas"
NAMES = [name for name in known_arenas() if name != "programs"]  # which plays over HTTP
TEXT = "The mast of the ship was built by Ana Ruiz in the harbour of Lima, from a single oak."
QUESTIONS = [
    {
        "question": "A box holds 12 eggs. How many do 4 boxes hold?",
        "answer": "4 * 12 = 48\n#### 48",
    },
    {"question": "Half of 18 birds fly away. How many stay?", "answer": "18 / 2 = 9\n#### 9"},
]
SEEDS = {"goofspiel": 7, "kuhn": 4, "leduc": 4, "nim": 5, "pig": 1, "tinyhanabi": 7}
"""Seeds of the plays; 3 for the others."""
SAID = {  # arena -> what its seats say, in order; the others give right answers or random moves
    "absolute_zero": (
        "PROGRAM: keep odd | mul 3 INPUT: [5, 2, 7, 1]",
        "The odd numbers are 5, 7, 1. [15, 21, 3]",
        "[15, 6, 21, 3]",
    ),
    "duel": (
        "The side in the shade grows faster, so the stem bends to the light.",
        "They see it.",
        "The first answer names the reason. [A]",
        "The second answer names the reason. [B]",
    ),
    "math": ("Half of 18 is 9, so 9 are left: \\boxed{9}",),
    "negotiation": (
        "I have wood to spare. [offer 4 wood for 4 gold]",
        "[offer 8 gold for 8 wood]",
        "[accept]",
        "[end]",
    ),
    "refine": (
        "The old house has a blue door.",
        "It has 7 words, so write more, and use the word salt.",
        "The old house by the sea has a blue door with salt on it.",
    ),
    "spice": (
        "QUESTION: Who built the mast of the ship? ANSWER: Ana Ruiz",
        "I have heard of her.\nAna Ruiz",
        "I do not know.\nNobody",
    ),
}


class Answers(ArenaSeats):
    """Says what is written here in every seat, or else right answers, or random moves."""

    def __init__(self, said: Sequence[str]) -> None:
        self._said = iter(said)

    def seats(self, arena: Seating, task: Task, seed: int) -> Mapping[str, Seat]:
        assert isinstance(arena, Arena)

        def seated(seat: Seat) -> Seat:
            def answer(asked: Asked) -> str:
                rng = random.Random(asked.sampling.seed)
                if said := next(self._said, ""):
                    return said
                if asked.sampling.choices:
                    return rng.choice(asked.sampling.choices)
                right = arena.oracle(seat.role, asked.prompt, task, rng)
                assert right is not None, "the play has more questions than answers"
                return right[0]

            return replace(seat, client=ScriptedClient(answer))

        return {role: seated(seat) for role, seat in super().seats(arena, task, seed).items()}


def made(name: str, folder: Path) -> Arena:
    """The arena with its own answers in every seat."""
    (folder / "text.txt").write_text(TEXT)
    (folder / "questions.jsonl").write_text("\n".join(map(json.dumps, QUESTIONS)))
    options: dict[str, dict[str, Any]] = {
        "absolute_zero": {"answers": 2},
        "math": {"data": str(folder / "questions.jsonl"), "held_out": 0.0},
        "spice": {"texts": str(folder), "answers": 2, "held_out": 0.0},
        "zorplex": {"kinds": ["multi_step"]},
    }
    arena = make_arena(name, ScriptedClient([]), play=PlayConfig(options=options.get(name, {})))
    arena.matchmaker = Answers(SAID.get(name, ()))
    return arena


def lines(episode: Episode) -> Iterator[str]:
    """A play and those that it spawned."""
    stored = stored_episode(episode)
    yield heading(stored)
    yield from turns_of(stored)
    yield ending(stored)
    if parts := stored.reward_parts:
        yield f"parts: {parts}"
    if metrics := stored.metrics:
        yield f"metrics: {metrics}"
    for child in episode.children:
        yield from lines(child)


def shown(name: str) -> tuple[Path, re.Match[str]]:
    """The page of an arena, and the place of the transcript in its section."""
    page = DOCS / ("games.md" if issubclass(known_arenas()[name], Game) else "talk.md")
    section = re.search(rf"^## {name}\n.*?(?=^## |\Z)", page.read_text(), re.M | re.S)
    assert section is not None, f"{page.name} has no section {name}"
    block = re.compile(r"^A whole play:\n\n((?:    .*\n|\n(?=    ))+)", re.M)
    found = block.search(page.read_text(), section.start(), section.end())
    assert found is not None, f"{page.name} shows no whole play of {name}"
    return page, found


@pytest.mark.parametrize("name", NAMES)
def test_a_whole_play_is_the_stored_one_and_that_of_the_page(name: str, tmp_path: Path) -> None:
    arena = made(name, tmp_path)
    [play] = plays_from(arena, SEEDS.get(name, 3), 1, held_out=False)
    [episode] = asyncio.run(play_all(arena, [play], asyncio.Semaphore(1)))
    assert episode.error is None
    text = "\n".join(lines(episode)).replace(str(tmp_path), "FOLDER") + "\n"
    indented = "".join(f"    {line}".rstrip() + "\n" for line in text.splitlines())
    file, (page, found) = FOLDER / f"{name}.txt", shown(name)
    if os.environ.get("WRITE_TRANSCRIPTS"):
        file.write_text(text)
        whole = page.read_text()
        page.write_text(whole[: found.start(1)] + indented + whole[found.end(1) :])
    assert text == file.read_text()
    assert indented == shown(name)[1][1]
