"""``legos imitate``: supervised training on answers, by the trainer of self-play.

An arena in which nothing is sampled: each play says an answer of a file, or of an earlier run, and
each of its tokens is credited with 1. So packing, checkpoints, evaluations and trackers are those
of every run, and a mix can have it beside a game.
"""

import math
import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any, cast

from pydantic import ValidationError

from legos.arena.arena import Arena
from legos.arena.rows import hold_out, read_tasks
from legos.clients.recited import RecitedClient
from legos.config.resolve import read_config
from legos.config.schema import RunConfig
from legos.errors import ArenaError, ConfigError
from legos.protocols import Seat
from legos.records.episode import Task
from legos.run.episodes import StoredEpisode, StoredSeat, numbered_episode
from legos.run.find import find_run
from legos.run.folder import RUNS
from legos.run.play_files import NewPlays
from legos.server.endpoints.chat_body import ChatPrompt
from legos.server.problems import Problem, invalid
from legos.weights.adapter import model_name
from legos.wiring.arena import make_arena

Fields = Mapping[str, Any]
Messages = list[dict[str, Any]]
SETTINGS: Mapping[str, object] = {
    "arena": "legos.apps.imitate:Imitation",
    "training.loss": "reinforce",
    "training.anchor": "behaviour",  # no weight pi / mu on tokens: the policy sampled none of them
}
"""Settings of supervised training: the loss is the negative log-likelihood of the answers."""

EXPECTED = "messages, or prompt and completion"
NOT_READ = {
    "system": "make it the first message, of role system",
    "chat_template_kwargs": "leave it out; thinking in [generation] of --config is for all rows",
}
"""Fields that would change a prompt -> what to do instead."""
FORM = (
    "a text, or a list of messages as OpenAI's interface has them: role, and content (a text, or "
    "parts of type text) or tool_calls (arguments: JSON as text); and tools as it has them"
)


class Imitation(Arena):
    """Say what is written: each assistant's message of a file, or the answers of a run.

    The reward is the mean log-probability (nats) of the answer's tokens under the policy, so it
    rises to 0; no credit is computed from it. A share of the answers is held out for evaluations.
    """

    recommended: Mapping[str, object] = {
        "play.credit": "imitation",
        "generation.thinking": "default",  # the answers think first, or do not
        "training.learning_rate_end_fraction": 1.0,  # a falling one learns little in few steps
    }
    tasks_per_step = 32
    group_size = 1

    def __init__(
        self,
        client: Any = None,
        *,
        data: str,
        min_reward: float = 1.0,
        held_out: float = 0.1,
        **kwargs: Any,
    ) -> None:
        """Read the answers.

        Args:
            client: client of the policy.
            data: a file of rows or a data set of the hub, with ``messages`` or ``prompt`` and
                ``completion``, texts or messages; or a run, whose plays are imitated.
            min_reward: of a run, answers of seats that earned at least this.
            held_out: share of answers that are evaluated and never trained on.
            kwargs: settings of every arena.
        """
        super().__init__(client, **kwargs)
        answers = _answers(data, min_reward)
        self.answers, self._held_out = hold_out(answers, held_out)
        if not self.answers:
            raise ArenaError(
                f"all {len(answers)} answers of {data} are held out; give more, or "
                "--play.options.held_out 0"
            )

    @property
    def name(self) -> str:
        """The name in metrics."""
        return "imitation"

    def tasks(self, rng: random.Random) -> Iterable[Task]:
        """The answers that are not held out, in random order."""
        return rng.sample(self.answers, len(self.answers))

    def held_out(self, rng: random.Random) -> Iterable[Task] | None:
        """The answers that are held out, in random order; none: evaluate on the others."""
        return rng.sample(self._held_out, len(self._held_out)) or None

    def seats(self, task: Task) -> Mapping[str, Seat]:
        """The policy, which says the answer."""
        (seat,) = super().seats(task).values()
        return {seat.role: replace(seat, client=RecitedClient(seat.client, *task.data))}

    async def play(self, t: Any) -> Mapping[str, float]:
        """One answer."""
        prompt = t.task.data[0]
        asked = prompt if isinstance(prompt[0], int) else prompt[-1]["content"]
        logprobs = (await t.ask("player", asked)).completion.logprobs
        return {"player": fmean(logprobs) if logprobs else 0.0}


