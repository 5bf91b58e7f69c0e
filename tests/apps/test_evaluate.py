"""``legos eval``: the figures of the run again, from its folder alone, and what is refused."""

import asyncio
import json
import re
import shutil
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from metric_lines import read_metrics, read_steps
from short_runs import FEW, NIM

from legos.apps.evaluate import reported
from legos.cli.process import main
from legos.config.resolve import resolve
from legos.loop.evaluation import flat_metrics
from legos.records.count import Count
from legos.run.folder import RunFolder
from legos.weights.adapter import Adapter, LoraShape
from legos.weights.folder import read_adapter, write_adapter

FAST = (*NIM, "--steps", "2")
OUTCOMES = {"win", "draw", "loss"}
GUESS = '''"""A role guesses the number that another one hides; rewards are NumPy's numbers."""

import os

import numpy as np

from legos import Arena, Task

print("the module is imported")


class Guess(Arena):
    """One hides, one guesses."""

    roles = ("hider", "guesser")
    tasks_per_step = 4
    group_size = 2
    max_tokens = 2

    def __init__(self, client, *, split="train", largest=2, credit_assigner, temperature, seed):
        super().__init__(
            client, credit_assigner=credit_assigner, temperature=temperature, seed=seed
        )
        self.split = split
        self.largest = largest

    def tasks(self, rng):
        for bias in range(3):
            yield Task(id=f"{self.split}-{bias}", data=bias / 2)

    async def play(self, t):
        print("a play begins")
        os.write(1, b"and writes past Python")
        hidden = await t.ask("hider", f"Hide 1 to {self.largest}.")
        guess = await t.ask("guesser", f"Guess 1 to {self.largest}.")
        t.reward("guesser", 1.0)
        t.metric(met=np.float32(hidden.text == guess.text), largest=self.largest)
        t.metric(**{self.split: 1.0})
        gain = np.float32(len(guess.text) - t.task.data)
        return {"hider": -gain, "guesser": gain}
'''


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "nim"
    assert main(["train", "--out", str(folder), *FAST]) == 0
    return folder


