"""A play that is repeated up to a question, and goes on with the answers of people and models."""

from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field

from pydantic import BaseModel

from legos.arena.arena import Arena
from legos.arena.endings import Void
from legos.arena.store import Stores
from legos.errors import LegosError
from legos.play.one_task import play_task
from legos.records.episode import Episode, Task
from legos.records.message import (
    Completion,
    Message,
    Prompt,
    Sampling,
    ToolCall,
    messages_or_ids,
)
from legos.records.names import POLICY

WAITING = "a question waits for its answer"
Ask = Callable[[Sequence[Message], Sampling], Awaitable[Completion]]


class Said(BaseModel, extra="forbid"):
    """An answer of one role."""

    role: str
    text: str
    calls: list[tuple[str, str]] = []  # names of tools, and arguments


@dataclass(frozen=True, slots=True)
class Question:
    """What a role is asked."""

    role: str
    messages: Sequence[Message]
    sampling: Sampling


@dataclass(slots=True)
class Replay:
    """A play that was repeated."""

    answers: Mapping[str, deque[Said]]  # role -> its answers that were not used yet
    ask: Mapping[str, Ask]  # role -> what answers next; the play stops at the others
    new: list[Said] = field(default_factory=list[Said])  # what was answered
    question: Question | None = None  # at which the play stops
    failure: LegosError | None = None  # why an answer failed


class _Player:
    """The client of one role: its known answers, then what answers for it."""

    def __init__(self, role: str, replay: Replay) -> None:
        self._role, self._replay = role, replay

    async def complete(
        self, prompt: Prompt, sampling: Sampling, *, adapter: str = POLICY
    ) -> Completion:
        """The next answer.

        Raises:
            Void: nobody answers here, and the play stops.
        """
        replay, role = self._replay, self._role
        if replay.answers.get(role):
            said = replay.answers[role].popleft()
        else:
            messages, _ = messages_or_ids(prompt)
            if role not in replay.ask:
                replay.question = replay.question or Question(role, messages, sampling)
                raise Void(WAITING)
            try:
                made = await replay.ask[role](messages, sampling)
            except LegosError as error:
                replay.failure = error
                raise
            calls = [(call.name, call.arguments) for call in made.tool_calls]
            said = Said(role=role, text=made.text, calls=calls)
            replay.new.append(said)
        calls = tuple(ToolCall(*call) for call in said.calls)
        return Completion(text=said.text, tool_calls=calls, adapter=adapter)


async def replayed(
    arena: Arena, task: Task, seed: int, known: Sequence[Said], ask: Mapping[str, Ask]
) -> tuple[Replay, Episode]:
    """Repeat a play: the same task, seed and answers lead to the same question.

    Args:
        arena: the arena; players that it brings itself answer again.
        task: the task.
        seed: seed of the play.
        known: answers so far, those of each role in their order.
        ask: role -> what answers for it after these.

    Returns:
        What was asked and answered, and the play: void where it stopped at a question.

    Raises:
        ArenaError: the play breaks the rules for plays.
        EngineError: the engine has died.
    """
    answers: dict[str, deque[Said]] = {}
    for said in known:
        answers.setdefault(said.role, deque()).append(said)
    replay, own = Replay(answers, ask), copy(arena)
    own.stores = Stores()
    seats = own.seats(task)
    players = {
        role: _Player(role, replay) for role, seat in seats.items() if seat.client is arena.client
    }
    return replay, await play_task(own, task, players, seed=seed)
