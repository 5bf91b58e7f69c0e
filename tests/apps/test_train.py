"""``legos train``: what it leaves, and that its books are those of the engine."""

import json
import os
import re
import shlex
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from accounts import balanced_ledger
from bench.server_processes import running
from metric_lines import read_steps
from rivals import rivals_file
from short_runs import FEW, NIM
from tiny_folders import write_tiny_model
from wandb_file import WandbFile

from legos.apps import train as app
from legos.apps.runs import list_runs
from legos.cli.process import main
from legos.config.resolve import read_config
from legos.config.schema import RunConfig
from legos.records.names import POLICY, evaluated_name
from legos.run.checkpoint import newest_whole, read_state
from legos.track.experiment import grouped
from legos.track.jsonl import JsonlTracker
from legos.weights.folder import read_adapter
from legos.wiring.trainer import Trainer, trainer_of

PROMISED = {
    "step",
    "loss",
    "clip_fraction",
    "kl_divergence",
    "advantage_mean",
    "advantage_std",
    "policy_version",
    "samples_per_step",
    "reward_mean",
    "staleness_max",
    "entropy",
    "grad_norm",
    "tokens_generated",
    "tokens_trained",
    "tokens_filtered",
    "tokens_discarded",
    "mismatch_k3",
    "step_s",
}
USES = ("trained", "filtered", "discarded", "queued")


@pytest.fixture(autouse=True)
def empty_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def trainers(monkeypatch: pytest.MonkeyPatch) -> list[Trainer]:
    """Every trainer that a command makes."""
    made: list[Trainer] = []

    def make(config: RunConfig, **arguments: Any) -> Trainer:
        made.append(trainer_of(config, **arguments))
        return made[-1]

    monkeypatch.setattr(app, "trainer_of", make)
    return made


def check_lines(run: Path, steps: int) -> None:
    lines = read_steps(run / "metrics.jsonl")
    assert [line["step"] for line in lines] == list(range(1, steps + 1))
    for line in lines:
        assert line.keys() >= PROMISED
        assert None not in line.values()
        assert 0.0 <= (line["loop/trainer_idle_share"] or 0.0) < 1.0
        assert 0.0 <= (line["loop/lag_max_s"] or 0.0) < 10.0  # 0 where no check fell into the step
        # 1 where all groups of a step had been played before it began
        assert 0.0 <= (line["loop/engine_idle_share"] or 0.0) <= 1.0
        assert line["tokens_generated"] == sum(line[f"tokens_{use}"] or 0 for use in USES)
    assert min(line["loop/engine_idle_share"] or 0.0 for line in lines) < 1.0


@pytest.mark.slow
def test_runs_without_a_name_are_numbered(
    empty_place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in (1, 2):
        assert main(["train", *NIM, "--steps", "2"]) == 0
        told = capsys.readouterr().out
        assert f"plays nim for 2 steps, in runs/nim-{number}" in told
        assert f"uv run legos eval runs/nim-{number}\n" in told
        assert f"uv run legos serve --adapter runs/nim-{number}\n" in told
    assert sorted(path.name for path in Path("runs").iterdir()) == ["nim-1", "nim-2"]
    assert [path.name for path in empty_place.iterdir()] == ["runs"]
    assert sorted(path.name for path in Path("runs/nim-2").iterdir()) == [
        "adapters",
        "checkpoints",
        "config.toml",
        "episodes.jsonl",
        "evaluations.jsonl",
        "metrics.jsonl",
    ]
    assert sorted(path.name for path in Path("runs/nim-2/adapters").iterdir()) == ["v0", "v2"]
    assert read_adapter(Path("runs/nim-2/adapters/v2")).base_model == "builtin"
    check_lines(Path("runs/nim-1"), 2)
    assert read_config(Path("runs/nim-1/config.toml")).loop.steps == 2


def hints(told: str) -> list[str]:
    """The commands that a run ends with."""
    return [line.strip() for line in told.partition("next, try\n")[2].splitlines()]


@pytest.mark.nightly
def test_the_commands_at_the_end_fit_the_model_and_the_arena(
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = str(write_tiny_model(Path("my models/tiny")))
    assert main(["train", *NIM, "--steps", "1", "--model", folder]) == 0
    evaluate, serve, longer = map(shlex.split, hints(capsys.readouterr().out))
    assert serve[2:] == ["legos", "serve", "--adapter", "runs/nim-1"]
    assert longer[2:] == ["legos", "train", "--resume", "runs/nim-1", "--steps", "2"]
    assert main(evaluate[3:]) == 0
    assert main(longer[3:]) == 0
    with running([sys.executable, "-m", *serve[2:]]) as server:
        live = httpx.get(f"{server.url}/adapters/version").json()["adapters"]
    newest = read_steps(Path("runs/nim-1/metrics.jsonl"))[-1]["policy_version"]
    assert [one["version"] for one in live if one["name"] == "policy"] == [newest]


def test_after_a_game_that_ships_with_the_kit_the_other_one_is_next(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["train", *FEW, "--steps", "1", "--arena", "kuhn"]) == 0
    assert hints(capsys.readouterr().out)[2] == "uv run legos train --arena nim"


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        ["--deterministic"],
        ["--loop.step-concurrency", "4", "--training.staleness-limit", "1"],
        ["--arena", "kuhn", "--training.kl-coef", "0.1"],
        ["--training.micro-batch-tokens", "42"],  # the larger piles' prompts stand alone
    ],
    ids=" ".join,
)
def test_the_books_are_those_of_the_engine(options: list[str], trainers: list[Trainer]) -> None:
    assert main(["train", "--out", "run", *FEW, "--steps", "4", *options]) == 0
    check_lines(Path("run"), 4)
    [trainer] = trainers
    ledger = balanced_ledger(Path("run"))
    assert ledger["generated"] == trainer.engine.tokens_generated("policy").result()
    assert "too_long" not in ledger["filtered"]


