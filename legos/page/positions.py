"""The requests of the view of positions: a question, and how checkpoints answer it."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

import msgspec
from fastapi import APIRouter, Request
from pydantic import BaseModel, Field
from starlette.responses import Response

from legos.arena.arena import Arena
from legos.arena.cursor import held_out_or_own, tasks_from
from legos.chat.reply import split_thinking
from legos.config.schema import RunConfig
from legos.errors import ArenaError, LegosError
from legos.fakes import ScriptedClient
from legos.loop.evaluation import SEED
from legos.page.answers import answer
from legos.page.checkpoints import Checkpoints, checkpoints_of
from legos.page.exact import NO_SETTINGS, SolvedGames, installed
from legos.page.one_play import play_values
from legos.page.replay import Ask, Question, Said, replayed
from legos.page.shown import ShownRuns
from legos.records.episode import Task
from legos.records.message import Completion, Message, Sampling, ToolCall
from legos.records.names import BASE
from legos.records.seeds import mix
from legos.run.episodes import (
    StoredEpisode,
    StoredMessage,
    in_order,
    prompt_of,
    stored_episode,
)
from legos.server.problems import Problem
from legos.server.service import while_connected
from legos.wiring.arena import make_arena

_MOST_TASKS = 200_000  # among which the task of a stored play is looked for
_NO_MODEL = "no model is loaded; start `legos view --model MODEL`"
_LEFT_OUT: dict[str, Any] = {
    "opponents": {},
    "opponents_end": {},
    **dict.fromkeys(("matchmaker", "credit", "curriculum")),
}
"""Settings of play that this view leaves out: who else plays, and what might be a file."""


class _Place(BaseModel, extra="forbid"):
    """A question of a play."""

    run: str
    play: int | None = None  # a stored play; None: a new one
    turn: int = Field(1, ge=1)  # whose question it is, of the stored play
    arena: str | None = None  # of a new play; None: the run's first
    seed: int = Field(0, ge=0, lt=1 << 62)  # of a new play
    said: list[Said] = Field([], max_length=2000)  # answers since
    seat: str | None = None  # the role of the person; None: every role
    against: str = BASE  # the checkpoint in the other seats, where the person has a role
    sample: int | None = Field(None, ge=0, lt=1 << 62)  # seed of its answers; None: greedy


class _Asked(BaseModel, extra="forbid"):
    """A question to a checkpoint, as an answer about a position has it."""

    checkpoint: str
    messages: list[dict[str, Any]]
    choices: list[str]
    sampling: dict[str, Any]
    sample: int | None = Field(None, ge=0, lt=1 << 62)


@dataclass(frozen=True, slots=True)
class _Start:
    """A play from which a position is reached."""

    config: RunConfig
    arena: str
    stored: StoredEpisode | None
    known: Sequence[Said]


def positions_router(
    runs: ShownRuns, games: SolvedGames, checkpoints: Checkpoints | None
) -> APIRouter:
    """The requests.

    Args:
        runs: the runs.
        games: solves their games.
        checkpoints: answers for checkpoints; None: no model is loaded.
    """
    router = APIRouter()

    @router.get("/checkpoints")
    def listed() -> Response:
        found = [checkpoints_of(run) for run in runs.all().values()]
        return answer({"model": checkpoints and checkpoints.model, "runs": found})

    @router.post("/positions")
    async def position(place: _Place, request: Request) -> Response:
        start = await asyncio.to_thread(_start, runs, place)
        found = await while_connected(request.receive, _position(start, place, checkpoints))
        if (question := found["question"]) is not None:
            about = start.arena, question["role"], question["messages"][-1]["content"]
            found["exact"] = await asyncio.to_thread(games.moves_at, start.config, *about)
        return answer({**found, "arena": start.arena, "arenas": [*start.config.arenas]})

    @router.post("/answers")
    async def answers(asked: _Asked, request: Request) -> Response:
        if checkpoints is None:
            raise Problem(409, _NO_MODEL)
        return answer(await while_connected(request.receive, _answer(asked, checkpoints)))

    return router


def _start(runs: ShownRuns, place: _Place) -> _Start:
    view = runs.get(place.run)
    config = view.read().config
    if config is None:
        raise Problem(409, NO_SETTINGS)
    if place.play is None:
        return _Start(config, place.arena or next(iter(config.arenas)), None, place.said)
    stored = view.play(place.play)
    turns = in_order(stored)
    if place.turn > len(turns):
        raise Problem(404, f"play {place.play} has {len(turns)} turns, and no turn {place.turn}")
    known = [
        Said(role=seat.role, text=turn.said, calls=[(c[0], c[1]) for c in turn.tool_calls])
        for seat, turn in ((seat, seat.turns[at]) for seat, at in turns[: place.turn - 1])
    ]
    return _Start(config, stored.arena, stored, [*known, *place.said])


async def _position(
    start: _Start, place: _Place, checkpoints: Checkpoints | None
) -> dict[str, Any]:
    """The question, the turns before it, and how the play has ended where it has."""
    if start.stored is not None and not place.said:
        seat, at = in_order(start.stored)[place.turn - 1]
        if place.seat in (None, seat.role):  # no code of the arena is needed
            turn, values = seat.turns[at], play_values(start.stored)
            sampling = seat.sampling | turn.sampling | {"restrict": turn.restricted}
            return {
                "question": _question(seat.role, prompt_of(seat, at), turn.choices, sampling),
                "play": _known_to(place.seat, values, values["turns"][: place.turn - 1]),
                "roles": [each.role for each in start.stored.seats],
                "said": [],
            }
    arena, task, seed = await asyncio.to_thread(_task, start, place)
    if place.seat not in (None, *arena.roles):
        raise Problem(404, f"{arena.name} has no role {place.seat!r}")
    ask: dict[str, Ask] = {}
    if place.seat is not None:
        ask = {r: partial(_ask, checkpoints, place) for r in arena.roles if r != place.seat}
    try:
        replay, episode = await replayed(arena, task, seed, start.known, ask)
    except ArenaError as error:
        raise Problem(409, str(error)) from error
    if replay.failure is not None:
        raise replay.failure
    values, asked = play_values(stored_episode(episode)), replay.question
    return {
        "question": asked and _of(asked),
        "play": _known_to(place.seat, values, values["turns"]) if asked else values,
        "roles": arena.roles,
        "said": [said.model_dump(exclude_defaults=True) for said in (*place.said, *replay.new)],
    }


async def _ask(
    checkpoints: Checkpoints | None, place: _Place, messages: Sequence[Message], sampling: Sampling
) -> Completion:
    """The answer of the checkpoint in the seats that are not the person's."""
    if checkpoints is None:
        raise Problem(409, _NO_MODEL)
    temperature = 0.0 if place.sample is None else sampling.temperature
    seed = mix(sampling.seed, place.sample or 0)
    sampling = msgspec.structs.replace(sampling, temperature=temperature, seed=seed)
    return await checkpoints.complete(place.against, messages, sampling)