def num_steps(config: RunConfig, epochs: float) -> int:
    """Optimiser steps that train on every answer at least ``epochs`` times.

    Args:
        config: settings of the run.
        epochs: number of times, above 0.

    Raises:
        ConfigError: steps are counted in tokens.
        ArenaError: an option is not valid, or the data cannot be read, or hold no answer.
    """
    if (tokens := config.training.tokens_per_step) is not None:
        raise ConfigError(
            f"training.tokens_per_step is {tokens}, but --epochs counts answers; give --steps, or "
            "leave tokens_per_step out"
        )
    arena = read_answers(config)
    tasks = -(-config.training.min_samples_per_step // arena.group_size)
    return math.ceil(epochs * len(arena.answers) / max(tasks, arena.tasks_per_step))


def read_answers(config: RunConfig) -> Imitation:
    """The arena of a run with its answers; raises ``ArenaError`` as ``num_steps`` does."""
    arena = make_arena(f"{SETTINGS['arena']}", None, play=config.play)
    assert isinstance(arena, Imitation)
    return arena


def model_of(data: str, model: str | None) -> str | None:
    """The model of a run that is imitated, whose token ids no other tokenizer reads.

    Args:
        data: what is imitated.
        model: the model that is asked for; None: none is.

    Returns:
        The model to train; None: any.

    Raises:
        ConfigError: the run has another model.
        CheckpointError: there is no such run.
    """
    if (settings := played_with(data)) is None:
        return model
    played = settings.model
    if model is not None and model_name(model) != model_name(played):
        raise ConfigError(
            f"model is {model!r} but {data} was played by {played!r}, and its answers are tokens "
            f"of that model; leave --model out, or give --model {played}"
        )
    return model or played


def played_with(data: str) -> RunConfig | None:
    """The settings of a run that is imitated; None: ``data`` is no run."""
    return read_config(find_run(data).settings) if _is_run(data) else None


def _answers(data: str, min_reward: float) -> list[Task]:
    """A task for each answer; its data are those of a ``RecitedClient``."""
    if not _is_run(data):
        rows = read_tasks(data)
        found = [Task(id=f"{row.id}{part}", data=pair) for row in rows for part, pair in _row(row)]
    else:
        path = find_run(data).episodes
        found = [
            Task(id=f"{data}/{number}.{place}", data=pair)
            for lines in NewPlays(path).files()
            for number, line in lines
            for place, pair in enumerate(_of_play(numbered_episode(path, number, line), min_reward))
        ]
    if not found:
        raise ArenaError(
            f"{data} has no answer to imitate; a row needs {EXPECTED}, and a play of a run a "
            f"reward of at least {min_reward:g} (--play.options.min_reward)"
        )
    return found


def _is_run(data: str) -> bool:
    """Whether data names a run: a folder, one in runs/, or a name without ending and ``/``."""
    named = "/" not in data and (not Path(data).suffix or (RUNS / data).is_dir())
    return Path(data).is_dir() or named


def _row(row: Task) -> Iterator[tuple[str, tuple[Messages, Fields, Messages]]]:
    """The answers of a row, each with its place in it, its prompt and its tools."""
    fields = cast("Fields", row.data)
    for name, advice in NOT_READ.items():
        if fields.get(name):
            raise ArenaError(f"{row.id}: the row has {name}, which is not read; {advice}")
    if "messages" in fields:
        (chat, tools), given = _chat(row, "messages", "user"), 1
    elif {"prompt", "completion"} <= fields.keys():
        prompt, tools = _chat(row, "prompt", "user")
        chat, given = [*prompt, *_chat(row, "completion", "assistant")[0]], len(prompt)
    else:
        raise ArenaError(
            f"{row.id}: the row has {', '.join(fields) or 'no field'}; expected {EXPECTED}"
        )
    answers = [n for n, message in enumerate(chat) if message["role"] == "assistant" and n >= given]
    if not answers or not given:
        roles = ", ".join(message["role"] for message in chat) or "none"
        raise ArenaError(
            f"{row.id}: the roles of the row's messages are {roles}; expected an assistant's "
            "message after another to imitate: add it, or remove the row"
        )
    for number in answers:
        answer = chat[number]
        if not (answer["content"] or answer.get("tool_calls")):
            raise ArenaError(
                f"{row.id}: the text of message {number} of the row, an assistant's, is empty; "
                "write the answer, or remove the row"
            )
        yield f".{number}", (chat[:number], answer, tools)


def _chat(row: Task, name: str, role: str) -> tuple[Messages, Messages]:
    """Messages and tools as the server renders them; a plain text is one message of ``role``."""
    fields = cast("Fields", row.data)
    given = fields[name]
    if isinstance(given, str):
        given = [{"role": role, "content": given}]
    try:
        prompt = ChatPrompt.model_validate({"messages": given, "tools": fields.get("tools")})
        return prompt.checked(), prompt.listed_tools()
    except (ValidationError, Problem) as error:
        problem = invalid(error) if isinstance(error, ValidationError) else error
        told = f"{problem}".replace("messages", name, 1)
        raise ArenaError(f"{row.id}: {told}; expected {FORM}") from error


def _of_play(play: StoredEpisode, min_reward: float) -> Iterator[tuple[list[int], list[int]]]:
    """Prompt and answer, as token ids, of the trained seats of a play that earned enough."""
    if play.evaluation is True or play.void or play.error is not None:
        return
    for seat in play.seats:
        earned = play.returned(seat)
        if seat.policy is not None and earned is not None and earned >= min_reward:
            yield from _of_seat(seat)
    for child in play.children:
        yield from _of_play(child, min_reward)


def _of_seat(seat: StoredSeat) -> Iterator[tuple[list[int], list[int]]]:
    before: list[int] = []
    for turn in seat.turns:
        prompt = [*before[: turn.prompt_ids_kept], *turn.prompt_ids]
        before = [*prompt, *turn.token_ids]
        right = turn.finish_reason == "stop" and turn.legal is not False
        if right and prompt and turn.token_ids:
            yield prompt, turn.token_ids
