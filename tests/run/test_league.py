"""The league of a run without a model: snapshots, collapses, and exact continuation."""

import asyncio
import errno
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fakes import FakePublisher
from made_snapshots import adapter, take
from metric_lines import read_steps
from run_world import Match, World, check_balance, episodes
from stored_plays import TIMES

from legos.arena.arena import Arena
from legos.config.league import LeagueConfig
from legos.errors import CheckpointError, EngineError
from legos.fakes import ScriptedClient
from legos.league.cast import Cast
from legos.league.matchmaker import LeagueSeats
from legos.loop.alarm_log import AlarmLog
from legos.run.folder import RunFolder
from legos.run.league import RunLeague
from legos.weights.adapter import Adapter, AdapterInfo
from legos.weights.folder import read_adapter

SNAPSHOT = re.compile("policy-[0-9a-f]{12}")  # its name in the engines
PAST = {"self": 0.3, "past": 0.4, "hard": 0.3}
BOOKS = ("tokens_", "discarded/")  # which count the plays that a stop interrupts
EVERY = LeagueConfig(snapshot_every=1, snapshots=3)


def world(path: Path, **options: Any) -> World:
    usual: dict[str, Any] = {"opponents": PAST, "league": EVERY, "steps": 12}
    return World(path, **{**usual, **options})


def league_of(run: World) -> LeagueSeats:
    assert isinstance(run.arena.matchmaker, LeagueSeats)
    return run.arena.matchmaker


def lines(run: World) -> list[dict[str, Any]]:
    found = read_steps(run.folder.metrics)
    return [
        {k: v for k, v in line.items() if k not in TIMES and not k.startswith(BOOKS)}
        for line in found
    ]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> World:
    run = world(tmp_path_factory.mktemp("league") / "whole").start()
    assert run.go()
    return run


def test_snapshots_are_bounded_rated_and_dropped(whole: World) -> None:
    pool = league_of(whole).pool
    names = [each.name for each in pool.of("policy")]
    assert len(names) == 3
    assert (names[0], names[-1]) == ("policy@0", "policy@12")
    dropped = [name for name in whole.publisher.dropped if name != "policy-evaluated"]
    assert len(dropped) == len(set(dropped)) > 5
    live = {*whole.publisher.live} - {"policy", "policy-evaluated"}
    assert {each.live for each in pool.in_engines} <= live
    last = lines(whole)[-1]
    assert last["league/elo"] > 0
    assert last["league/fall"] == 0.0
    check_balance(whole)


def test_no_opponent_leaves_the_engines_in_a_play(whole: World) -> None:
    """The scripted client fails where an adapter is not live; so would the play."""
    assert {line["arena/failed"] for line in lines(whole)} == {0.0}
    assert league_of(whole).playing == set()


def test_snapshots_keep_their_weights(whole: World) -> None:
    for each in league_of(whole).pool.of("policy"):
        kept = read_adapter(whole.folder.adapters / f"v{each.version}")
        assert kept.digest == each.digest
        assert float(kept.arrays["mlp.lora_a"][0, 0]) == each.step


@pytest.mark.parametrize("turns", [40, 500, 777])
def test_a_stop_anywhere_leaves_a_league_that_goes_on_exactly(
    turns: int, whole: World, tmp_path: Path
) -> None:
    stopped = world(tmp_path / "run").start()
    finished = stopped.go(stop_after=turns)
    assert finished == (turns == 777)
    resumed = world(tmp_path / "run").resume()
    assert resumed.run.step == stopped.run.step
    if not finished:
        assert resumed.go()
    assert resumed.backend.trail == whole.backend.trail
    assert resumed.arena.state() == whole.arena.state()
    assert lines(resumed) == lines(whole)
    assert episodes(resumed.folder) == episodes(whole.folder)
    check_balance(resumed)


@pytest.mark.parametrize("turns", [200, 600])
def test_a_league_with_lag_loses_no_play(turns: int, tmp_path: Path) -> None:
    def lagging() -> World:
        return world(tmp_path / "run", limit=2, players=3)

    stopped = lagging().start()
    stopped.go(stop_after=turns)
    check_balance(stopped)
    resumed = lagging().resume()
    if not resumed.run.finished:
        assert resumed.go()
    assert {line["arena/failed"] for line in lines(resumed)} == {0.0}
    check_balance(resumed)


def test_files_of_a_snapshot_that_are_gone_damaged_or_replaced_are_named(tmp_path: Path) -> None:
    assert not world(tmp_path / "run").start().go(stop_after=700)
    run = world(tmp_path / "run").resume()
    snapshots = league_of(run).pool.of("policy")
    first, last = (run.folder.adapters / f"v{snapshots[at].version}" for at in (0, -1))
    kept = tmp_path / "kept"
    shutil.move(first, kept)
    with pytest.raises(
        CheckpointError, match=r"snapshot policy@0 .* cannot be read.*bring it back"
    ):
        run.go()
    shutil.copytree(last, first)
    with pytest.raises(
        CheckpointError, match=r"policy@0 of the league had digest .* but .*v0 hold"
    ):
        world(tmp_path / "run").resume().go()
    shutil.rmtree(first)
    shutil.copytree(kept, first)
    (first / "adapters.safetensors").write_bytes(b"cut")
    with pytest.raises(CheckpointError, match=r"snapshot policy@0 .* cannot be read"):
        world(tmp_path / "run").resume().go()
    shutil.rmtree(first)
    shutil.move(kept, first)
    assert world(tmp_path / "run").resume().go()


