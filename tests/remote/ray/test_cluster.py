"""Training on a cluster of two nodes (extra ``ray``): ``pytest -m optional tests/remote/ray``."""

import asyncio
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
from accounts import balanced_ledger
from long_arena import arena_file
from metric_lines import read_steps

from legos.arena.registry import advice
from legos.cli.process import main
from legos.config.resolve import resolve
from legos.config.schema import RunConfig
from legos.errors import ConfigError
from legos.loop.loop import training_loop
from legos.loop.trainer import Metrics
from legos.records.group import Group
from legos.wiring.arena import make_arena
from legos.wiring.ray import ray_players
from legos.wiring.trainer import trainer_of

pytestmark = [
    pytest.mark.optional,
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore"),
]


def test_a_run_with_an_arena_file_is_balanced_and_resumed(cluster: Any, tmp_path: Path) -> None:
    run = tmp_path / "run"
    options = ("--arena", arena_file(tmp_path), "--players", "1", "--engines", "1")
    training = ("--training.min-samples-per-step", "16")
    assert (
        main(["train", "--ray", "auto", *options, *training, "--steps", "3", "--out", str(run)])
        == 0
    )
    assert balanced_ledger(run)["trained"] > 0
    assert main(["train", "--resume", str(run), "--steps", "5"]) == 0
    steps = {int(step["step"] or 0): step for step in read_steps(run / "metrics.jsonl")}
    assert {1, 2, 3, 4, 5} <= steps.keys()
    assert all(steps[n]["arena/failed"] == 0 for n in range(1, 6))
    assert all((steps[n]["mismatch_k3"] or 0) < 1e-2 for n in range(1, 6))
    lags = [lag or 0 for name, lag in steps[5].items() if name.startswith("publish/lag_versions/")]
    assert lags == [0]
    ledger = balanced_ledger(run)
    assert ledger["trained"] + sum(ledger["filtered"].values()) > 0


def prepared(cluster: Any, actor: Any) -> Any:
    """What an actor's ``prepare`` returns, once Ray has started it again."""
    until = time.monotonic() + 60
    while True:
        try:
            return cluster.get(actor.prepare.remote())
        except cluster.exceptions.ActorUnavailableError:
            if time.monotonic() > until:
                raise
            time.sleep(0.2)


@pytest.mark.nightly  # a minute of chaos
def test_a_killed_player_and_a_killed_engine_lose_only_unfinished_groups(cluster: Any) -> None:
    config = resolve(
        overrides={"ray": "auto", "players": 2, "engines": 2, "play.tasks_per_step": 32},
        recommend=advice,
    ).config
    killed: list[int] = []
    reached: list[int] = []
    trainer = trainer_of(config, inline=False)
    try:
        arena = make_arena(config.arena, trainer.client(), play=config.play, seed=config.seed)
        with ray_players(config, trainer.generation, trainer.model) as made:
            players: Any = made
            engine: Any = trainer.engine

            async def kill(metrics: Metrics, batches: Sequence[Group]) -> None:
                reached.append(
                    min(v for b in batches for s in b.samples for v in s.versions if v >= 0)
                )
                if metrics["step"] in (3, 6):
                    ones = players._players if metrics["step"] == 3 else engine.servers
                    killed.append(await ones[0].actor.__ray_call__.remote(lambda _: os.getpid()))
                    os.kill(killed[-1], signal.SIGKILL)

            asyncio.run(
                training_loop(
                    arena,
                    trainer,
                    14,
                    episode_concurrency=32,
                    after_step=kill,
                    play=players.play,
                    progress=False,
                )
            )
            assert players.deaths >= 1
            assert not {prepared(cluster, one.actor) for one in players._players} & {*killed}
            for one in engine.servers:  # which have the newest adapter again
                assert prepared(cluster, one.actor).startswith("http://")
                url, key = cluster.get(one.actor.address.remote()), one.api_key
                headers = {"authorization": f"Bearer {key}"}
                live = httpx.get(f"{url}/adapters/version", headers=headers).json()
                assert live["version"] >= 14 - trainer.settings.staleness_limit
        trainer.ledger.check(queued=0)  # what was queued at the end is discarded as unused
        assert trainer.step == 14
        assert reached[-1] >= 14 - 1 - trainer.settings.staleness_limit
    finally:
        trainer.close()


def test_a_node_with_another_version_is_refused_before_the_first_step(
    cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("legos.remote.ray.cluster.kit_digest", lambda: "0123")
    with pytest.raises(ConfigError, match=r"node \S+ has another version of legos"):
        trainer_of(RunConfig(ray="auto"), inline=False)
