"""Opponents in real runs of the built-in model: two policies, a pool, and exact continuation."""

import asyncio
import io
import json
import random
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_snapshots import take as made
from metric_lines import read_steps
from safetensors.numpy import load_file
from stored_plays import TIMES

from legos import (
    Arena,
    LeagueConfig,
    Message,
    PlayConfig,
    Sampling,
    Task,
    Trainer,
    TrainingConfig,
    apply_lora,
    load_model,
    make_arena,
    training_loop,
)
from legos.cli.process import main
from legos.clients.engine import EngineClient
from legos.credit import DrGRPOCredit
from legos.league.cast import Cast
from legos.league.matchmaker import LeagueSeats
from legos.league.pool import Snapshot
from legos.play.table import Table
from legos.records.episode import Episode
from legos.records.limits import EngineLimits
from legos.run.checkpoint import newest_whole, read_state
from legos.run.folder import RunFolder
from legos.run.lock import hold
from legos.weights.adapter import Adapter
from legos.weights.folder import read_adapter
from legos.wiring.engines import TokenEngine

OPTIONS = (
    *("--arena", "kuhn", "--play.tasks-per-step", "16", "--training.min-samples-per-step", "16"),
    *("--loop.deterministic", "--loop.checkpoint-every", "3", "--loop.evaluate-every", "6"),
    *("--league.snapshot-every", "2", "--league.snapshots", "2"),
)


def train(folder: Path, *opponents: str, steps: int) -> None:
    shares = [each for share in opponents for each in ("--play.opponents", share)]
    assert main(["train", "--out", str(folder), "--steps", str(steps), *OPTIONS, *shares]) == 0


def resume(folder: Path, steps: int) -> None:
    assert main(["train", "--resume", str(folder), "--steps", str(steps)]) == 0


def timeless(folder: Path) -> list[Mapping[str, Any]]:
    lines = read_steps(folder / "metrics.jsonl")
    return [{k: v for k, v in line.items() if k not in TIMES} for line in lines]


@pytest.mark.slow
@pytest.mark.parametrize(
    "opponents",
    [
        ("self=0.3", "past=0.2", "hard=0.2", "matched=0.2", "random=0.1"),
        pytest.param(("self=0.5", "exploiter=0.5"), marks=pytest.mark.nightly),
        ("exploiter=0.5", "exploiters=0.5"),
    ],
)
def test_a_league_goes_on_exactly(opponents: tuple[str, ...], tmp_path: Path) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    train(whole, *opponents, steps=9)
    shutil.copytree(whole, parts)
    for path in (*parts.glob("checkpoints/*"), *parts.glob("adapters/**/v*")):
        if int(path.name.lstrip("step-v")) > 6:  # as if it had been killed after step 6
            shutil.rmtree(path)
    resume(parts, 9)
    rows, expected = timeless(parts), timeless(whole)
    assert [row["step"] for row in rows] == [*range(1, 10)]
    assert rows == expected
    ours, theirs = (read_state(newest_whole(at / "checkpoints")) for at in (parts, whole))
    mine, other = (state["arenas"]["kuhn"]["matchmaker"] for state in (ours, theirs))
    assert mine == other
    files = sorted(path.relative_to(whole) for path in whole.glob("adapters/**/*.safetensors"))
    assert len(files) > 4
    for file in files:
        mine, other = load_file(parts / file), load_file(whole / file)
        for name, array in other.items():
            np.testing.assert_array_equal(mine[name], array, err_msg=f"{file}")
    if "exploiter=0.5" in opponents:
        main_one, rival = (
            load_file(whole / "adapters" / at / "v9/adapters.safetensors")
            for at in ("", "exploiter")
        )
        assert any(not np.array_equal(main_one[name], rival[name]) for name in rival)
        last = timeless(whole)[8]
        assert last["exploiter/policy_version"] == last["policy_version"] == 9
        assert last["league/plays_exploiter"] == last["league/plays_policy"] > 0
        members = theirs["arenas"]["kuhn"]["matchmaker"]["pool"]["members"]
        pooled = {"policy", "exploiter"} if "exploiters=0.5" in opponents else {"policy"}
        assert {each["policy"] for each in members} == pooled


class Talk(Arena):
    """Two seats say three things each; between two turns, ``between`` is called."""

    roles = ("first", "second")
    max_tokens = 4
    group_size = tasks_per_step = 1
    between: Any = None

    def tasks(self, rng: random.Random) -> Iterator[Task]:
        for number in range(100):
            yield Task(id=f"{number}")

    async def play(self, t: Table) -> Mapping[str, float]:
        for turn in range(3):
            for role in self.roles:
                await t.ask(role, f"Say {turn}.")
            await self.between(turn)
        return {"first": 1.0, "second": -1.0}