def test_a_run_that_gets_opponents_later_starts_a_pool(tmp_path: Path) -> None:
    assert world(tmp_path / "run", opponents={}, steps=4).start().go()
    resumed = world(tmp_path / "run", steps=8).resume()
    assert league_of(resumed).pool.members == []
    assert resumed.go()
    steps = [each.step for each in league_of(resumed).pool.of("policy")]
    assert (steps[0], steps[-1]) == (4, 8)


def test_a_fork_goes_on_with_the_opponents_of_its_run(whole: World, tmp_path: Path) -> None:
    fork = world(tmp_path / "fork", steps=14)
    with fork.folder.new_run("# settings"):
        [*_, place] = sorted(whole.folder.checkpoints.iterdir())
        fork.run.fork(place, same_credit=True, same_evaluation=True)
    before = [each.digest for each in league_of(whole).pool.of("policy")]
    assert [each.digest for each in league_of(fork).pool.of("policy")] == before
    assert fork.go()


def test_a_full_disk_is_named_where_a_fork_copies_its_opponents(
    whole: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    fork = world(tmp_path / "fork", steps=14)
    monkeypatch.setattr(shutil, "copytree", full)
    [*_, place] = sorted(whole.folder.checkpoints.iterdir())
    with (
        pytest.raises(CheckpointError, match=r"fork/adapters/v\d+ cannot be written: .*No space"),
        fork.folder.new_run("# settings"),
    ):
        fork.run.fork(place, same_credit=True, same_evaluation=True)
    assert not fork.folder.path.exists()


def test_a_resumed_run_may_keep_fewer_snapshots(whole: World, tmp_path: Path) -> None:
    shutil.copytree(whole.folder.path, tmp_path / "run")
    fewer = LeagueConfig(snapshot_every=1, snapshots=2)
    resumed = world(tmp_path / "run", league=fewer, steps=14).resume()
    assert resumed.go()
    assert len(league_of(resumed).pool.of("policy")) == 2


def ask_at(run: World, step: int) -> None:
    """Ask for a snapshot while the step after some steps is computed."""
    forward = run.backend.forward_backward

    def asking(*args: Any, **options: Any) -> Any:
        if run.trainer.step == step:
            run.folder.request.touch()
        return forward(*args, **options)

    run.backend.forward_backward = asking


def length_at(line: dict[str, Any]) -> float:
    """Tokens of a seat in a step."""
    [(tokens, rollouts)] = [
        (value, line[name.replace("tokens", "rollouts")])
        for name, value in line.items()
        if name.startswith("batches/") and name.endswith("/tokens")
    ]
    assert tokens > 0
    return tokens / rollouts


def test_snapshots_are_taken_at_the_best_evaluations_and_by_request(tmp_path: Path) -> None:
    seldom = LeagueConfig(snapshot_every=100)
    run = world(tmp_path / "run", league=seldom, keep_best="share")
    run.evaluation.shares = {2: 0.7, 3: 0.6, 4: 0.8}  # of steps 3, 6 and 9
    ask_at(run, 4)
    assert run.start().go()
    assert [each.step for each in league_of(run).pool.of("policy")] == [0, 3, 5, 9]
    assert not run.folder.request.exists()
    steps = {line["step"]: line for line in lines(run)}
    for each in league_of(run).pool.of("policy"):
        assert read_adapter(run.folder.adapters / f"v{each.version}").digest == each.digest
        assert each.length == (length_at(steps[each.step]) if each.step else 0.0)


def test_a_request_at_a_step_that_takes_a_snapshot_anyway_takes_no_second(tmp_path: Path) -> None:
    run = world(tmp_path / "run", league=LeagueConfig(snapshot_every=4), steps=7)
    ask_at(run, 3)
    assert run.start().go()
    assert [each.step for each in league_of(run).pool.of("policy")] == [0, 4]


def test_no_play_draws_a_snapshot_before_it_is_live(tmp_path: Path) -> None:
    run = world(tmp_path / "run", limit=2, players=3)
    publish = run.publisher.publish

    async def slow(adapter: Adapter) -> AdapterInfo:
        for _ in range(300 if SNAPSHOT.fullmatch(adapter.name) else 0):  # other plays begin
            await asyncio.sleep(0)
        return await publish(adapter)

    run.publisher.publish = slow
    assert run.start().go()
    assert {line["arena/failed"] for line in lines(run)} == {0.0}
    check_balance(run)


def test_a_snapshot_that_no_engine_took_is_published_by_the_resumed_run(
    whole: World, tmp_path: Path
) -> None:
    run = world(tmp_path / "run")
    publish = run.publisher.publish

    async def failing(adapter: Adapter) -> AdapterInfo:
        if adapter.version == 5 and SNAPSHOT.fullmatch(adapter.name):
            raise EngineError("no server answers")
        return await publish(adapter)

    run.publisher.publish = failing
    with pytest.raises(EngineError, match="no server answers"):
        run.start().go()
    resumed = world(tmp_path / "run").resume()
    assert league_of(resumed).pool.of("policy")[-1].name == "policy@5"
    assert resumed.go()
    assert resumed.backend.trail == whole.backend.trail
    assert resumed.arena.state() == whole.arena.state()
    check_balance(resumed)


@pytest.mark.parametrize("what", ["report", "stop", "rollback"])
def test_a_planted_collapse_is_caught(
    what: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Match, "tasks_per_step", 40)  # each counts as one play
    settings = LeagueConfig(snapshot_every=2, snapshots=8, on_collapse=what)
    run = world(tmp_path / "run", league=settings, opponents={"past": 1.0}, steps=16)
    strong = 8
    adapters: list[float] = []
    forward = run.backend.forward_backward

    def collapsing(*args: Any, **options: Any) -> Any:
        if run.trainer.step == strong:
            weak = read_adapter(run.folder.adapters / "v0")
            run.backend.take(weak).result()
        adapters.append(run.backend.value)
        return forward(*args, **options)

    run.backend.forward_backward = collapsing
    finished = run.start().go()
    assert finished == (what != "stop")
    found = lines(run)
    caught = next(line for line in found if line.get("league/fall", 0.0) >= 100)
    assert caught["step"] in (10, 12)
    assert "the rating is" in caplog.text
    pool = league_of(run).pool
    if what == "stop":
        assert run.run.step == caught["step"]
        assert run.state["trainer"]["step"] == caught["step"]
    elif what == "rollback":
        at = {each.name: each for each in pool.of("policy")}
        best = at[re.findall(r"below that of (policy@\d+)", caplog.text)[0]]
        assert best.step in (strong - 2, strong)
        assert at[f"policy@{caught['step']}"].digest == best.digest
        assert adapters[caught["step"]] == best.step  # the step after it begins from there
        assert at[f"policy@{caught['step']}"].length == best.length
        assert found[-1]["league/fall"] == 0.0
    else:
        assert adapters[-1] < strong
        weak = next(each for each in pool.of("policy") if each.step == caught["step"])
        assert weak.length == length_at(caught)
    check_balance(run)


@pytest.mark.parametrize("arenas", [("duel",), ("duel", "solo")])
def test_every_policy_of_an_arena_is_judged_but_the_exploiter(
    arenas: tuple[str, ...], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Of three policies that meet a random player, the first and the exploiter have fallen."""
    shares = {"policy": (0.7, 0.1), "solver": (0.5, 0.9), "exploiter": (0.7, 0.1)}
    policies, stopped = (*shares,), list[bool]()
    league = LeagueSeats({"past": 1.0}, Cast(Arena(ScriptedClient([]))))
    for name, won in shares.items():
        for step, share in enumerate(won):
            take(league.pool, adapter(step, name=name), step)
            for play in range(200):
                reward = 1.0 if play < 200 * share else -1.0
                account = league.table.account(f"{name}@{step}", "random", ["first"], ["second"])
                account.count(reward, -reward)
    usual = SimpleNamespace(matchmaker=None, policies=("policy",))
    played = SimpleNamespace(matchmaker=league, policies=policies)
    mix: Any = SimpleNamespace(arenas={**dict.fromkeys(arenas, usual), "duel": played})
    trainer: Any = SimpleNamespace(
        step=2,
        num_steps=4,
        policies=policies,
        alarms=AlarmLog(),
        settings=SimpleNamespace(staleness_limit=0),
    )

    async def stop() -> None:
        stopped.append(True)

    async def on_writer(write: Callable[[], object]) -> None:
        write()

    run = RunLeague(
        mix,
        RunFolder(tmp_path),
        trainer,
        LeagueConfig(snapshot_every=2, on_collapse="stop"),
        adapters=list,
        stop=stop,
        discard=lambda _: None,
        on_writer=on_writer,
    )
    found = asyncio.run(run.after_step(FakePublisher(), {"solver/entropy": 0.5}))
    prefix = "league/" if len(arenas) == 1 else "league/duel/"
    assert found[f"{prefix}fall"] > 100
    assert found[f"{prefix}forgotten"] == 1
    assert found[f"{prefix}solver/fall"] == found[f"{prefix}solver/forgotten"] == 0
    assert not any("exploiter" in name for name in found)
    assert stopped == [True]
    assert "its best snapshot is policy@0" in caplog.text


def test_one_of_two_arenas_has_opponents(tmp_path: Path) -> None:
    run = world(tmp_path / "run", mixed=True, steps=6)
    assert run.start().go()
    last = lines(run)[-1]
    assert any(name.startswith("league/match/plays_past") for line in lines(run) for name in line)
    assert not any(name.startswith("league/solo") for name in last)
    assert len(league_of(run).pool.of("policy")) == 3
    check_balance(run)
    again = world(tmp_path / "run", mixed=True, steps=6).resume()
    assert json.loads(json.dumps(again.arena.state())) == json.loads(json.dumps(run.arena.state()))