def _task(start: _Start, place: _Place) -> tuple[Arena, Task, int]:
    """The arena, the task and the seed of a play.

    Raises:
        Problem: the arena is a file or a world, or has no such task any more.
        LegosError: the arena cannot be made.
    """
    name, stored, config = start.arena, start.stored, start.config
    named = installed(config, name)
    if named is None:
        raise Problem(
            409,
            f"{name} is no arena that is installed here under a name of its own, and the page runs "
            "no file and no world; positions of stored plays can be compared, and `legos play` "
            "plays on",
        )
    if stored is not None and stored.children:
        raise Problem(409, "this play spawned others, which are not repeated; open it in Plays")
    name, _, one = named
    play = one.play.replace(**_LEFT_OUT)
    try:
        client = ScriptedClient([])  # whose seats are played by others
        arena = make_arena(name, client, play=play, generation=one.generation, seed=config.seed)
        if stored is None:
            [(task, seed)] = held_out_or_own(arena, place.seed, 1)
            return arena, task, seed
        held_out = stored.evaluation is True
        found = tasks_from(arena, seed=SEED if held_out else config.seed, held_out=held_out)
        task = next((t for t in islice(found, _MOST_TASKS) if t.id == stored.task), None)
    except LegosError as error:
        raise Problem(409, str(error)) from error
    if task is None:
        raise Problem(409, f"arena {name} has no task {stored.task!r} any more")
    return arena, msgspec.structs.replace(task, seed=stored.seed), stored.play_seed


def _of(asked: Question) -> dict[str, Any]:
    """A question that a play has asked, as JSON values."""
    messages = [
        StoredMessage(m.role, m.content, [[c.name, c.arguments] for c in m.tool_calls])
        for m in asked.messages
    ]
    sampling = msgspec.to_builtins(asked.sampling)
    return _question(asked.role, messages, asked.sampling.choices, sampling)


def _question(
    role: str,
    messages: Sequence[StoredMessage],
    choices: Sequence[str],
    sampling: Mapping[str, Any],
) -> dict[str, Any]:
    return {
        "role": role,
        "messages": msgspec.to_builtins(messages),
        "choices": list(choices),
        "sampling": {n: v for n, v in sampling.items() if n not in ("seed", "choices")},
    }


def _known_to(
    seat: str | None, play: Mapping[str, Any], turns: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """A play that goes on, with those of its turns that a person in a seat may see."""
    shown = [turn for turn in turns if seat in (None, turn["role"])]
    return {**play, "turns": shown, "children": []}


async def _answer(asked: _Asked, checkpoints: Checkpoints) -> dict[str, Any]:
    """The probability of each legal move, or an answer where any is legal."""
    given = {**asked.sampling, "choices": asked.choices, "seed": mix(asked.sample or 0)}
    if asked.sample is None:
        given["temperature"] = 0.0
    try:
        stored = msgspec.convert(asked.messages, list[StoredMessage])
        messages = [
            Message(m.role, m.content, tuple(ToolCall(*call) for call in m.tool_calls))
            for m in stored
        ]
        sampling = msgspec.convert(given, Sampling)
    except (msgspec.ValidationError, TypeError) as error:
        raise Problem(400, f"the question cannot be read: {error}") from error
    who, found = asked.checkpoint, dict[str, Any]()
    if asked.choices:
        alone = sampling.restrict
        shares, illegal = await checkpoints.shares(who, messages, asked.choices, restricted=alone)
        found |= {"moves": shares, "illegal": 0.0 if alone else illegal}
    if not asked.choices or sampling.max_tokens is not None:  # it may think before it moves
        made = await checkpoints.complete(who, messages, sampling)
        thinking, text = split_thinking(made.text)
        found |= {"thinking": thinking, "text": text, "whole": made.text}
        found |= {"tokens": len(made.token_ids), "cut": made.finish_reason == "length"}
    return found