def test_an_opponent_stays_within_its_play_while_weights_change() -> None:
    """A snapshot plays on with its own weights after training, and after others have come."""
    model = load_model("builtin")
    apply_lora(model, rank=2)
    with closing(Trainer(model=model)) as trainer:
        arena = Talk(trainer.client(), credit_assigner=DrGRPOCredit())
        league = LeagueSeats({"recent": 1.0}, Cast(arena), snapshots=2, recent=1)
        arena.matchmaker = league
        rng = np.random.default_rng(0)

        def weights(version: int) -> Adapter:
            given = trainer.adapters[0]
            arrays = {
                name: rng.standard_normal(array.shape, np.float32) * 0.3
                for name, array in given.arrays.items()
            }
            return replace(given, version=version, arrays=arrays)

        async def take(version: int) -> None:
            adapter = weights(version)
            await trainer.publisher.publish(adapter)  # as the policy
            snapshot = made(league.pool, adapter, version)
            assert snapshot is not None
            await trainer.publisher.publish(replace(adapter, name=snapshot.live))
            for gone in league.pool.forget(before=99, but=league.playing):
                await trainer.publisher.drop(gone.live)

        async def between(turn: int) -> None:
            await take(2 * turn + 2)
            await take(2 * turn + 3)

        async def play() -> Episode:
            await take(0)
            await take(1)
            [episode] = (await arena.step()).episodes
            return episode

        arena.between = between
        episode = asyncio.run(play())
        assert episode.error is None
        [rival] = [rollout for rollout in episode.rollouts if rollout.policy is None]
        [mine] = [rollout for rollout in episode.rollouts if rollout.policy is not None]
        assert rival.seat == "policy@1"
        assert {v for turn in rival.turns for v in turn.completion.versions} == {1}
        assert [turn.completion.versions[0] for turn in mine.turns] == [1, 3, 5]
        assert len({turn.completion.adapter for turn in rival.turns}) == 1
        first = next(each for each, _ in league.pool.leaving if each.step == 1)
        assert [each.live for each in league.pool.forget(before=99)] == [first.live]
        assert league.playing == set()