@pytest.mark.slow
def test_tokens_of_a_rival_that_is_not_trained_are_not_in_the_books(
    trainers: list[Trainer],
) -> None:
    name = rivals_file(Path(), "base")
    arena = ("--arena", name, "--play.credit", "rae", "--loop.evaluation-plays", "4")
    assert main(["train", "--out", "run", *FEW, "--steps", "2", *arena]) == 0
    engine = trainers[0].engine
    assert engine.tokens_generated("base").result() > 0
    ledger = read_state(newest_whole(Path("run/checkpoints")))["trainer"]["ledger"]
    names = (POLICY, evaluated_name(POLICY))
    assert ledger["generated"] == sum(engine.tokens_generated(name).result() for name in names)
    lines = Path("run/episodes.jsonl").read_text().splitlines()
    play = next(each for each in map(msgspec.json.decode, lines) if "evaluation" not in each)
    assert [(seat["seat"], seat["policy"]) for seat in play["seats"]] == [
        ("policy", "policy"),
        ("base", None),
    ]


def test_the_plan_of_the_memory_is_printed_before_the_first_step(
    capsys: pytest.CaptureFixture[str],
) -> None:
    limit = ("--training.memory-limit-gib", "1.5")
    assert main(["train", "--out", "run", *NIM, "--steps", "2", *limit]) == 0
    told = capsys.readouterr().out
    before, found, after = told.partition("training memory: ")
    assert found
    assert "step 1/2" not in before
    plan = after.splitlines()[0]
    assert "1024 of 1024 tokens at once" in plan
    assert plan.endswith(" of 1.50 GiB at the most")
    assert after.count("training memory") == 0
    assert "step 2/2" in after
    lines = read_steps(Path("run/metrics.jsonl"))
    assert all(0 < (line["memory/peak_gib"] or 0) < 1.5 for line in lines)


def test_a_limit_below_the_forecast_is_refused_before_the_model_is_loaded(
    capsys: pytest.CaptureFixture[str],
) -> None:
    limit = ("--training.memory-limit-gib", "0.001")
    assert main(["train", "--out", "run", *NIM, "--steps", "2", *limit]) == 2
    told = capsys.readouterr().err
    assert "0.00 GiB can be used; " in told
    assert "a higher training.memory_limit_gib, or take a copy of the model in 4 bits" in told
    assert not Path("run").exists()


