"""What the index keeps of plays, read from their lines: rows of its tables, and their texts."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from math import exp, fsum
from typing import NamedTuple

from msgspec import UNSET

from legos.chat.reply import split_thinking
from legos.run.episodes import StoredEpisode, parse_episode, turns_of

SHOWN = 160  # characters of a question and of an answer
MOST_MOVES = 16  # of a position whose moves are counted


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
        texts: number and text of each play, in the form in which it is searched.
        damaged: numbers of lines that are no plays.
        moves: position -> (step, move) -> probabilities with which trained seats sampled the move.
    """

    def __init__(self) -> None:
        self.plays: list[IndexedPlay] = []
        self.texts: list[tuple[int, bytes]] = []
        self.damaged: list[int] = []
        self.moves: defaultdict[Position, defaultdict[tuple[int, str], list[float]]] = defaultdict(
            lambda: defaultdict(list)
        )

    def add(self, number: int, line: bytes) -> None:
        """Add the rows of a line."""
        try:
            play = parse_episode(line)
            moves = [] if play.step is UNSET else [*_moves(play.step, play)]
        except (ArithmeticError, ValueError, RecursionError):
            self.damaged.append(number)
            return
        turns = [turn for _, turn in turns_of(play)]
        said = turns[-1].said if turns else ""
        self.plays.append(
            IndexedPlay(
                number=number,
                step=None if play.step is UNSET else play.step,
                evaluation=play.evaluation is True,
                arena=play.arena,
                task=play.task,
                seed=str(play.seed),
                level=play.level,
                failure=play.failed,
                tokens=sum(len(turn.token_ids) for turn in turns),
                turns=len(turns),
                started=min((turn.asked_at for turn in turns), default=0.0),
                ended=max((turn.answered_at for turn in turns), default=0.0),
                asked=turns[0].asked[:SHOWN] if turns else "",
                answer=(split_thinking(said)[1] or said)[:SHOWN],
                seats=[*_seats(play)],
            )
        )
        self.texts.append((number, searched("\n".join(dict.fromkeys(_texts(play))))))
        for position, move, probability in moves:
            self.moves[position][move].append(probability)


def searched(text: str) -> bytes:
    """The form of a text in which upper case counts as lower."""
    return text.lower().encode(errors="replace")


def _moves(step: int, play: StoredEpisode) -> Iterator[tuple[Position, tuple[int, str], float]]:
    """The moves of trained seats in a step, with the probabilities with which they were sampled.

    Raises:
        ArithmeticError, ValueError: one is no probability.
    """
    for seat in play.seats:
        for turn in seat.turns if seat.policy else ():
            if (seat.sampling | turn.sampling).get("temperature") == 0:  # each move is certain
                continue
            if turn.move is not None and turn.logprobs and 1 < len(turn.choices) <= MOST_MOVES:
                logprob = fsum(turn.logprobs)
                if not logprob < 1.0:  # rounding may give a little more than 0
                    raise ValueError(f"{logprob} is no log-probability")
                yield (play.arena, seat.role, turn.asked), (step, turn.move), exp(logprob)


def _seats(play: StoredEpisode) -> Iterator[IndexedSeat]:
    """The seats of a play, then those of the plays it spawned."""
    for seat in play.seats:
        reward = play.returned(seat)
        yield IndexedSeat(seat.role, seat.seat, seat.policy, reward, seat.advantage)
    for child in play.children:
        yield from _seats(child)


def _texts(play: StoredEpisode) -> Iterator[str]:
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
