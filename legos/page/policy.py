"""What a policy does in the same positions and tasks over the steps of a run."""

from typing import Any

import numpy as np

from legos.page.play_search import row_values
from legos.run.index.plays import PlayIndex

_MOST_TASKS = 30
_MOST_STEPS = 8  # answers of a task


def answers_over_steps(index: PlayIndex) -> list[dict[str, Any]]:
    """The tasks that were played in most steps, with an answer from some of these."""
    found: list[dict[str, Any]] = []
    for arena, task in index.most_played_tasks(_MOST_TASKS):
        numbers = index.first_of_steps(arena, task)
        spread = np.linspace(0, len(numbers) - 1, min(len(numbers), _MOST_STEPS)).round()
        some = [numbers[int(at)] for at in spread]
        rows = [row_values(play) for play in index.known(some)]
        kept = ("step", "number", "answer", "rewards")
        answers = [{name: row[name] for name in kept} for row in rows if row["answer"]]
        if answers:
            found.append({"task": task, "asked": rows[0]["asked"], "answers": answers})
    return found
