"""A play as a row of the table, and which rows are looked for."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Literal

from msgspec import UNSET, Struct, to_builtins
from pydantic import BaseModel

from legos.chat.reply import split_thinking
from legos.page.one_play import advantage_of, turns_of
from legos.run.episodes import StoredEpisode

__all__ = ["SORTS", "PlayQuery", "Row", "row_of", "row_values"]

_SHOWN = 160  # characters of an answer in a row
_SEARCHED = 4000  # characters of a play that are searched


class Row(Struct, frozen=True, gc=False):
    """What the table shows of one play."""

    number: int
    step: int | None
    evaluation: bool
    arena: str
    task: str
    seed: int
    rewards: dict[str, float]
    advantages: dict[str, float | None]
    seats: dict[str, str]  # role -> who sat there
    turns: int
    tokens: int  # that were sampled
    started: float  # first question, seconds since 1970; 0: unknown
    ended: float  # last answer
    failure: str | None
    asked: str  # the first question
    answer: str  # the last one
    text: str  # in lower case, to be searched

    @property
    def group(self) -> tuple[object, ...]:
        """What the plays have in common that are compared with each other."""
        return self.step, self.evaluation, self.arena, self.task, self.seed

    @property
    def reward(self) -> float:
        """The largest reward."""
        return max(self.rewards.values(), default=0.0)


SORTS: dict[str, Callable[[Row], Any]] = {
    "number": lambda row: row.number,
    "step": lambda row: (-1 if row.step is None else row.step, row.number),
    "reward": lambda row: (row.reward, row.number),
    "tokens": lambda row: (row.tokens, row.number),
    "turns": lambda row: (row.turns, row.number),
}


class PlayQuery(BaseModel, extra="forbid"):
    """Which plays are looked for; None or an empty text: any."""

    text: str = ""  # words that questions or answers contain, all of them
    arena: str = ""
    task: str = ""
    role: str = ""  # whose reward is meant
    seat: str = ""  # who sat in one of the seats
    kind: Literal["", "training", "evaluation"] = ""
    failed: bool = False  # only those that failed
    reward_min: float | None = None
    reward_max: float | None = None
    step_min: int | None = None
    step_max: int | None = None

    def tests(self) -> Iterator[Callable[[Row], bool]]:
        """What must hold for a play that is looked for."""
        for word in self.text.lower().split():
            yield partial(_contains, word)
        if self.arena:
            yield lambda row: row.arena == self.arena
        if self.task:
            yield lambda row: row.task == self.task
        if self.role:
            yield lambda row: self.role in row.rewards
        if self.seat:
            yield lambda row: self.seat in row.seats.values()
        if self.kind:
            yield lambda row: row.evaluation == (self.kind == "evaluation")
        if self.failed:
            yield lambda row: row.failure is not None
        if (low := self.reward_min) is not None:
            yield lambda row: self._reward(row) >= low
        if (high := self.reward_max) is not None:
            yield lambda row: self._reward(row) <= high
        if (first := self.step_min) is not None:
            yield lambda row: row.step is not None and row.step >= first
        if (last := self.step_max) is not None:
            yield lambda row: row.step is not None and row.step <= last

    def _reward(self, row: Row) -> float:
        return row.rewards[self.role] if self.role else row.reward


def _contains(word: str, row: Row) -> bool:
    return word in row.text


def row_of(number: int, episode: StoredEpisode) -> Row:
    """A play as a row."""
    turns = [turn for _, turn in turns_of(episode)]
    said = split_thinking(turns[-1].said)[1] or turns[-1].said if turns else ""
    return Row(
        number=number,
        step=None if episode.step is UNSET else episode.step,
        evaluation=episode.evaluation is True,
        arena=episode.arena,
        task=episode.task,
        seed=episode.seed,
        rewards=episode.rewards,
        advantages={seat.role: advantage_of(seat) for seat in episode.seats},
        seats={seat.role: seat.seat for seat in episode.seats},
        turns=len(turns),
        tokens=sum(len(turn.token_ids) for turn in turns),
        started=min((turn.asked_at for turn in turns), default=0.0),
        ended=max((turn.answered_at for turn in turns), default=0.0),
        failure=_failure(episode),
        asked=turns[0].asked[:_SHOWN] if turns else "",
        answer=said[:_SHOWN],
        text="\n".join(_texts(episode))[:_SEARCHED].lower(),
    )


def _failure(episode: StoredEpisode) -> str | None:
    """Why a play counts for nothing, in a word; None: it counts."""
    if episode.error:
        return episode.failure or "failed"
    return "void" if episode.void else None


def _texts(episode: StoredEpisode) -> Iterator[str]:
    yield episode.task
    yield from episode.notes
    if episode.error:
        yield episode.error
    for _, turn in turns_of(episode):
        yield turn.said
        yield turn.asked


def row_values(row: Row) -> dict[str, Any]:
    """A row as JSON values, without the text that is searched."""
    values = to_builtins(row)
    del values["text"]
    return values