@pytest.mark.slow
def test_a_limit_below_what_is_held_ends_the_run_with_what_to_set(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("legos.mlx.device.check_training", lambda *_: None)  # as if it fitted
    limit = ("--training.memory-limit-gib", "0.001")
    assert main(["train", "--out", "run", *NIM, "--steps", "2", *limit]) == 2
    told = capsys.readouterr().err
    assert "error: no sample of this step fits into memory" in told
    assert "a higher training.memory_limit_gib" in told
    assert (
        "the run has a checkpoint; change what the message names, then continue with\n"
        "  uv run legos train --resume run" in told
    )
    listed = list_runs(Path())["run"]
    assert listed["state"] == "failed"
    assert listed["failure"].startswith("TrainerError: no sample of this step fits")
    more = ("--training.memory-limit-gib", "1.5")
    assert main(["train", "--resume", "run", *more]) == 0  # with what was played for the step
    assert list_runs(Path())["run"]["state"] == "ended"
    lines = read_steps(Path("run/metrics.jsonl"))
    assert [line["step"] for line in lines] == [1, 2]
    for line in lines:
        assert line["tokens_generated"] == sum(line[f"tokens_{use}"] or 0 for use in USES)


@pytest.mark.slow
def test_what_was_being_sampled_at_a_stop_is_booked(
    trainers: list[Trainer], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    log = JsonlTracker.log

    def stop(self: JsonlTracker, metrics: Mapping[str, float | int | None], *, step: int) -> None:
        log(self, metrics, step=step)
        if step == 3:
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(JsonlTracker, "log", stop)
    options = ["--loop.step-concurrency", "4", "--training.staleness-limit", "3"]
    assert main(["train", "--out", "run", *NIM, "--steps", "400", *options]) == 143
    told = capsys.readouterr().out
    [step] = map(int, re.findall(r"at step (\d+) of 400, with a checkpoint; continue with\n", told))
    assert told.endswith("  uv run legos train --resume run\n")
    ledger = read_state(newest_whole(Path("run/checkpoints")))["trainer"]["ledger"]
    assert ledger["generated"] == trainers[0].engine.tokens_generated("policy").result()
    check_lines(Path("run"), step)
    monkeypatch.undo()


def test_an_arena_that_fails_ends_the_run_with_its_message(
    empty_place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (empty_place / "broken.py").write_text(
        "from legos import Arena, Task\n\n\n"
        "class Broken(Arena):\n"
        "    tasks_per_step = 2\n"
        "    group_size = 2\n\n"
        "    def tasks(self, rng):\n"
        "        while True:\n"
        "            yield Task(id='only')\n\n"
        "    async def play(self, t):\n"
        "        await t.ask('player', 'Say a word.', max_tokens=3)\n"
        "        return {'player': 1 / 0}\n"
    )
    assert main(["train", "--arena", "broken.py:Broken", "--out", "run", "--steps", "2"]) == 2
    told = capsys.readouterr().err
    assert told.startswith(
        "error: 4 of 4 plays of arena 'broken' failed; the first, of task 'only'"
    )
    assert "ZeroDivisionError: division by zero" in told
    assert told.endswith(
        "no step was made and no folder is kept; change what the message names, then start the run "
        "again\n"
    )
    assert not Path("run").exists()


@pytest.mark.nightly
def test_weights_and_biases_get_the_same_numbers_over_resume_and_fork(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    kept = ["--loop.evaluate-every", "2", "--loop.checkpoint-every", "2"]
    first = ["--out", "run", *NIM, *kept, "--steps", "3", "--track", "wandb"]
    assert main(["train", *first]) == 0
    assert main(["train", "--resume", "run", "--steps", "5"]) == 0
    files = Path("run/wandb").glob("offline-run-*/*.wandb")
    found = [WandbFile(file) for file in sorted(files, key=lambda each: each.stat().st_mtime_ns)]
    assert [each.run.run_id for each in found] == [found[0].run.run_id] * 2
    rows = [row for each in found for row in each.rows]
    assert [row["_step"] for row in rows] == [*range(len(rows))]
    lines = read_steps(Path("run/metrics.jsonl"))
    steps = [row for row in rows if "train/loss" in row]
    for row, line in zip(steps, lines, strict=True):
        wanted = {grouped(n): v for n, v in line.items() if v is not None and n != "step"}
        assert {n: v for n, v in row.items() if n in wanted} == pytest.approx(wanted)
    evaluated = [row["step"] for row in rows if "eval/exploitability" in row]
    assert evaluated == [0, 2, 3, 4, 5]
    assert [row["step"] for row in rows if "eval/plays" in row] == evaluated[1:]
    assert any({"best", "latest"} <= {*aliases} for _, aliases in found[0].artifacts)
    assert main(["train", "--fork-from", "run@4", "--steps", "5", "--out", "fork"]) == 0
    [file] = Path("fork/wandb").glob("offline-run-*/*.wandb")
    fork = WandbFile(file)
    parent = {"run": "run", "step": "4", "id": found[0].run.run_id}
    assert (fork.config["forked_from"], fork.run.run_id != parent["id"]) == (parent, True)
    assert [row["step"] for row in fork.rows if "train/loss" in row] == [5]


@pytest.mark.slow
def test_a_quiet_run_prints_one_json_object_or_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["train", *NIM, "--steps", "2", "--out", "run", "--quiet", "--json"]) == 0
    told = json.loads(capfd.readouterr().out)
    assert (told["folder"], told["state"], told["step"]) == ("run", "ended", 2)
    assert "eval/exploitability" in told
    assert main(["train", *NIM, "--steps", "2", "--out", "more", "--quiet"]) == 0
    assert capfd.readouterr().out == ""
    assert main(["train", *NIM, "--steps", "2", "--out", "third", "--json"]) == 0
    out, err = capfd.readouterr()
    assert json.loads(out)["folder"] == "third"
    assert "step 2/2" in err


def test_a_run_whose_steps_changed_nothing_does_not_end_well(
    capsys: pytest.CaptureFixture[str],
) -> None:
    clipped = ["--training.clip-range", "1e-9", "--training.clip-skip-threshold", "1e-6"]
    assert main(["train", *NIM, *clipped, "--steps", "2", "--out", "run"]) == 2
    out, err = capsys.readouterr()
    assert "optimal move rate" in out
    assert "done in" not in out
    # Where engine and trainer compute a first step to the bit, none of its tokens is clipped.
    assert re.search(r"\d+% of the tokens were in steps that were not applied", err)
    assert newest_whole(Path("run") / "checkpoints") is not None
