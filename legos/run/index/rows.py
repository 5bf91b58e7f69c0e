"""What the index keeps of plays, read from their lines: rows of its tables, and their texts."""

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from math import exp, fsum
from operator import attrgetter
from typing import NamedTuple

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from legos.chat.reply import split_thinking

__all__ = ["IndexedPlay", "IndexedSeat", "NewRows", "Position"]

SHOWN = 160  # characters of a question and of an answer
MOST_MOVES = 16  # of a position whose moves are counted


class _Trained(Struct, gc=False):
    advantage: float | None = None


class _Turn(Struct, gc=False):
    said: str
    asked: str
    order: int = 0
    choices: Raw = Raw(b"[]")
    move: str | None = None
    token_ids: Raw = Raw(b"[]")
    logprobs: Raw = Raw(b"[]")
    reward: float | None = None
    asked_at: float = 0.0
    answered_at: float = 0.0
    trained: _Trained | UnsetType = UNSET


class _Seat(Struct):
    role: str
    seat: str
    policy: str | None
    turns: list[_Turn]

    @property
    def advantage(self) -> float | None:
        """That of the first turn that has one."""
        for turn in self.turns:
            if turn.trained and turn.trained.advantage is not None:
                return turn.trained.advantage
        return None


class _Play(Struct):
    arena: str
    task: str
    rewards: dict[str, float | None]
    error: str | None
    void: bool
    notes: list[str]
    seats: list[_Seat]
    children: list["_Play"]
    seed: Raw = Raw(b"0")  # it may have more than 64 bits
    level: str | None = None
    failure: str | None = None
    step: int | UnsetType = UNSET
    evaluation: bool | UnsetType = UNSET

    @property
    def failed(self) -> str | None:
        """Why it counts for nothing, in a word."""
        if self.error is not None:
            return self.failure or "failed"
        return "void" if self.void else None


_order, _asked_at, _answered_at = map(attrgetter, ("order", "asked_at", "answered_at"))
_decoder = msgspec.json.Decoder(_Play)
_choices = msgspec.json.Decoder(list[str])
_logprobs = msgspec.json.Decoder(list[float])


class IndexedSeat(NamedTuple):
    """A seat of a play."""

    role: str
    seat: str  # who sat there
    policy: str | None  # that its samples train; None: none
    reward: float | None  # return; None: there is none
    advantage: float | None  # of its first turn that has one; None: nothing is known


class IndexedPlay(NamedTuple):
    """What the index knows of a play; spawned plays are counted with it."""

    number: int
    step: int | None
    evaluation: bool
    arena: str
    task: str
    seed: str  # of the task; digits, because it may have more than 64 bits
    level: str | None
    failure: str | None  # "failed", "timed_out", "endpoint" or "void"; None: it ended
    tokens: int  # sampled ones
    turns: int
    started: float  # first question, seconds since 1970; 0: unknown
    ended: float  # last answer
    asked: str  # beginning of the first question
    answer: str  # beginning of the last answer, without what was thought before it
    seats: Sequence[IndexedSeat]


Position = tuple[str, str, str]
"""Arena, role, and the question that shows the position."""


class NewRows:
    """The rows of some plays, for each table of the index.

    Attributes:
        plays: one row for each play.
        texts: number and text of each play.
        damaged: numbers of lines that are no plays.
        moves: position -> (step, move) -> probabilities with which trained seats sampled the move.
    """

    def __init__(self) -> None:
        self.plays: list[IndexedPlay] = []
        self.texts: list[tuple[int, str]] = []
        self.damaged: list[int] = []
        self.moves: defaultdict[Position, defaultdict[tuple[int, str], list[float]]] = defaultdict(
            lambda: defaultdict(list)
        )

    def add(self, number: int, line: bytes) -> None:
        """Add the rows of a line."""
        try:
            play = _parsed(line)
        except (ValueError, RecursionError):
            self.damaged.append(number)
            return
        turns = _turns(play)
        said = turns[-1].said if turns else ""
        self.plays.append(
            IndexedPlay(
                number=number,
                step=None if play.step is UNSET else play.step,
                evaluation=play.evaluation is True,
                arena=play.arena,
                task=play.task,
                seed=bytes(play.seed).decode(),
                level=play.level,
                failure=play.failed,
                tokens=sum([_length(turn.token_ids) for turn in turns]),
                turns=len(turns),
                started=min(map(_asked_at, turns), default=0.0),
                ended=max(map(_answered_at, turns), default=0.0),
                asked=turns[0].asked[:SHOWN] if turns else "",
                answer=(split_thinking(said)[1] or said)[:SHOWN],
                seats=[*_seats(play)],
            )
        )
        self.texts.append((number, "\n".join(dict.fromkeys(_texts(play)))))
        if play.step is not UNSET:
            self._add_moves(play.step, play)

    def _add_moves(self, step: int, play: _Play) -> None:
        for seat in play.seats:
            for turn in seat.turns if seat.policy else ():
                if turn.move is None or not 1 < len(_choices.decode(turn.choices)) <= MOST_MOVES:
                    continue
                if logprobs := _logprobs.decode(turn.logprobs):
                    position = play.arena, seat.role, turn.asked
                    self.moves[position][step, turn.move].append(exp(fsum(logprobs)))


def _parsed(line: bytes) -> _Play:
    """A play; ValueError, RecursionError: the line is none."""
    try:
        return _decoder.decode(line)
    except ValueError:  # a line may have NaN, or half a surrogate pair
        plain = json.dumps(json.loads(line, parse_constant=lambda _: None), ensure_ascii=False)
        return _decoder.decode(plain.encode(errors="replace"))


def _turns(play: _Play) -> list[_Turn]:
    """The turns of a play in the order of the answers, then those of the plays it spawned."""
    turns = sorted([turn for seat in play.seats for turn in seat.turns], key=_order)
    for child in play.children:
        turns += _turns(child)
    return turns


def _seats(play: _Play) -> Iterator[IndexedSeat]:
    """The seats of a play, then those of the plays it spawned."""
    for seat in play.seats:
        reward = play.rewards.get(seat.role)
        of_turns = [turn.reward for turn in seat.turns if turn.reward is not None]
        if of_turns:
            reward = (reward or 0.0) + sum(of_turns)
        yield IndexedSeat(seat.role, seat.seat, seat.policy, reward, seat.advantage)
    for child in play.children:
        yield from _seats(child)


def _texts(play: _Play) -> Iterator[str]:
    """What is searched of a play and those that it spawned."""
    yield play.task
    yield from play.notes
    if play.error is not None:
        yield play.error
    for seat in play.seats:
        for turn in seat.turns:
            yield turn.asked
            yield turn.said
    for child in play.children:
        yield from _texts(child)


def _length(numbers: Raw) -> int:
    """Length of a list of numbers as JSON."""
    return bytes(numbers).count(b",") + 1 if len(numbers) > 2 else 0
