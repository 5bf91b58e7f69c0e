"""Pretraining data of the built-in model: invented games, whose legal moves are all right."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

import numpy as np
import numpy.typing as npt
from vocabulary import ASSISTANT, BOS, END, PAD, TOKENS

from legos.records.message import Message

__all__ = ["Exercise", "Exercises", "collate", "echo", "made_up", "prompt_ids", "text_ids"]

_IDS = {token: index for index, token in enumerate(TOKENS)}
_DIGITS = "0123456789"
_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_FREQUENT = "aeilnorst"  # words of these letters share pairs of letters, as real words do
_MARKS = "xo.#+-=*/<>!?@$%&"
_SINGLES = _DIGITS * 3 + _LETTERS * 2 + _LETTERS.upper() + _MARKS
_WORDLIST = """
accept attack bet bid black blue buy call card check column cooperate cut deal defect defend discard
double down draw drop east fold give go green guess hand heads high hit hold keep king last left
lose low move no north odd offer open paper pass pile play player points queen raise red reject
right rival rock roll round row scissors score sell share skip south stand stay steal stop swap
tails take turn up wait west white win yes you your
"""
_WORDS = _WORDLIST.split()
_JOINTS = (" ", " ", " ", " ", ", ", ": ", ". ", "\n", " | ", "/", "=", " - ", ";")
_ENDINGS = (".", ".", "", "", "!", "?", ":", "\n")


@dataclass(frozen=True, slots=True)
class Exercise:
    """A chat and its right answers; each is as likely as it is frequent among them."""

    chat: tuple[Message, ...]
    answers: tuple[str, ...]  # at least one


@dataclass(frozen=True, slots=True, kw_only=True)
class Exercises:
    """Exercises as arrays: B rows of T tokens, answers of up to A tokens, vocabulary V.

    Token ``j`` of an answer is predicted at position ``starts + j``; its target distribution is
    ``targets[:, j]``. The last token of an answer is the end token.
    """

    token_ids: npt.NDArray[np.int32]  # [B, T] a chat and one right answer, padded on the right
    starts: npt.NDArray[np.int32]  # [B] the last position of each prompt
    targets: npt.NDArray[
        np.float32
    ]  # [B, A, V] target distributions; zero after the end of the answer


def prompt_ids(chat: Sequence[Message]) -> list[int]:
    """Token ids of the prompt of a chat, as the chat template renders it."""
    ids = [_IDS[BOS]]
    for message in chat:
        ids += (_IDS[f"<|{message.role}|>"], *text_ids(message.content), _IDS[END])
    return [*ids, _IDS[ASSISTANT]]


def text_ids(text: str) -> list[int]:
    """Token ids of a text of printable ASCII and newlines."""
    return [_IDS[character] for character in text]


def echo(rng: Random, *, length: int) -> Exercise:
    """Draw a random text of ``length`` characters; the only right answer is the same text.

    Copying has a target at every token, so it is learned many times faster than moves, and the
    attention that finds the next character of a text also finds the next character of a move.
    """
    text = ""
    while len(text) < length:
        text += _piece(rng) + " "
    return Exercise((Message("user", text[:length]),), (text[:length],))


def made_up(rng: Random) -> Exercise:
    """Draw a position of an invented game: a short view and one to nine moves.

    Some have a system message or an earlier move. A few do not ask for a move; there, every word of
    the text is a right answer, so that answers to free text end too.
    """
    kind = rng.random()
    if kind < 0.04:
        words = _distinct(rng.randint(1, 6), lambda: _piece(rng))
        return Exercise((Message("user", " ".join(words)),), words)
    prompt, moves = _position(rng)
    chat = (Message("user", prompt),)
    if kind < 0.12:
        chat = (Message("system", _view(rng, ())), *chat)
    elif kind < 0.2:
        before, legal = _position(rng)
        chat = (Message("user", before), Message("assistant", rng.choice(legal)), *chat)
    return Exercise(chat, moves)


def collate(exercises: Sequence[Exercise], rng: Random) -> Exercises:
    """Put exercises into arrays, each with one right answer drawn uniformly.

    The targets are exact: the distribution of each token of the answer, given the tokens before it,
    when the answer is drawn like that.
    """
    prompts = [prompt_ids(exercise.chat) for exercise in exercises]
    right = [[(*text_ids(text), _IDS[END]) for text in exercise.answers] for exercise in exercises]
    drawn = [rng.choice(options) for options in right]
    longest = max(len(p) + len(a) for p, a in zip(prompts, drawn, strict=True)) - 1
    token_ids = np.full((len(exercises), longest), _IDS[PAD], np.int32)
    targets = np.zeros((len(exercises), max(map(len, drawn)), len(TOKENS)), np.float32)
    for row, (prompt, answer) in enumerate(zip(prompts, drawn, strict=True)):
        tokens = (*prompt, *answer[:-1])
        token_ids[row, : len(tokens)] = tokens
        for column in range(len(answer)):
            possible = [other for other in right[row] if other[:column] == answer[:column]]
            for other in possible:
                targets[row, column, other[column]] += 1.0 / len(possible)
    starts = np.array([len(prompt) - 1 for prompt in prompts], np.int32)
    return Exercises(token_ids=token_ids, starts=starts, targets=targets)


def _position(rng: Random) -> tuple[str, tuple[str, ...]]:
    moves = _moves(rng)
    mentioned = rng.sample(moves, min(len(moves), rng.randint(1, 2))) if rng.random() < 0.3 else ()
    return f"{_view(rng, mentioned)}\nMoves: {' '.join(moves)}", moves


def _moves(rng: Random) -> tuple[str, ...]:
    num = rng.randint(1, 6) if rng.random() < 0.8 else rng.randint(1, 9)
    kind = rng.random()
    if kind < 0.1:  # consecutive digits, as in piles and columns
        first = rng.randint(0, 10 - num)
        return tuple(_DIGITS[first : first + num])
    if kind < 0.45:
        return _distinct(num, lambda: rng.choice(_SINGLES))
    if kind < 0.65:
        return _distinct(num, lambda: _word(rng))
    if kind < 0.8:
        return _distinct(num, lambda: str(rng.randint(0, 99)))
    if kind < 0.9:  # squares of a board
        return _distinct(num, lambda: rng.choice(_LETTERS[:8]) + rng.choice(_DIGITS))
    return _distinct(num, lambda: _piece(rng))


def _view(rng: Random, mentioned: Sequence[str]) -> str:
    if rng.random() < 0.15:
        return _board(rng)
    pieces = [*mentioned, *(_piece(rng) for _ in range(rng.randint(1, 6 - len(mentioned))))]
    rng.shuffle(pieces)
    text = "".join(piece + rng.choice(_JOINTS) for piece in pieces[:-1])
    return text + pieces[-1] + rng.choice(_ENDINGS)


def _board(rng: Random) -> str:
    cells = rng.sample(_SINGLES, 3) + list(rng.choice((".", "-", _DIGITS)))
    rows, columns, gap = rng.randint(1, 4), rng.randint(2, 5), rng.choice(("", " "))
    return "\n".join(gap.join(rng.choice(cells) for _ in range(columns)) for _ in range(rows))


def _piece(rng: Random) -> str:
    kind = rng.random()
    if kind < 0.55:
        return _word(rng)
    if kind < 0.8:
        return str(rng.randint(0, 999 if rng.random() < 0.2 else 29))
    return "".join(rng.choice(_SINGLES) for _ in range(1 if kind < 0.95 else rng.randint(2, 4)))


def _word(rng: Random) -> str:
    kind = rng.random()
    if kind < 0.4:
        word = rng.choice(_WORDS)
    else:
        letters = _LETTERS if kind < 0.7 else _FREQUENT
        word = "".join(rng.choice(letters) for _ in range(rng.randint(2, 7)))
    return word.capitalize() if rng.random() < 0.25 else word


def _distinct(num: int, draw: Callable[[], str]) -> tuple[str, ...]:
    found: dict[str, None] = {}
    while len(found) < num:
        found[draw()] = None
    return tuple(found)
