"""What the built-in model practises on: prompts with listed moves, each move equally right."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

import numpy as np
import numpy.typing as npt

from legos.builtin.vocabulary import ASSISTANT, BOS, END, TOKENS, USER, token_id

__all__ = ["Exercise", "Exercises", "collate", "made_up", "move_ids", "move_prompt", "prompt_ids"]

_IDS = {token: index for index, token in enumerate(TOKENS)}
_LOWER = "abcdefghijklmnopqrstuvwxyz"
_DIGITS = "0123456789"
_SINGLE = _DIGITS * 3 + _LOWER * 2 + _LOWER.upper() + "xo.#+-=*/<>!?@$%&"
_JOINTS = (" ", " ", " ", " ", ", ", ": ", ". ", "\n", " | ", "/", "=", " - ", ";")
_ENDINGS = (".", ".", "", "", "!", "?", ":", "\n")


@dataclass(frozen=True, slots=True)
class Exercise:
    """One prompt and the moves that are legal there."""

    view: str
    legal: tuple[str, ...]  # distinct, not empty, none with a space


@dataclass(frozen=True, slots=True, kw_only=True)
class Exercises:
    """Exercises as arrays: B rows of T tokens, of which the answer takes at most A; V tokens in all.

    Column ``j`` of an answer is predicted at ``positions[:, j]`` and should be drawn from
    ``targets[:, j]``; the last target is the token that ends the answer.
    """

    token_ids: npt.NDArray[np.int32]  # [B, T] prompt and one legal answer, padded on the right
    positions: npt.NDArray[np.int32]  # [B, A] where each answer token is predicted; 0 past the end
    targets: npt.NDArray[np.float32]  # [B, A, V] distribution of that token; all zero past the end


def move_prompt(view: str, legal: Sequence[str]) -> str:
    """Return the text a game's seat is asked with: what it sees, then its legal moves."""
    return f"{view}\nMoves: {' '.join(legal)}"


def prompt_ids(text: str) -> list[int]:
    """Return the tokens of one user message with the generation prompt, as the chat template has it."""
    return [_IDS[BOS], _IDS[USER], *move_ids(text), _IDS[END], _IDS[ASSISTANT]]


def move_ids(text: str) -> list[int]:
    """Return the tokens of text in printable ASCII and newlines; other characters have no one token."""
    return [_IDS[character] for character in text]


def made_up(rng: Random) -> Exercise:
    """Draw a position of a game that nobody has heard of: a short view and one to nine moves."""
    view = _view(rng)
    num_moves = rng.randint(1, 6) if rng.random() < 0.8 else rng.randint(1, 9)
    kind = rng.random()
    if kind < 0.1:  # neighbouring digits, as in piles and columns
        first = rng.randint(0, 10 - num_moves)
        return Exercise(view, tuple(_DIGITS[first : first + num_moves]))
    if kind < 0.5:
        return Exercise(view, _distinct(num_moves, lambda: rng.choice(_SINGLE)))
    if kind < 0.7:
        return Exercise(view, _distinct(num_moves, lambda: _word(rng)))
    if kind < 0.9:
        return Exercise(view, _distinct(num_moves, lambda: str(rng.randint(0, 99))))
    return Exercise(view, _distinct(num_moves, lambda: _piece(rng)))


def collate(exercises: Sequence[Exercise], rng: Random) -> Exercises:
    """Put exercises in arrays, each with one uniformly drawn legal answer.

    The targets are exact: at every token of the answer, the distribution of the next token when the
    move is uniform over the legal ones that begin with the tokens so far.
    """
    prompts = [prompt_ids(move_prompt(exercise.view, exercise.legal)) for exercise in exercises]
    spelled = [[(*move_ids(move), _IDS[END]) for move in exercise.legal] for exercise in exercises]
    answers = [rng.choice(options) for options in spelled]
    rows, width = len(exercises), max(len(answer) for answer in answers)
    longest = max(len(p) + len(a) for p, a in zip(prompts, answers, strict=True)) - 1
    token_ids = np.zeros((rows, longest), np.int32)
    positions = np.zeros((rows, width), np.int32)
    targets = np.zeros((rows, width, len(TOKENS)), np.float32)
    for row, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
        tokens = [*prompt, *answer[:-1]]
        token_ids[row, : len(tokens)] = tokens
        for column in range(len(answer)):
            positions[row, column] = len(prompt) - 1 + column
            rivals = [move for move in spelled[row] if move[:column] == answer[:column]]
            for move in rivals:
                targets[row, column, move[column]] += 1.0 / len(rivals)
    return Exercises(token_ids=token_ids, positions=positions, targets=targets)


def _view(rng: Random) -> str:
    pieces: list[str] = []
    for _ in range(rng.randint(1, 6)):
        pieces += (_piece(rng), rng.choice(_JOINTS))
    return "".join(pieces[:-1]) + rng.choice(_ENDINGS)


def _piece(rng: Random) -> str:
    kind = rng.random()
    if kind < 0.5:
        return _word(rng)
    if kind < 0.75:
        return str(rng.randint(0, 999 if rng.random() < 0.2 else 29))
    return "".join(rng.choice(_SINGLE) for _ in range(1 if kind < 0.9 else rng.randint(2, 4)))


def _word(rng: Random) -> str:
    word = "".join(rng.choice(_LOWER) for _ in range(rng.randint(2, 7)))
    return word.capitalize() if rng.random() < 0.3 else word


def _distinct(num: int, draw: Callable[[], str]) -> tuple[str, ...]:
    found: dict[str, None] = {}
    while len(found) < num:
        found[draw()] = None
    return tuple(found)