@pytest.fixture
def evaluated(capsys: pytest.CaptureFixture[str]) -> Callable[..., dict[str, Any]]:
    def evaluate(*arguments: object) -> dict[str, Any]:
        capsys.readouterr()
        assert main(["eval", *map(str, arguments), "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    return evaluate


def logged(run: Path, step: int) -> Mapping[str, Any]:
    """What the run itself wrote down after a step."""
    [line] = [line for line in read_metrics(run / "evaluations.jsonl") if line["step"] == step]
    return {name: value for name, value in line.items() if name != "step"}


def as_logged(figures: dict[str, Any]) -> Mapping[str, Any]:
    found = {name: value for name, value in figures.items() if name != "policy_version"}
    return {"policy_version": figures["policy_version"], **flat_metrics(found)}


def test_the_figures_of_nim_are_those_of_the_run(
    run: Path, evaluated: Callable[..., dict[str, Any]]
) -> None:
    figures = evaluated(run)
    assert list(figures) == [
        "arena",
        "policy_version",
        "optimal_move_rate",
        "exploitability",
        "joint_value",
        "optimal_joint_value",
        "illegal_probability",
        "vs_random",
        "vs_optimal",
    ]
    assert (figures["arena"], figures["policy_version"]) == ("nim", 2)
    assert set(figures["vs_random"]) == set(figures["vs_optimal"]) == OUTCOMES
    assert as_logged(figures) == pytest.approx(logged(run, 2), abs=1e-6)  # next to the last plays
    last = read_metrics(run / "metrics.jsonl")[-1]
    assert {name: last[name] for name in last if name.startswith("eval/")} == {
        name: value for name, value in logged(run, 2).items() if name.startswith("eval/")
    }
    start = evaluated(f"{run}@v0")
    assert start["policy_version"] == 0
    assert as_logged(start) == pytest.approx(logged(run, 0), abs=1e-6)
    assert start["exploitability"] != figures["exploitability"]


def test_what_training_alone_reads_may_be_gone(
    run: Path, tmp_path: Path, evaluated: Callable[..., dict[str, Any]]
) -> None:
    """An opponent that was removed, and a credit rule whose file was moved."""
    folder = RunFolder(tmp_path / "run")
    shutil.copytree(run, folder.path)
    of_training = {"play.opponents": {"self": 0.5, "gone@1": 0.5}, "play.credit": "gone.py:Rule"}
    folder.write_config(resolve(run=folder.settings, overrides=of_training).toml())
    assert evaluated(folder.path) == evaluated(run)


@pytest.mark.slow
def test_an_evaluation_next_to_training_shows_the_adapter_of_its_step(
    tmp_path: Path, evaluated: Callable[..., dict[str, Any]]
) -> None:
    run = tmp_path / "run"
    options = ("--loop.evaluate-every", "1", "--training.learning-rate", "0.1")
    assert main(["train", "--out", str(run), *FAST, *options]) == 0
    assert main(["train", "--resume", str(run), "--steps", "4"]) == 0
    for step in (1, 2, 3):
        line = logged(run, step)
        assert line == pytest.approx(as_logged(evaluated(f"{run}@v{step}")), abs=1e-6)
        assert line["eval/exploitability"] != logged(run, step + 1)["eval/exploitability"]


@pytest.mark.slow
def test_a_figure_that_kuhn_does_not_define_is_null(
    tmp_path: Path, evaluated: Callable[..., dict[str, Any]]
) -> None:
    run = tmp_path / "kuhn"
    options = ("--out", str(run), "--steps", "2", "--deterministic")
    assert main(["train", "--arena", "kuhn", *FEW, *options]) == 0
    figures = evaluated(run)
    assert figures["arena"] == "kuhn"
    assert figures["optimal_move_rate"] is None
    assert 0 < figures["exploitability"] < 1
    assert as_logged(figures) == logged(run, 2)


@pytest.fixture(scope="module")
def guessed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of an arena of one's own, whose option ``largest`` is 3."""
    folder = tmp_path_factory.mktemp("guess")
    (folder / "guess.py").write_text(GUESS)
    arena = f"{folder / 'guess.py'}:Guess"
    options = ["--play.options.largest", "3", "--training.min-samples-per-step", "8"]
    out = ["--out", str(folder / "run"), "--steps", "2", "--loop.evaluation-plays", "21"]
    assert main(["train", "--arena", arena, *out, *options]) == 0
    return folder / "run"


def test_an_arena_of_ones_own_is_evaluated_by_the_same_plays(
    guessed: Path, evaluated: Callable[..., dict[str, Any]]
) -> None:
    figures = evaluated(guessed)
    assert figures["optimal_move_rate"] is figures["vs_random"] is None
    assert [figures[name] for name in ("plays", "failed", "void")] == [21, 0, 0]
    assert figures["reward"] == pytest.approx(
        {"hider": figures["reward"]["hider"], "guesser": 1 - figures["reward"]["hider"]}
    )
    assert figures["reward_mean"] == 0.5  # it is zero-sum, but for what the guesser's turns earn
    assert set(figures["metric"]) == {"met", "largest", "train"}
    assert as_logged(figures) == logged(guessed, 2)
    assert evaluated(guessed) == figures
    lines = read_steps(guessed / "metrics.jsonl")
    assert all("arena/met" in line and "reward/guesser" in line for line in lines)
    assert {line["reward_mean"] for line in lines} == {0.5}
    assert (lines[-1]["discarded/evaluation_tokens"] or 0) > 40
    plays = [json.loads(line) for line in (guessed / "episodes.jsonl").read_text().splitlines()]
    kept = Counter((play["step"], "evaluation" in play) for play in plays)
    assert kept.keys() == {(0, True), (1, False), (2, False), (2, True)}
    assert kept[0, True] == kept[2, True] == 21


@pytest.mark.slow
def test_options_of_the_arena_and_of_the_evaluation_take_the_place_of_the_runs(
    guessed: Path, evaluated: Callable[..., dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    held_out = evaluated(guessed, "--play.options.split", "test", "--loop.evaluation-plays", "6")
    assert (held_out["plays"], held_out["metric"]["test"]) == (6, 1.0)
    assert held_out["metric"]["largest"] == 3.0  # as in the run
    greedy = evaluated(guessed, "--loop.evaluation-temperature", "0")
    assert greedy["reward"]["hider"] in (-0.5, -1.5)  # one answer in all; the mean bias is 0.5
    assert main(["eval", str(guessed), "--play.options.splt", "test"]) == 2
    assert "takes no option 'splt'; did you mean 'split'?" in capsys.readouterr().err


def test_what_has_no_effect_on_an_exact_evaluation_is_refused(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["eval", str(run), "--loop.evaluation-temperature", "0"]) == 2
    assert "loop.evaluation_temperature has no effect: nim is evaluated exactly" in (
        capsys.readouterr().err
    )


def test_people_get_aligned_lines(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", str(run)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["arena", "nim"]
    assert lines[5].startswith("vs_random.win  ")


ARRAYS, RECORD = "adapters/v2/adapters.safetensors", "adapters/v2/adapter_config.json"


def rewritten(change: Callable[[Adapter], Adapter]) -> Callable[[Path], object]:
    """An adapter folder that is whole, but of another kind."""

    def rewrite(run: Path) -> None:
        place = run / "adapters" / "v2"
        write_adapter(change(read_adapter(place)), place)

    return rewrite


def narrower(adapter: Adapter) -> Adapter:
    arrays = {
        name: np.ascontiguousarray(array[:, :4] if name.endswith("lora_a") else array[:4])
        for name, array in adapter.arrays.items()
    }
    return replace(adapter, arrays=arrays)


def elsewhere(adapter: Adapter) -> Adapter:
    shape = LoraShape(rank=16, scale=2.0, num_layers=2, modules=("other",))
    return replace(adapter, shape=shape, arrays={"other.lora_a": np.zeros((3, 16), np.float32)})


def without_numbers(adapter: Adapter) -> Adapter:
    return replace(
        adapter, arrays={name: array * np.float32("nan") for name, array in adapter.arrays.items()}
    )


def flip_a_bit(run: Path) -> None:
    data = bytearray((run / ARRAYS).read_bytes())
    data[-5] ^= 1
    (run / ARRAYS).write_bytes(bytes(data))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda run: (run / ARRAYS).unlink(), "v2 is no adapter folder: adapters.safetensors is"),
        (lambda run: (run / RECORD).unlink(), "v2 is no adapter folder: adapter_config.json is"),
        (lambda run: (run / RECORD).write_text("{"), "v2 cannot be read as an adapter: Input"),
        (lambda run: (run / RECORD).write_text("[]"), "adapter: Expected `object`, got `array`"),
        (
            lambda run: (run / RECORD).write_text("{}"),
            "its configuration has no lora_parameters; exp",
        ),
        (lambda run: (run / ARRAYS).write_bytes(b"1234"), "v2 cannot be read as an adapter: "),
        (flip_a_bit, "was recorded; the file is damaged"),
        (rewritten(narrower), "nk 16, and its arrays have rank 4"),
        (rewritten(elsewhere), "other.lora_a adapts what this model has not; was it"),
        (rewritten(without_numbers), "holds values that are not finite"),
    ],
    ids=range(10),
)
def test_adapters(
    damage: Callable[[Path], object],
    message: str,
    run: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    damage(copy)
    capsys.readouterr()
    assert main(["eval", str(copy)]) == 2
    told = capsys.readouterr().err
    assert told.removeprefix("loading builtin\n").startswith("error: ")
    assert message in told


def test_an_adapter_beside_a_damaged_one_is_evaluated(run: Path, tmp_path: Path) -> None:
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    flip_a_bit(copy)
    assert main(["eval", f"{copy}@v0"]) == 0


def test_a_run_is_found_by_its_name(
    run: Path, monkeypatch: pytest.MonkeyPatch, evaluated: Callable[..., dict[str, Any]]
) -> None:
    by_folder = evaluated(run)
    monkeypatch.chdir(run.parent.parent)
    run.parent.rename("runs")
    try:
        assert evaluated(run.name) == by_folder
    finally:
        Path("runs").rename(run.parent)


def test_folders_and_names(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", f"{run}@v9"]) == 2
    assert capsys.readouterr().err.endswith("has no adapter 'v9'; it has v0, v2\n")
    assert main(["eval", str(tmp_path)]) == 2
    message = f"error: {tmp_path} holds no run: it has no config.toml; `legos runs` lists those in"
    assert message in capsys.readouterr().err
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    shutil.rmtree(copy / "checkpoints")
    (copy / "config.toml").write_text('arena = "nmi"\n')
    assert main(["eval", str(copy)]) == 2
    assert "no arena is called 'nmi'; did you mean 'nim'?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("count", "said"),
    [
        (Count(), r"evaluating, \d+ s so far\n"),
        (
            Count(300, begun=60, ended=40),
            r"evaluating, 40 of 300 plays, 20 running, \d+ s so",
        ),
    ],
)
def test_a_long_evaluation_reports_that_it_goes_on(
    count: Count, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[str] = []
    wrote = asyncio.Event()

    def write(text: str) -> None:
        lines.append(text)
        wrote.set()

    async def bounded() -> bool:
        return await asyncio.wait_for(reported(wrote.wait(), lambda: count, every_s=0.001), 30)

    monkeypatch.setattr("sys.stderr.write", write)
    assert asyncio.run(bounded())
    assert re.match(said, lines[0])
