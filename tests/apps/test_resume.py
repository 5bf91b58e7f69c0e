"""``legos train --resume``: exact, within its bounds, and harmless where nothing is left to do."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from accounts import balanced_ledger
from metric_lines import read_metrics, read_steps
from safetensors.numpy import load_file
from short_runs import FEW, NIM
from stored_plays import TIMES, timeless_plays

from legos.apps.runs import describe_run
from legos.cli.process import main
from legos.config.resolve import read_config
from legos.credit import RULES
from legos.loop.evaluation import ArenaEvaluation
from legos.run.checkpoint import checkpoints, newest_whole, read_state
from legos.weights.folder import read_adapter

EVERY = ("--loop.checkpoint-every", "2", "--loop.evaluate-every", "2")
GROUPS = ("--play.group-size", "2")
SMALL = NIM[len(FEW) :]
PULL = ("--training.kl-coef", "0.1")

TREE = """
from legos import Arena, Task

class Tree(Arena):
    roles = ("first", "second")
    max_tokens = 2

    def tasks(self, rng):
        for number in range(5):
            data = rng.random()
            yield Task(id=f"t{number}/{data}", data=data)

    async def play(self, t):
        first = await t.ask("first", f"{t.task.data}")
        t.reward("first", t.rng.random())
        if not t.task.id.startswith("child"):
            await t.spawn(type(self), Task(id=f"child/{first.text}", data=first.text), 2)
        second = await t.ask("second", f"{first.text}")
        return {"first": float("1" in first.text), "second": float(len(second.text) % 2)}
"""


def train(
    folder: Path, *options: str, steps: int = 4, fast: tuple[str, ...] = (*NIM, *EVERY)
) -> None:
    assert main(["train", "--out", str(folder), "--steps", str(steps), *fast, *options]) == 0


def crash(folder: Path, copy: Path, *, step: int) -> Path:
    """The folder as it would be, had the run been killed after its last step but one.

    Lines of later steps than the checkpoint's are still there, and the piece of another.
    """
    shutil.copytree(folder, copy)
    for path in (*copy.glob("checkpoints/*"), *copy.glob("adapters/v*")):
        if int(path.name.lstrip("step-v")) > step:
            shutil.rmtree(path)
    (copy / "checkpoints" / f".step-{step + 2:06d}.unfinished").mkdir()
    for name in ("metrics.jsonl", "episodes.jsonl"):
        lines = (copy / name).read_text().splitlines(keepends=True)
        (copy / name).write_text("".join(lines[:-1]) + lines[-1][:9])
    return copy


def timeless(path: Path) -> list[Mapping[str, Any]]:
    return [
        {name: value for name, value in line.items() if name not in TIMES}
        for line in read_metrics(path)
    ]


def arrays(path: Path) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in load_file(path).items()}


def files(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.fixture(scope="module")
def two_steps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two steps, with a checkpoint before and after."""
    folder = tmp_path_factory.mktemp("two") / "run"
    train(folder, steps=2)
    return folder


@pytest.fixture
def run(two_steps: Path, tmp_path: Path) -> Path:
    """A copy of that run."""
    return Path(shutil.copytree(two_steps, tmp_path / "run"))


@pytest.fixture
def tree(tmp_path: Path) -> str:
    """The name of an arena whose plays spawn others, and that pays 0 or 1."""
    file = tmp_path / "tree.py"
    file.write_text(TREE)
    return f"{file}:Tree"


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        ("--play.credit", "rae", "--training.ema-kl-coef", "0.5", *PULL, *GROUPS, *SMALL),
        *(
            pytest.param(("--play.credit", rule, *GROUPS, *SMALL), marks=pytest.mark.nightly)
            for rule in RULES
        ),
        ("--arena", "kuhn", "--play.credit", "rae", "--seed", "3"),
        (
            *("--training.zero-advantage", "remove", "--training.kl-refresh-steps", "2", *PULL),
            *(*GROUPS, "--play.tasks-per-step", "3", *SMALL),
        ),
    ],
    ids=lambda options: " ".join(options[1:4:2]),
)
def test_a_killed_run_ends_as_an_undisturbed_one(
    options: tuple[str, ...], tree: str, tmp_path: Path
) -> None:
    if {"maxrl", "joint", "hierarchical"} & set(options):
        options = (*options[:4], "--arena", tree)
    whole = tmp_path / "whole"
    tasks = () if "--play.tasks-per-step" in options else FEW[:2]
    train(whole, "--deterministic", *tasks, *options, fast=(*FEW[2:], *EVERY))
    resumed = crash(whole, tmp_path / "resumed", step=2)
    assert main(["train", "--resume", str(resumed)]) == 0
    assert timeless(resumed / "metrics.jsonl") == timeless(whole / "metrics.jsonl")
    ours, theirs = files(resumed), files(whole)
    assert ours.keys() == theirs.keys()
    place = "checkpoints/step-000004"  # whose arrays stand in no order of their own
    loose = {"metrics.jsonl", "episodes.jsonl", f"{place}/manifest.json"}
    assert timeless_plays(resumed / "episodes.jsonl") == timeless_plays(whole / "episodes.jsonl")
    for name in ("adapter", "ema", "optimiser", "reference"):
        file = f"{place}/{name}.safetensors"
        if file in ours:
            loose.add(file)
            assert arrays(resumed / file) == arrays(whole / file)
    assert {name for name in ours if ours[name] != theirs[name]} <= loose
    assert (
        read_adapter(whole / "adapters" / "v4").digest
        != read_adapter(whole / "adapters" / "v2").digest
    )


