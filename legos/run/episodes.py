"""episodes.jsonl: plays for people and programs to read, with all that their seats were shown.

``docs/run/runs.md`` describes the fields.
"""

import json
import math
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from legos.chat.reply import split_thinking
from legos.errors import CheckpointError
from legos.loop.trained import TrainedTurn, TrainedTurns
from legos.records.episode import Episode, Rollout, Turn
from legos.records.message import Message, Sampling, ToolCall
from legos.records.numbers import number, plain_value

_OF_SEATS = ("temperature", "max_tokens", "stop")  # settings that are always written
_OF_TURNS = ("seed", "choices", "restrict")  # the seeds follow from the play's


class StoredMessage(Struct, frozen=True, omit_defaults=True):
    """A message of a prompt."""

    role: str
    content: str
    tool_calls: list[list[str]] = []  # names and arguments


class StoredTurn(Struct, frozen=True, kw_only=True):
    """One answer. Of its prompt, only what does not continue the seat's turn before."""

    messages_kept: int = 0
    messages: list[StoredMessage] = []  # new ones before the last
    asked_as: str = "user"  # role of the last message
    asked: str  # content of the last message
    choices: list[str] = []
    restricted: bool = False
    sampling: dict[str, Any] = {}  # settings that differ from those of the seat
    said: str
    tool_calls: list[list[str]]  # names and arguments
    move: str | None
    legal: bool | None
    reward: float | None
    order: int  # number of answers of the play before this one
    asked_at: float = 0.0  # seconds since 1970
    answered_at: float = 0.0
    finish_reason: str
    prompt_ids_kept: int = 0
    prompt_ids: list[int] = []
    token_ids: list[int]
    logprobs: list[float]  # nats, exact as float32; []: one was no finite number
    versions: list[int]
    trained: TrainedTurn | UnsetType = UNSET  # what its step computed; UNSET: nothing is known

    @property
    def ratios(self) -> list[float]:
        """[C] probability under the policy before its step, over that with which it was sampled.

        Empty where the step has not computed it.
        """
        logprobs = self.trained.logprobs if self.trained else []
        return [math.exp(one - other) for one, other in zip(logprobs, self.logprobs, strict=False)]

    @property
    def reasons(self) -> list[str | None]:
        """[C] why a token changed nothing, "clipped" or "masked" where it alone did not.

        None where it did, or where nothing is known.
        """
        if not self.trained:
            return [None] * len(self.token_ids)
        reasons = [self.trained.reason] * len(self.token_ids)
        for what, places in (("clipped", self.trained.clipped), ("masked", self.trained.masked)):
            for place in places:
                reasons[place] = reasons[place] or what
        return reasons


class StoredSeat(Struct, frozen=True):
    """The turns of one seat."""

    role: str
    seat: str
    policy: str | None
    turns: list[StoredTurn]
    sampling: dict[str, Any] = {}

    @property
    def advantage(self) -> float | None:
        """That of its first turn that has one; None: nothing is known."""
        found = (turn.trained.advantage for turn in self.turns if turn.trained)
        return next((each for each in found if each is not None), None)


class StoredEpisode(Struct, frozen=True, kw_only=True):
    """One play, and those that it spawned, which have neither step nor evaluation."""

    number: int | UnsetType = UNSET  # of the play in its run, from 1; readers set it
    step: Annotated[int, Meta(ge=0, lt=1 << 62)] | UnsetType = UNSET
    evaluation: bool | UnsetType = UNSET  # whether it was played by an evaluation
    arena: str
    task: str
    level: str | None = None
    seed: int
    play_seed: int
    rewards: dict[str, float]
    reward_parts: dict[str, dict[str, float]] = {}
    error: str | None
    failure: str | None = None
    void: bool
    notes: list[str]
    metrics: dict[str, float | None] = {}
    seats: list[StoredSeat]
    children: list["StoredEpisode"]

    @property
    def failed(self) -> str | None:
        """Why it counts for nothing, in a word; None: it counts."""
        if self.error is not None:
            return self.failure or "failed"
        return "void" if self.void else None

    def returned(self, seat: StoredSeat) -> float | None:
        """The reward of one of its seats, with the rewards of its turns; None: there is none."""
        found = [self.rewards.get(seat.role), *(turn.reward for turn in seat.turns)]
        rewards = [reward for reward in found if reward is not None]
        return sum(rewards) if rewards else None


_decoder = msgspec.json.Decoder(StoredEpisode)


def in_order(episode: StoredEpisode) -> list[tuple[StoredSeat, int]]:
    """The turns of a play in the order of their answers: the seat, and the index of its turn."""
    turns = [(seat, index) for seat in episode.seats for index in range(len(seat.turns))]
    return sorted(turns, key=lambda each: each[0].turns[each[1]].order)


def prompt_of(seat: StoredSeat, index: int) -> list[StoredMessage]:
    """All messages that a seat was shown for one of its turns."""
    known: list[StoredMessage] = []
    for turn in seat.turns[: index + 1]:
        prompt = [*known[: turn.messages_kept], *turn.messages]
        prompt.append(StoredMessage(turn.asked_as, turn.asked))
        answer = StoredMessage("assistant", split_thinking(turn.said)[1], turn.tool_calls)
        known = [*prompt, answer]
    return known[:-1]


def turns_of(episode: StoredEpisode) -> Iterator[tuple[StoredSeat, StoredTurn]]:
    """The turns of a play in the order of the answers, then those of the plays it spawned."""
    yield from ((seat, seat.turns[index]) for seat, index in in_order(episode))
    for child in episode.children:
        yield from turns_of(child)


