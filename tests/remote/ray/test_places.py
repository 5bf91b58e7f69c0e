"""Runs on a real cluster of two nodes: with servers elsewhere, with schemas, with stores."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Generator, Sequence
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
    pytest.mark.optional,
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore"),
]
DUEL = """
from dataclasses import replace

from legos import Arena, Task

class Duel(Arena):
    roles = policies = ("first", "second")
    tasks_per_step, group_size, max_tokens = 8, 4, 4

    def tasks(self, rng):
        for number in range(1000):
            yield Task(id=str(number))

    def seats(self, task):
        seats = super().seats(task)
        return {role: replace(seat, name=role, adapter=role) for role, seat in seats.items()}

    async def play(self, t):
        said = [(await t.ask(role, f"Nim: {t.task.id} left")).text for role in self.roles]
        gain = float(len(said[0]) - len(said[1]))
        return {"first": gain, "second": -gain}
"""
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


@pytest.mark.nightly
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


@pytest.mark.nightly
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


@pytest.mark.nightly
def test_an_arena_that_keeps_something_for_later_plays_needs_one_process(
    cluster: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = arena_file(tmp_path, STORES)
    out = ("--out", str(tmp_path / "run"), "--steps", "1")
    assert main(["train", "--ray", "auto", "--arena", name, *out]) != 0
    assert "keeps 'seen' for later plays" in " ".join(capsys.readouterr().err.split())
    assert main(["train", "--ray", "auto", "--players", "0", "--arena", name, *out]) == 0
    assert balanced_ledger(tmp_path / "run")["trained"] > 0


@pytest.mark.nightly
def test_players_in_the_cluster_seat_opponents_of_a_server(cluster: Any, tmp_path: Path) -> None:
    with server() as url:
        where = ("--ray", "auto", "--players", "2", "--server", url)
        shares = ("self=0.3", "past=0.2", "hard=0.3", "random=0.2")
        assert met(tmp_path / "run", *where, "--arena", "kuhn", shares=shares) == {"past", "random"}


@pytest.mark.nightly
def test_opponents_play_in_two_engines_of_the_cluster(cluster: Any, tmp_path: Path) -> None:
    """Those of an arena with two policies: snapshots of each, and the adapters of another run."""
    (tmp_path / "duel.py").write_text(DUEL)
    arena, other = ("--arena", f"{tmp_path / 'duel.py'}:Duel"), tmp_path / "other"
    training = ("--training.min-samples-per-step", "8", "--training.lora-rank", "4")
    assert main(["train", *arena, *training, "--steps", "1", "--out", str(other)]) == 0
    where = ("--ray", "auto", "--players", "2", "--engines", "2")
    shares = ("self=0.2", "past=0.5", f"{other}=0.3")
    assert met(tmp_path / "run", *where, *arena, shares=shares) == {"past", str(other)}


def met(run: Path, *options: str, shares: Sequence[str]) -> set[str]:
    """Whom a run with opponents has met; none of its plays may fail."""
    opponents = [each for share in shares for each in ("--play.opponents", share)]
    league = ("--league.snapshot-every", "1", "--league.snapshots", "2")
    training = ("--training.min-samples-per-step", "16", "--steps", "6", "--out", str(run))
    assert main(["train", *options, *training, *opponents, *league]) == 0
    steps = [step for step in read_steps(run / "metrics.jsonl") if step["step"]]
    assert all(step["arena/failed"] == 0 for step in steps)
    assert balanced_ledger(run)["trained"] > 0
    of = "league/plays_"
    names = {name for step in steps for name in step if name.startswith(of)}
    return {name.removeprefix(of) for name in names} - {"first", "second"}