@pytest.mark.slow
def test_the_reference_of_a_run_is_in_its_checkpoints(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = tmp_path / "whole"
    given = run / "adapters" / "v2"
    pull = (*PULL, "--training.kl-reference", str(given))
    train(whole, "--deterministic", *pull)
    assert abs(read_steps(whole / "metrics.jsonl")[0]["kl_divergence"] or 0) > 1e-4
    resumed = crash(whole, tmp_path / "resumed", step=2)
    forked, base = tmp_path / "forked", tmp_path / "base"
    shutil.rmtree(run)  # the checkpoints need it no more
    assert main(["train", "--resume", str(resumed)]) == 0
    assert timeless(resumed / "metrics.jsonl") == timeless(whole / "metrics.jsonl")
    place = f"{whole}@2"
    assert main(["train", "--fork-from", place, "--out", str(forked)]) == 0
    after = [line for line in timeless(whole / "metrics.jsonl") if line["step"] > 2]
    assert timeless(forked / "metrics.jsonl") == after
    options = ("--training.kl-reference", "none")
    assert main(["train", "--fork-from", place, "--out", str(base), *options]) == 0
    of_base, of_other = (timeless(fork / "metrics.jsonl")[0] for fork in (base, forked))
    assert of_base["reward_mean"] == of_other["reward_mean"]
    assert of_base["kl_divergence"] != of_other["kl_divergence"]
    capsys.readouterr()
    assert main(["train", "--out", str(tmp_path / "new"), *pull]) == 2
    assert f"{given} is no adapter folder" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


@pytest.mark.slow
def test_the_adapter_that_a_run_starts_from_stays_its_reference(run: Path, tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    train(whole, "--deterministic", *PULL, "--adapter", str(run / "adapters" / "v2"))
    first, *others = (line["kl_divergence"] for line in read_steps(whole / "metrics.jsonl"))
    assert abs(first or 0) < 1e-6
    assert max(map(abs, filter(None, others))) > 1e-5
    resumed = crash(whole, tmp_path / "resumed", step=2)
    shutil.rmtree(run)  # the checkpoints need it no more
    assert main(["train", "--resume", str(resumed)]) == 0
    assert timeless(resumed / "metrics.jsonl") == timeless(whole / "metrics.jsonl")
    forked = tmp_path / "forked"
    assert main(["train", "--fork-from", f"{whole}@2", "--out", str(forked)]) == 0
    after = [line for line in timeless(whole / "metrics.jsonl") if line["step"] > 2]
    assert timeless(forked / "metrics.jsonl") == after


@pytest.mark.slow
def test_a_resumed_run_with_lag_keeps_its_bounds(tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    train(whole, "--training.staleness-limit", "2", "--loop.step-concurrency", "3")
    resumed = crash(whole, tmp_path / "resumed", step=2)
    ledger = balanced_ledger(resumed)
    assert main(["train", "--resume", str(resumed)]) == 0
    lines = read_steps(resumed / "metrics.jsonl")
    assert [line["step"] for line in lines] == [1, 2, 3, 4]
    for line in lines:
        assert (line["staleness_max"] or 0) <= 2
        uses = ("trained", "filtered", "discarded", "queued")
        assert line["tokens_generated"] == sum(line[f"tokens_{use}"] or 0 for use in uses)
    assert (lines[2]["tokens_generated"] or 0) >= ledger["generated"]


@pytest.mark.slow
def test_a_finished_run_says_so_and_stays_as_it_is(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = files(run)
    for more in ([], ["--steps", "1"]):
        assert main(["train", "--resume", str(run), *more]) == 0
        told = capsys.readouterr().out
        assert f"nothing to do: the run in {run} has done 2 steps of" in told
        assert f"--resume {run} --steps 4" in told
        assert "optimal move rate" in told
    after = files(run)
    assert after == before


def test_more_steps_go_on_and_are_remembered(run: Path) -> None:
    assert main(["train", "--resume", str(run), "--steps", "3"]) == 0
    assert [line["step"] for line in read_steps(run / "metrics.jsonl")] == [1, 2, 3]
    assert read_config(run / "config.toml").loop.steps == 3
    text = (run / "config.toml").read_text()
    assert "steps = 3  # command line" in text
    assert "min_samples_per_step = 16  # command line" in text
    assert '#: model = "builtin"  # default' in text
    assert "#: lora_rank = 16  # model builtin" in text
    assert (run / "adapters" / "v3").is_dir()


@pytest.mark.slow
def test_a_run_to_resume_is_found_by_its_name_and_may_have_been_moved(
    two_steps: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(two_steps, "runs/mine")
    before = files(two_steps)
    assert main(["train", "--resume", "mine", "--steps", "3"]) == 0
    assert [line["step"] for line in read_steps(Path("runs/mine/metrics.jsonl"))] == [1, 2, 3]
    assert Path("runs/mine/adapters/v3").is_dir()
    assert not Path("mine").exists()
    assert files(two_steps) == before  # its settings name this folder


@pytest.mark.slow
def test_a_damaged_checkpoint_is_named_once_and_the_one_before_taken(
    run: Path, caplog: pytest.LogCaptureFixture
) -> None:
    damaged = run / "checkpoints" / "step-000002" / "adapter.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:-1])
    assert main(["train", "--resume", str(run)]) == 0
    [message] = [m for m in caplog.messages if "damaged" in m]
    assert "step-000002 is damaged (adapter.safetensors does not match its digest)" in message
    assert [line["step"] for line in read_steps(run / "metrics.jsonl")] == [1, 2]
    assert newest_whole(run / "checkpoints").name == "step-000002"


@pytest.mark.slow
def test_damaged_and_missing_lines_cost_no_resume(
    run: Path, caplog: pytest.LogCaptureFixture
) -> None:
    numbers = {"metrics": 2, "evaluations": 1, "episodes": 1}  # line 1 of metrics is of step 0
    for name, number in numbers.items():
        lines = (run / f"{name}.jsonl").read_text().splitlines(keepends=True)
        lines[number - 1] = lines[number - 1][: len(lines[number - 1]) // 2] + "\n"
        (run / f"{name}.jsonl").write_text("".join(lines))
    assert main(["train", "--resume", str(run), "--steps", "3"]) == 0
    for name, number in numbers.items():
        assert (run / f"{name}.damaged-1.jsonl").exists()
        read_metrics(run / f"{name}.jsonl")
        assert any(
            f"{name}.jsonl: line {number} is no JSON object" in text for text in caplog.messages
        )
    assert [line["step"] for line in read_steps(run / "metrics.jsonl")] == [2, 3]
    (run / "metrics.jsonl").unlink()
    assert main(["train", "--resume", str(run), "--steps", "4"]) == 0
    missing = f"{run / 'metrics.jsonl'} lacks the lines of 3 steps that the checkpoint holds"
    assert missing in caplog.messages


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--seed", "9"], "seed is 9 (command line) but the run in"),
        (
            ["--training.lora-alpha", "4"],
            "training.lora_alpha is 4.0 (command line) but the run in",
        ),
    ],
)
def test_a_resume_that_does_not_fit_changes_nothing(
    options: list[str], message: str, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = files(run)
    assert main(["train", "--resume", str(run), "--steps", "4", *options]) == 2
    told = capsys.readouterr().err
    assert told.startswith("error: ")
    assert message in told
    assert files(run) == before


@pytest.mark.slow
def test_a_folder_without_a_whole_checkpoint_is_refused(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for manifest in run.glob("checkpoints/*/manifest.json"):
        manifest.unlink()
    assert main(["train", "--resume", str(run)]) == 2
    assert "checkpoints holds no whole checkpoint; start a new run" in capsys.readouterr().err
    (run / "config.toml").unlink()
    assert main(["train", "--resume", str(run)]) == 2
    assert f"{run}/config.toml was cut, edited or lost. It records" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("figure", "kept"),
    [
        ("share", [2, 5, 6]),
        ("-share", [4, 5, 6]),
        pytest.param(None, [5, 6], marks=pytest.mark.nightly),
    ],
)
def test_the_checkpoint_of_the_best_evaluation_is_kept(
    figure: str | None, kept: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shares = iter([0.5, 0.5, 0.9, 0.4, 0.1, 0.5, 0.6, 0.8, 0.2])

    async def metrics(_: ArenaEvaluation, **__: Any) -> dict[str, Any]:
        return {"arena": "nim", "share": next(shares)}

    def steps_kept() -> list[int]:
        return [read_state(place)["trainer"]["step"] for place in checkpoints(run / "checkpoints")]

    monkeypatch.setattr(ArenaEvaluation, "metrics", metrics)
    run, options = tmp_path / "run", [f"--loop.keep-best={figure}"] if figure else []
    every = ("--loop.checkpoint-every", "5", "--loop.evaluate-every", "1")
    train(run, *options, *every, "--loop.keep-checkpoints", "2", steps=6, fast=NIM)
    assert steps_kept() == kept
    more = ("--steps", "8", "--loop.keep-checkpoints", "1")
    assert main(["train", "--resume", str(run), *more]) == 0  # nothing better comes
    assert steps_kept() == [*(kept[:1] if figure else []), 8]
    told = describe_run(str(run))["best_checkpoint"]
    assert told == (kept[0] if figure else None)


def test_a_figure_that_the_evaluation_lacks_is_named_before_the_first_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["train", "--out", str(tmp_path / "run"), "--loop.keep-best", "elo", *SMALL]
    assert main(options) == 2
    told = capsys.readouterr().err
    assert "loop.keep_best is 'elo' but the evaluation of arena 'nim' has no such metric" in told
    assert "optimal_move_rate" in told