@pytest.mark.slow
def test_settings_alone_seat_the_past_a_bot_and_a_fixed_adapter_and_rate_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    train(Path("runs/first"), "self=1", steps=3)
    shares = ("self=0.25", "past=0.25", "random=0.25", "first@3=0.25")
    train(Path("runs/second"), *shares, steps=6)
    capsys.readouterr()
    assert main(["league", "second", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["kuhn"]
    snapshots = {name for name in found["ratings"] if name.startswith("policy@")}
    assert snapshots
    assert found["ratings"].keys() == {*snapshots, "random", "first@3"}
    assert found["ratings"]["random"]["rating"] == 0.0
    for rated in found["ratings"].values():
        assert rated["plays"] > 0
        assert rated["low"] <= rated["rating"] <= rated["high"]
    metrics = read_steps(Path("runs/second/metrics.jsonl"))
    for opponent in ("past", "random", "first@3"):
        assert sum(line.get(f"league/plays_{opponent}") or 0 for line in metrics) > 0
    assert {line["arena/failed"] for line in metrics} == {0.0}


@pytest.mark.slow
def test_a_snapshot_stays_the_same_through_a_hundred_updates(tmp_path: Path) -> None:
    """Its file and its digest, and what the engine computes and samples under its name."""
    moves = ("1", "2", "3")
    prompts = [
        ((Message("user", f"Nim: {left} left, last one wins.\nMoves: 1 2 3"),), moves)
        for left in range(4, 12)
    ]
    samplings = [Sampling(choices=moves, restrict=True, seed=seed) for seed in range(8)]
    few = TrainingConfig(learning_rate=3e-3, min_samples_per_step=4, clip_skip_threshold=1.0)
    play = PlayConfig(opponents={"recent": 1.0}, tasks_per_step=4, group_size=4)
    folder = RunFolder(tmp_path)
    with closing(Trainer(model=load_model("builtin"), config=few)) as trainer:
        client = trainer.client()
        arena: Any = make_arena(
            "kuhn", client, play=play, league=LeagueConfig(snapshot_every=2, recent=1)
        )

        async def answers(name: str) -> list[Any]:
            said = [await client.complete(prompts[0][0], one, adapter=name) for one in samplings]
            return [(each.text, each.logprobs, each.versions) for each in said]

        async def scores(name: str, *, of: EngineClient = client, last: bool = False) -> Any:
            return np.array(await of.score(prompts[4:] if last else prompts[:4], adapter=name))

        async def check() -> None:
            await training_loop(arena, trainer, 2, progress=False)
            snapshot: Snapshot = arena.matchmaker.pool.of("policy")[-1]
            folder.write_adapters(trainer.adapters)
            file = folder.adapters / f"v{snapshot.version}/adapters.safetensors"
            name, content, version = snapshot.live, file.read_bytes(), trainer.version
            said, before = await answers(name), await scores(name)
            batch = await arena.step()
            for update in range(100):
                trainer.train_step(batch)
                if update % 10 == 9:
                    await trainer.publish_weights()
            assert trainer.version == version + 100
            batch = await arena.step()
            rivals = {one.seat for play in batch.episodes for one in play.rollouts}
            assert rivals == {"policy", snapshot.name}
            kept = read_adapter(file.parent)
            assert kept.digest == snapshot.digest == trainer.engine.adapters()[name].digest
            assert file.read_bytes() == content
            assert await answers(name) == said
            np.testing.assert_allclose(await scores(name), before, atol=1e-6)
            assert np.abs(await scores("policy") - before).max() > 0.1
            # Positions that were never computed before, by an engine that has read the file.
            with closing(trainer.model.make_engine(EngineLimits())) as fresh:
                fresh.load_adapter(replace(kept, name=name)).result()
                other = TokenEngine(fresh, trainer.model).client()
                expected = await scores(name, of=other, last=True)
            np.testing.assert_allclose(await scores(name, last=True), expected, atol=1e-5)

        asyncio.run(check())


@pytest.mark.slow
def test_a_snapshot_is_asked_of_a_run_that_trains_and_a_policy_it_lacks_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(tmp_path / "run", "self=0.5", "past=0.5", steps=1)
    capsys.readouterr()
    asked = ["league", str(tmp_path / "run"), "--snapshot"]
    assert main(asked) == 2
    assert "no process trains" in capsys.readouterr().err
    with hold(tmp_path / "run"):
        assert main(asked) == 0
    assert RunFolder(tmp_path / "run").take_request()
    added = ("--play.opponents", "exploiter=1.0")
    assert main(["train", "--resume", str(tmp_path / "run"), "--steps", "2", *added]) != 0
    said = " ".join(capsys.readouterr().err.split())
    assert "it has no policy 'exploiter', which this run trains; train the policies that" in said


@pytest.mark.slow
def test_an_opponent_that_trained_on_is_refused_until_its_step_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    train(Path("runs/rival"), steps=1)
    train(Path("runs/run"), "self=0.5", "rival=0.5", steps=1)
    resume(Path("runs/rival"), 2)
    capsys.readouterr()
    assert main(["train", "--resume", "runs/run", "--steps", "2"]) != 0
    said = " ".join(capsys.readouterr().err.split())
    assert "rival, which plays in arena 'kuhn', had digest" in said
    named = [each for who in ("self", "rival@1") for each in ("--play.opponents", f"{who}=0.5")]
    assert main(["train", "--resume", "runs/run", "--steps", "2", *named]) == 0
    found = read_state(newest_whole(tmp_path / "runs" / "run" / "checkpoints"))
    assert {"rival", "rival@1"} <= {*found["arenas"]["kuhn"]["matchmaker"]["table"]["members"]}


@pytest.mark.slow
def test_a_person_who_has_played_the_policy_is_rated_among_its_opponents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    train(tmp_path / "run", "self=0.2", "past=0.4", "random=0.4", steps=4)
    for opponent in ("run", "run@2"):  # the last snapshot, which has met nobody, and the one before
        monkeypatch.setattr("sys.stdin", io.StringIO("p\nb\n" * 60))
        asked = ("--against", opponent, "--name", "ada", "--plays", "5", "--seat", "second=me")
        assert main(["play", "kuhn", *asked]) == 0
    capsys.readouterr()
    assert main(["league", "run", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["kuhn"]
    assert found["ratings"]["person:ada"]["plays"] == 10
    assert found["matrix"]["person:ada"].keys() == {"policy@2"}
    assert main(["league", "run"]) == 0
    assert re.search(r"\d person:ada +[+-]\d+ +[+-]\d+ to [+-]\d+ +10", capsys.readouterr().out)