def numbered_episode(path: Path, number: int, line: bytes) -> StoredEpisode:
    """The play of a line of a file, with its number.

    Raises:
        CheckpointError: the line is no play.
    """
    try:
        return msgspec.structs.replace(parse_episode(line), number=number)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(
            f"{path} line {number} is no play: {error!r}; --resume of the run removes "
            "lines that are no JSON"
        ) from error


def episode_line(stored: StoredEpisode) -> bytes:
    """A line of the file, with its end."""
    try:
        data = msgspec.json.encode(stored, enc_hook=plain_value)
    except (ValueError, OverflowError):  # half a surrogate pair, or an integer above 64 bits
        plain = msgspec.to_builtins(stored, enc_hook=plain_value)
        data = json.dumps(plain, separators=(",", ":")).encode()
    return data + b"\n"


def parse_episode(line: bytes) -> StoredEpisode:
    """The play of a line.

    Raises:
        ValueError: the line is no play.
        RecursionError: its plays are nested too deeply.
    """
    try:
        return _decoder.decode(line)
    except ValueError:  # NaN, or the other form above; half a surrogate pair becomes "?"
        plain = json.dumps(json.loads(line), ensure_ascii=False).encode(errors="replace")
        return msgspec.convert(json.loads(plain), StoredEpisode)


def stored_episode(
    episode: Episode,
    *,
    step: int | UnsetType = UNSET,
    evaluation: bool = False,
    trained: TrainedTurns | None = None,
) -> StoredEpisode:
    """A play as it is stored.

    Args:
        episode: the play.
        step: optimiser step for which it was played, or which was evaluated.
        evaluation: whether an evaluation played it.
        trained: what the step computed for the turns of its rollouts, and of spawned plays.
    """
    trained = trained or {}
    return StoredEpisode(
        step=step,
        evaluation=evaluation or UNSET,
        arena=episode.arena,
        task=episode.task.id,
        level=episode.task.level,
        seed=episode.task.seed,
        play_seed=episode.seed,
        rewards=dict(episode.rewards),
        reward_parts={role: dict(parts) for role, parts in episode.parts.items()},
        error=episode.error,
        failure=episode.failure,
        void=episode.void,
        notes=list(episode.notes),
        metrics=dict(episode.metrics),
        seats=[
            _seat(rollout, trained.get(episode.rollout_name(rollout.role), ()))
            for rollout in episode.rollouts
        ],
        children=[stored_episode(child, trained=trained) for child in episode.children],
    )


def _seat(rollout: Rollout, trained: Sequence[TrainedTurn | None]) -> StoredSeat:
    """A seat with its turns, each with what is new since the one before."""
    always = {name: getattr(rollout.sampling, name) for name in _OF_SEATS}
    before = (None, *rollout.turns)
    return StoredSeat(
        role=rollout.role,
        seat=rollout.seat,
        policy=rollout.policy,
        sampling=always | _settings(rollout.sampling, Sampling()),
        turns=[
            _turn(turn, former, rollout.sampling, found or UNSET)
            for turn, former, found in zip_longest(rollout.turns, before[:-1], trained)
        ],
    )


def _turn(
    turn: Turn, former: Turn | None, of_seat: Sampling, trained: TrainedTurn | UnsetType
) -> StoredTurn:
    said, asked = turn.completion, turn.messages[-1]
    messages, ids = ((), ()) if former is None else _before(former)
    kept = _num_common(messages, turn.messages[:-1])
    kept_ids = _num_common(ids, said.prompt_ids)
    return StoredTurn(
        messages_kept=kept,
        messages=[StoredMessage(m.role, m.content, _calls(m)) for m in turn.messages[kept:-1]],
        asked_as=asked.role,
        asked=asked.content,
        choices=list(turn.choices),
        restricted=said.restricted,
        sampling={} if turn.sampling is None else _settings(turn.sampling, of_seat),
        said=said.text,
        tool_calls=_calls(said),
        move=turn.move,
        legal=turn.legal,
        reward=turn.reward,
        order=turn.order,
        asked_at=round(turn.asked_at, 3),
        answered_at=round(turn.answered_at, 3),
        finish_reason=said.finish_reason,
        prompt_ids_kept=kept_ids,
        prompt_ids=list(said.prompt_ids[kept_ids:]),
        token_ids=list(said.token_ids),
        logprobs=_exact(said.logprobs),
        versions=list(said.versions),
        trained=trained,
    )


def _exact(logprobs: Sequence[float]) -> list[float]:
    """The shortest decimals that are these float32 values; none if one is no finite number."""
    values = [number(logprob) for logprob in logprobs]  # an endpoint may report None
    return [float(f"{value:.9g}") for value in values] if all(map(math.isfinite, values)) else []


def _before(former: Turn) -> tuple[tuple[Message, ...], tuple[int, ...]]:
    """The messages and the token ids after a turn, with which the next may begin."""
    said = former.completion
    answer = Message("assistant", split_thinking(said.text)[1], said.tool_calls)
    return (*former.messages, answer), said.prompt_ids + said.token_ids


def _num_common(one: Sequence[object], other: Sequence[object]) -> int:
    """Number of first items that two sequences have in common."""
    pairs = enumerate(zip(one, other, strict=False))
    shorter = min(len(one), len(other))
    return next((index for index, (a, b) in pairs if a != b), shorter)


def _calls(of: Any) -> list[list[str]]:
    calls: Sequence[ToolCall] = of.tool_calls
    return [[call.name, call.arguments] for call in calls]


def _settings(sampling: Sampling, usual: Sampling) -> dict[str, Any]:
    """Settings that differ, without those that a turn has under other names, and its seed."""
    found: dict[str, Any] = msgspec.to_builtins(sampling)
    others: dict[str, Any] = msgspec.to_builtins(usual)
    return {
        name: value
        for name, value in found.items()
        if name not in _OF_TURNS and value != others[name]
    }
