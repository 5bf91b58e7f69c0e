"""Problems of one sum or difference in words, as a file for the arena math.

    uv run python examples/word_problems.py problems.jsonl
    uv run legos train --model HuggingFaceTB/SmolLM2-135M-Instruct --arena math \
      --play.options.data problems.jsonl --play.options.strict true --generation.max-tokens 64 \
      --steps 20

The file takes less than a second. Each row has a question and an answer; the arena holds a tenth of
them out. With ``strict``, only an answer in a box is rewarded, and this model boxes 0.016 of its
answers. After it imitates 200 boxes, 25 steps raise that from 0.70 to 1.00 in 15 to 26 minutes of
CPU time, and do not teach the sums (docs/log/chat_models.md has the commands).
"""

import argparse
import json
import random
from itertools import product
from pathlib import Path

NAMES = ("Ann", "Ben", "Carla", "Dan", "Eva", "Finn", "Gita", "Hugo")
THINGS = ("apples", "books", "coins", "eggs", "marbles", "pens", "shells", "stamps")
STORIES = {
    "{name} has {a} {things} and gets {b} more. How many {things} does {name} have now?": 1,
    "{name} has {a} {things}, and a friend has {b}. How many {things} do they have together?": 1,
    "{name} had {a} {things} and lost {b}. How many {things} are left?": -1,
    "There are {a} {things} on a table, and {name} takes {b}. How many {things} stay there?": -1,
}


def rows(rng: random.Random, number: int) -> list[dict[str, str]]:
    """Different problems in random order; the answers are 0 to 18."""
    every = list(product(STORIES, NAMES, THINGS, range(1, 10), range(1, 10)))
    made: list[dict[str, str]] = []
    for story, name, things, a, b in rng.sample(every, number):
        first, second = (max(a, b), min(a, b)) if STORIES[story] < 0 else (a, b)
        question = story.format(name=name, things=things, a=first, b=second)
        made.append({"question": question, "answer": str(first + STORIES[story] * second)})
    return made


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    lines = (json.dumps(row) for row in rows(random.Random(0), 2000))
    parser.parse_args().file.write_text("\n".join(lines) + "\n", encoding="utf-8")
