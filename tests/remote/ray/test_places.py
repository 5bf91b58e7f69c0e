"""Runs on a real cluster of two nodes: with servers elsewhere, with schemas, with stores."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Generator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from accounts import balanced_ledger
from launched import announced
from long_arena import ARENA, arena_file
from metric_lines import read_steps

from legos.arena.registry import advice
from legos.cli import main
from legos.config.resolve import resolve
from legos.records.message import Message, Sampling
from legos.records.names import BASE
from legos.wiring.trainer import trainer_of

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore"),
]
STORES = ARENA.replace("return {", "t.store('seen')[t.task.id] = 1\n        return {")


@contextmanager
def server() -> Generator[str]:
    """The address of ``legos serve``."""
    line = (sys.executable, "-m", "legos", "serve", "--port", "0")
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        try:
            yield announced(process)
        finally:
            process.kill()


def test_players_in_the_cluster_ask_a_server(cluster: Any, tmp_path: Path) -> None:
    run = tmp_path / "run"
    training = ("--training.min-samples-per-step", "16", "--steps", "3", "--out", str(run))
    with server() as url:
        where = ("--ray", "auto", "--players", "2", "--server", url)
        assert main(["train", *where, "--arena", arena_file(tmp_path), *training]) == 0
    steps = list(read_steps(run / "metrics.jsonl"))
    assert [step["step"] for step in steps][-1] == 3
    assert all(step["arena/failed"] == 0 for step in steps if step["step"])
    assert all((step["mismatch_k3"] or 0) < 1e-2 for step in steps if step["step"])
    assert balanced_ledger(run)["trained"] > 0


def test_a_json_schema_holds_in_an_engine_of_the_cluster(cluster: Any) -> None:
    digit = {"type": "integer", "minimum": 0, "maximum": 9}
    schema = {"type": "object", "properties": {"n": digit}, "required": ["n"]}
    asked = Sampling(
        json_schema=json.dumps(schema | {"additionalProperties": False}), max_tokens=40
    )
    config = resolve(overrides={"ray": "auto", "engines": 1}, recommend=advice).config
    with closing(trainer_of(config, inline=False)) as trainer:
        client = trainer.client()
        said = asyncio.run(client.complete((Message("user", "?"),), asked, adapter=BASE))
    assert 0 <= json.loads(said.text)["n"] <= 9


def test_an_arena_that_keeps_something_for_later_plays_needs_one_process(
    cluster: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = arena_file(tmp_path, STORES)
    out = ("--out", str(tmp_path / "run"), "--steps", "1")
    assert main(["train", "--ray", "auto", "--arena", name, *out]) != 0
    assert "keeps 'seen' for later plays" in " ".join(capsys.readouterr().err.split())
    assert main(["train", "--ray", "auto", "--players", "0", "--arena", name, *out]) == 0
    assert balanced_ledger(tmp_path / "run")["trained"] > 0


def test_players_in_the_cluster_seat_opponents(cluster: Any, tmp_path: Path) -> None:
    run = tmp_path / "run"
    training = ("--training.min-samples-per-step", "16", "--steps", "4", "--out", str(run))
    shares = ("self=0.3", "past=0.2", "hard=0.3", "random=0.2")
    opponents = [each for share in shares for each in ("--play.opponents", share)]
    league = ("--league.snapshot-every", "1", "--league.snapshots", "2")
    with server() as url:
        where = ("--ray", "auto", "--players", "2", "--server", url)
        assert main(["train", *where, "--arena", "kuhn", *training, *opponents, *league]) == 0
    steps = [step for step in read_steps(run / "metrics.jsonl") if step["step"]]
    assert all(step["arena/failed"] == 0 for step in steps)
    met = {name for step in steps for name in step if name.startswith("league/plays_")}
    assert met == {"league/plays_past", "league/plays_random"}
    assert balanced_ledger(run)["trained"] > 0
