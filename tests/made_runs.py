"""Run folders on disk as a run writes them, and the page that shows them."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from made_records import make_episode, make_turn
from msgspec.structs import replace
from starlette.testclient import TestClient

from legos.config.resolve import resolve
from legos.loop.trained import TrainedTurn
from legos.page.app import make_page
from legos.page.shown import ShownRuns
from legos.records.episode import Episode
from legos.run.folder import RunFolder
from legos.server.options import ServerOptions

__all__ = ["add_lines", "add_play", "answered", "made_run", "page_of", "step_line"]

LOOPBACK = "http://127.0.0.1"


def page_of(*named: Path, parent: Path = Path("runs"), key: str | None = None) -> TestClient:
    """The page of some runs, or of all runs in a folder."""
    options = ServerOptions.for_host("0.0.0.0" if key else "127.0.0.1", api_key=key)
    app = make_page(ShownRuns([str(path) for path in named], parent=parent), options)
    return TestClient(app, base_url=LOOPBACK, raise_server_exceptions=False)


def answered(page: TestClient, path: str, **parameters: Any) -> Any:
    """The JSON of an answer without an error."""
    response = page.get(f"/api/{path}", params=parameters)
    assert response.status_code == 200, response.text
    return response.json()


def made_run(path: Path, *, steps: int = 4, **settings: object) -> RunFolder:
    """A run of ``steps`` steps of which each is in its metrics, and that was evaluated twice."""
    path.mkdir(parents=True)
    folder = RunFolder(path)
    named = {name.replace("__", "."): value for name, value in settings.items()}
    folder.write_config(resolve(overrides={"loop.steps": steps, **named}).toml())
    add_lines(folder.metrics, [step_line(step) for step in range(1, steps + 1)])
    scores = [{"step": 0, "eval/exploitability": 0.9}, {"step": steps, "eval/exploitability": 0.4}]
    add_lines(folder.evaluations, scores)
    return folder


def step_line(step: int, **metrics: float | None) -> Mapping[str, object]:
    """The metrics of a step without alarms."""
    usual = {
        "reward_mean": step / 10,
        "applied": 1,
        "clip_fraction": 0.0,
        "tokens_generated": 100 * step,
        "tokens_trained": 90 * step,
        "tokens_filtered": 10 * step,
        "tokens_discarded": 0,
        "tokens_queued": 0,
        "filtered/clip_skip_tokens": 10 * step,
        "memory/peak_gib": 0.5,
        "loop/seconds_per_step": 30.0,
    }
    return {"step": step, **usual, **metrics}


def add_lines(path: Path, lines: Sequence[Mapping[str, object]]) -> None:
    """Append JSON lines to a file."""
    with path.open("a") as file:
        file.writelines(f"{json.dumps(line)}\n" for line in lines)


def asked(episode: Episode, question: str, answer: str, **fields: Any) -> Episode:
    """A play with one turn that has a question and an answer."""
    rollout = episode.rollouts[0]
    turn = make_turn(token_ids=tuple(answer.encode()), logprob=-0.5, version=3)
    message = replace(turn.messages[0], content=question)
    said = replace(turn.completion, text=answer)
    turn = replace(turn, messages=(message,), completion=said)
    return replace(episode, rollouts=(replace(rollout, turns=(turn,)),), **fields)


def add_play(
    folder: RunFolder,
    step: int,
    answer: str,
    *,
    reward: float = 1.0,
    question: str = "One?",
    task: str = "sum",
    advantage: float | None = None,
    evaluation: bool = False,
    arena: str = "arena",
    role: str = "only",
    choices: Sequence[str] = (),
    **fields: Any,
) -> Episode:
    """Store a play of one seat; with an advantage, also what its step computed.

    With choices, the answer is a move.
    """
    episode = asked(
        make_episode({role: reward}, task=task, arena=arena), question, answer, **fields
    )
    if choices:
        [rollout] = episode.rollouts
        turn = replace(rollout.turns[0], choices=tuple(choices), move=answer)
        episode = replace(episode, rollouts=(replace(rollout, turns=(turn,)),))
    trained = None
    if advantage is not None:
        many = len(answer.encode())
        turn = TrainedTurn(
            version=4,
            advantage=advantage,
            logprobs=[-0.25] * many,
            entropies=[1.0] * many,
            clipped=[0],
        )
        trained = {episode.rollout_name(role): [turn]}
    folder.add_episodes(step, [episode], evaluation=evaluation, trained=trained)
    return episode
