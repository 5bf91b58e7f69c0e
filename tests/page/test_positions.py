"""Positions with a real engine: what checkpoints do there, and plays that go on."""

import asyncio
import json
import shutil
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from math import exp
from pathlib import Path
from typing import Any, cast

import pytest
from made_runs import LOOPBACK, add_play, answered, made_run, page_of
from short_runs import NIM
from starlette.testclient import TestClient

from legos import open_run
from legos.apps.adapters import loaded
from legos.cli.process import main
from legos.clients.engine import EngineClient
from legos.fakes import ScriptedClient
from legos.page import checkpoints as live_adapters
from legos.page.app import make_page
from legos.page.checkpoints import Checkpoints
from legos.page.shown import ShownRuns
from legos.records.limits import EngineLimits
from legos.records.message import Message, Sampling, Thinking
from legos.run.episodes import in_order
from legos.server.options import ServerOptions


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of nim, one of kuhn, and one of a chat model that is not loaded."""
    place = tmp_path_factory.mktemp("positions") / "runs"
    for name, options in (("nim", NIM), ("kuhn", ("--play.tasks-per-step", "8"))):
        kept = ("--loop.plays-kept", "1", "--loop.checkpoint-every", "1", "--steps", "3")
        assert not main(["train", "--arena", name, *options, *kept, "--out", f"{place}/{name}"])
    shutil.copytree(Path(__file__).parent / "countdown_run", place / "countdown")
    return place


@pytest.fixture(scope="module")
def page(runs: Path) -> Iterator[TestClient]:
    """The page of these runs, with the built-in model."""
    shown = ShownRuns([str(runs)])
    with loaded("builtin", [], EngineLimits()) as live:
        checkpoints = Checkpoints(live.name, live.client, shown)
        app = make_page(shown, ServerOptions.for_host("127.0.0.1", api_key=None), checkpoints)
        with TestClient(app, base_url=LOOPBACK, raise_server_exceptions=False) as client:
            yield client


def post(page: TestClient, path: str, **body: Any) -> Any:
    """The answer to a question that has one."""
    response = page.post(f"/api/{path}", json=body)
    assert response.status_code == 200, response.text
    return response.json()


def shares(page: TestClient, question: dict[str, Any], who: str) -> dict[str, Any]:
    """What a checkpoint would do at a question."""
    asked = {name: value for name, value in question.items() if name != "role"}
    return post(page, "answers", checkpoint=who, **asked)


@pytest.mark.parametrize("run", ["nim", "kuhn"])
def test_a_stored_play_is_repeated_turn_by_turn(page: TestClient, runs: Path, run: str) -> None:
    checked = 0
    for episode in open_run(runs / run).episodes()[:6]:
        number, turns = episode.number or 0, in_order(episode)
        for index in range(1, len(turns)):
            seat, at = turns[index - 1]
            said = [{"role": seat.role, "text": seat.turns[at].said}]
            place = {"run": run, "play": number}
            repeated = post(page, "positions", **place, turn=index, said=said)
            stored = post(page, "positions", **place, turn=index + 1)
            for name in ("role", "messages", "choices"):
                assert repeated["question"][name] == stored["question"][name]
            assert len(repeated["play"]["turns"]) == index
            checked += 1
    assert checked


def test_a_checkpoint_has_the_probabilities_with_which_it_played(
    page: TestClient, runs: Path
) -> None:
    checked = 0
    for episode in open_run(runs / "nim").episodes():
        for index, (seat, at) in enumerate(in_order(episode)):
            turn = seat.turns[at]
            if seat.policy is None or not turn.legal or len(set(turn.versions)) > 1:
                continue
            place = {"run": "nim", "play": episode.number, "turn": index + 1}
            question = post(page, "positions", **place)["question"]
            found = shares(page, question, f"nim@v{turn.versions[0]}")
            assert sum(found["moves"].values()) == pytest.approx(1)
            chance = found["moves"][turn.move] * (1 - found["illegal"])
            assert chance == pytest.approx(exp(sum(turn.logprobs)), rel=1e-3)
            checked += 1
        if checked > 12:
            break
    assert checked


def test_exact_values_stand_beside_the_moves(page: TestClient) -> None:
    """Whoever leaves a multiple of four stones wins."""
    won: set[bool] = set()
    for seed in range(9):
        found = post(page, "positions", run="nim", seed=seed)
        left = int(found["question"]["messages"][0]["content"].split()[1])
        values = {int(each["move"]): each["value"] for each in found["exact"]}
        assert values == {
            move: 1.0 if (left - move) % 4 == 0 else -1.0 for move in (1, 2, 3) if move <= left
        }
        best = {int(each["move"]) for each in found["exact"] if each["optimal"]}
        assert best == {move for move in values if values[move] == max(values.values())}
        won.add(max(values.values()) > 0)
    assert won == {True, False}


def test_a_person_plays_a_seat_against_a_checkpoint_to_the_end(page: TestClient) -> None:
    place = {"run": "nim", "seed": 1, "seat": "first", "against": "nim@v3"}
    said: list[dict[str, Any]] = []
    for _ in range(9):
        found = post(page, "positions", **place, said=said)
        assert found["said"][: len(said)] == said
        said = found["said"]
        if found["question"] is None:
            break
        assert found["question"]["role"] == "first"
        assert {turn["role"] for turn in found["play"]["turns"]} <= {"first"}
        said = [*said, {"role": "first", "text": "1"}]
    assert sum(found["play"]["returns"].values()) == 0
    assert set(found["play"]["returns"].values()) == {1.0, -1.0}
    assert {each["role"] for each in said} == {"first", "second"}
    assert post(page, "positions", **place, said=said)["said"] == said


def test_a_question_of_a_text_arena_is_answered_and_scored(page: TestClient, runs: Path) -> None:
    [number] = [e.number for e in open_run(runs / "countdown").episodes() if e.number == 9]
    found = post(page, "positions", run="countdown", play=number)
    assert found["question"]["messages"][-1]["content"].startswith("Use 8, 2 once each")
    said = [{"role": "player", "text": "8 - 2"}]
    ended = post(page, "positions", run="countdown", play=number, said=said)
    assert ended["question"] is None
    assert ended["play"]["rewards"] == {"player": 1.0}
    question = found["question"]
    question["sampling"]["max_tokens"] = 4
    greedy = [shares(page, question, "base") for _ in range(2)]
    assert greedy[0]["text"] == greedy[1]["text"]
    assert greedy[0]["tokens"] <= 4


@pytest.mark.slow
def test_what_cannot_be_asked_is_named(page: TestClient, runs: Path) -> None:
    def refused(path: str, **body: Any) -> tuple[int, str]:
        response = page.post(f"/api/{path}", json=body)
        return response.status_code, response.json()["error"]["message"]

    status, message = refused("positions", run="nim", play=1, turn=99)
    assert status == 404
    assert "no turn 99" in message
    assert refused("positions", run="nowhere")[0] == 404
    assert refused("positions", run="nim", seat="third") == (404, "nim has no role 'third'")
    question = post(page, "positions", run="nim")["question"]
    asked = {name: value for name, value in question.items() if name != "role"}
    status, message = refused("answers", checkpoint="nim@v77", **asked)
    assert status == 404
    assert "v77" in message
    asked["messages"] = [{"role": 3}]
    assert refused("answers", checkpoint="base", **asked)[0] == 400
    folder = made_run(runs / "filed", arena="mine.py:Mine")
    add_play(folder, 1, "x", arena="mine")
    assert post(page, "positions", run="filed", play=1)["question"]["role"] == "only"
    said = [{"role": "only", "text": "y"}]
    status, message = refused("positions", run="filed", play=1, said=said)
    assert status == 409
    assert "the page runs no file and no world" in message
    shutil.rmtree(folder.path)


def test_an_adapter_of_another_model_is_refused(page: TestClient, runs: Path) -> None:
    folder = runs / "other" / "adapters" / "v1"
    shutil.copytree(runs / "nim", runs / "other")
    config = folder / "adapter_config.json"
    text = config.read_text()
    config.write_text(text.replace('"builtin"', '"someone/other-model"'))
    assert text != config.read_text()
    question = post(page, "positions", run="nim")["question"]
    asked = {name: value for name, value in question.items() if name != "role"}
    response = page.post("/api/answers", json={"checkpoint": "other@v1", **asked})
    assert response.status_code == 400
    assert "someone/other-model" in response.json()["error"]["message"]
    shutil.rmtree(runs / "other")


def test_many_requests_at_once_and_few_adapters_at_a_time(
    page: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_adapters, "_MOST_LIVE", 2)
    question = post(page, "positions", run="nim")["question"]
    names = [f"nim@v{version}" for version in range(4)] * 4
    alone = {name: shares(page, question, name) for name in set(names)}
    with ThreadPoolExecutor(8) as threads:
        together = list(threads.map(lambda name: shares(page, question, name), names))
    for name, found in zip(names, together, strict=True):
        assert found["moves"] == pytest.approx(alone[name]["moves"], rel=1e-4)
    assert len({json.dumps(each["moves"]) for each in alone.values()}) == len(alone)


@dataclass(frozen=True)
class _Adapter:
    """An adapter that fits every model."""

    name: str = ""
    thinking: Thinking | None = None

    def check_base(self, model: str) -> None:
        pass


class _Engine:
    """An engine whose first load goes on for ever, and ends when nobody waits for it."""

    def __init__(self) -> None:
        self.live: list[str] = []
        self.asked = asyncio.Event()

    def load_adapter(self, adapter: _Adapter) -> "Future[None]":
        future = Future[None]()
        future.set_running_or_notify_cancel()
        if self.asked.is_set():
            future.set_result(None)
        self.live.append(adapter.name)
        self.asked.set()
        return future

    def drop_adapter(self, name: str) -> "Future[None]":
        self.live.remove(name)
        future = Future[None]()
        future.set_result(None)
        return future


def test_an_adapter_whose_question_was_left_is_dropped_in_its_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(live_adapters, "_MOST_LIVE", 1)
    monkeypatch.setattr(live_adapters, "read_adapter", lambda _: _Adapter())
    monkeypatch.setattr(Checkpoints, "_place", lambda _, who: (Path(who), 0))
    engine, client = _Engine(), ScriptedClient(["1"] * 9)
    monkeypatch.setattr(client, "engine", engine, raising=False)
    checkpoints = Checkpoints("model", lambda _: cast("EngineClient", client), ShownRuns())
    asked = [Message("user", "?")]

    async def scenario() -> None:
        left = asyncio.create_task(checkpoints.complete("a", asked, Sampling()))
        await engine.asked.wait()
        left.cancel()
        await asyncio.gather(left, return_exceptions=True)
        for who in ("b", "c"):
            await checkpoints.complete(who, asked, Sampling())

    asyncio.run(scenario())
    assert len(engine.live) == 1


def test_each_checkpoint_is_asked_with_the_thinking_of_its_training(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trained: dict[str, Thinking | None] = {"off": "off", "unknown": None}
    monkeypatch.setattr(
        live_adapters, "read_adapter", lambda folder: _Adapter(thinking=trained[str(folder)])
    )
    monkeypatch.setattr(Checkpoints, "_place", lambda _, who: (Path(who), 0))
    engine = _Engine()
    engine.asked.set()

    def client(thinking: Thinking) -> EngineClient:
        made: Any = ScriptedClient([thinking] * 9)
        made.engine = engine
        return cast("EngineClient", made)

    checkpoints = Checkpoints("model", client, ShownRuns())
    for who, thinking in (("base", "default"), ("off", "off"), ("unknown", "default")):
        asked = checkpoints.complete(who, [Message("user", "?")], Sampling())
        assert asyncio.run(asked).text == thinking


def test_without_a_model_positions_are_shown_and_nobody_answers(runs: Path) -> None:
    page = page_of(parent=runs)
    listed = answered(page, "checkpoints")
    assert listed["model"] is None
    [nim] = [run for run in listed["runs"] if run["run"] == "nim"]
    assert [each["step"] for each in nim["checkpoints"]] == [0, 1, 2, 3]
    assert nim["checkpoints"][0]["name"] == "nim@v0"
    assert post(page, "positions", run="nim")["question"]["choices"]
    place = {"run": "nim", "seat": "second", "against": "base"}
    response = page.post("/api/positions", json=place)
    assert response.status_code == 409
    assert "legos view --model" in response.json()["error"]["message"]
