"""What a policy does in the same positions and tasks over the steps of a run."""

from collections import defaultdict
from collections.abc import Mapping
from math import exp, fsum
from typing import Any

from msgspec import UNSET

from legos.arena.game import split_position
from legos.page.exact import Moves, Solved
from legos.page.play_row import Row
from legos.run.episodes import StoredEpisode

__all__ = ["Positions", "answers_over_steps", "optimal_moves"]

_MOST_MOVES = 16  # of a position that is shown
_MOST_TASKS = 30
_MOST_STEPS = 8  # answers of a task


class Positions:
    """The probabilities of sampled moves, by role and position."""

    def __init__(self) -> None:
        self._found: defaultdict[tuple[str, str, str], list[tuple[int, str, float]]] = defaultdict(
            list
        )

    def add(self, episode: StoredEpisode) -> None:
        """Take the moves of a play that trained seats have sampled."""
        if episode.step is UNSET:
            return
        for seat in episode.seats:
            for turn in seat.turns:
                known = seat.policy and turn.move and turn.logprobs
                if known and 1 < len(turn.choices) <= _MOST_MOVES:
                    key = episode.arena, seat.role, turn.asked
                    moved = episode.step, turn.move or "", exp(fsum(turn.logprobs))
                    self._found[key].append(moved)

    def most_played(self, number: int) -> list[dict[str, Any]]:
        """The positions with most moves, each with the mean probability of its moves by step."""
        ordered = sorted(self._found.items(), key=lambda each: (-len(each[1]), each[0]))
        return [
            {
                "arena": arena,
                "role": role,
                "asked": asked,
                "count": len(moves),
                "moves": _by_step(moves),
            }
            for (arena, role, asked), moves in ordered[:number]
        ]


def _by_step(moves: list[tuple[int, str, float]]) -> dict[str, list[tuple[int, float]]]:
    """Move -> steps, and the mean probability of the move in each."""
    found: defaultdict[str, defaultdict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for step, move, probability in moves:
        found[move][step].append(probability)
    return {
        move: [(step, fsum(each) / len(each)) for step, each in sorted(steps.items())]
        for move, steps in sorted(found.items())
    }


def optimal_moves(position: Mapping[str, Any], solved: Solved | str) -> Moves | None:
    """The optimal probability of each move of a position; None: the game is not solved."""
    view = split_position(position["asked"])
    if view is None or isinstance(solved, str):
        return None
    return solved.get((position["role"], view[0]))


def answers_over_steps(rows: list[Row]) -> list[dict[str, Any]]:
    """The tasks that were played in most steps, with an answer from some of these.

    Args:
        rows: plays in their order.
    """
    tasks: defaultdict[tuple[str, str], dict[int, Row]] = defaultdict(dict)
    for row in rows:
        if row.step is not None and row.answer:
            tasks[row.arena, row.task].setdefault(row.step, row)
    ordered = sorted(tasks.items(), key=lambda each: (-len(each[1]), each[0]))
    return [
        {
            "task": task,
            "asked": next(iter(steps.values())).asked,
            "answers": [
                {"step": step, "number": row.number, "answer": row.answer, "rewards": row.rewards}
                for step, row in _some(steps)
            ],
        }
        for (_, task), steps in ordered[:_MOST_TASKS]
        if len(steps) > 1
    ]


def _some(steps: dict[int, Row]) -> list[tuple[int, Row]]:
    """The first and the last step, and some between them."""
    found = sorted(steps.items())
    if len(found) <= _MOST_STEPS:
        return found
    last = len(found) - 1
    return [found[round(index * last / (_MOST_STEPS - 1))] for index in range(_MOST_STEPS)]
