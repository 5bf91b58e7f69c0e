"""``legos train --adapter``: a run that starts from an adapter of a run, of PEFT, or of mlx-lm."""

import json
from pathlib import Path

import numpy as np
import pytest
from short_runs import NIM
from tiny_folders import THINKING, builtin_with_template

from legos import open_run
from legos.apps.adapters import loaded
from legos.cli.process import main
from legos.cli.run_settings import resolve_run
from legos.records.limits import EngineLimits
from legos.records.message import Message, Sampling
from legos.run.find import adapter_of
from legos.run.folder import RunFolder
from legos.weights.folder import read_adapter
from legos.wiring.named import named_adapter

SHORT = (*NIM, "--loop.evaluation-plays", "8", "--deterministic")


def train(*args: str | Path) -> int | None:
    return main(["train", *SHORT, *map(str, args)])


@pytest.fixture(scope="module")
def parent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of three steps with rank 3 on few modules."""
    folder = tmp_path_factory.mktemp("parent") / "run"
    options = ("--steps", "3", "--training.lora-rank", "3", "--training.warmup-steps", "0")
    assert not train("--out", folder, *options)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("form", ["run", "peft", pytest.param("mlx", marks=pytest.mark.nightly)])
def test_a_run_starts_where_another_ended(parent: Path, form: str, tmp_path: Path) -> None:
    given = parent
    if form != "run":
        given = tmp_path / form
        assert not main(["export", str(parent), "--format", form, "--to", str(given)])
    out = tmp_path / "out"
    assert not train("--adapter", given, "--out", out, "--steps", "1", "--training.kl-coef", "0.1")
    start, first = read_adapter(adapter_of(RunFolder(parent))), read_adapter(out / "adapters/v0")
    assert (first.version, first.shape.rank) == (0, 3)
    for name, array in start.arrays.items():
        np.testing.assert_allclose(first.arrays[name], array, atol=1e-6)
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert lines[1]["kl_divergence"] == pytest.approx(0.0, abs=1e-5)  # to the start, not the model


@pytest.mark.slow
def test_a_resumed_run_keeps_its_shape_without_the_first_adapter(
    parent: Path, tmp_path: Path
) -> None:
    given, out = tmp_path / "peft", tmp_path / "out"
    assert not main(["export", str(parent), "--to", str(given)])
    assert not train("--adapter", given, "--out", out, "--steps", "1")
    given.rename(tmp_path / "elsewhere")
    assert not main(["train", "--resume", str(out), "--steps", "2"])
    assert read_adapter(adapter_of(RunFolder(out))).shape.rank == 3


def test_the_model_of_an_adapter_is_not_said_to_be_of_the_command_line(parent: Path) -> None:
    resolved = resolve_run([], resume=None, overrides={"adapter": str(parent)})
    assert (resolved.config.model, resolved.sources["model"]) == ("builtin", f"adapter {parent}")


def test_what_an_adapter_was_trained_to_think_holds_wherever_it_answers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = builtin_with_template(tmp_path / "model", None, after=THINKING)
    out = tmp_path / "out"
    assert not train("--model", model, "--out", out, "--steps", "1")  # off by itself
    asked = open_run(out).episode(-1).seats[0].turns[0].prompt_ids
    assert read_adapter(adapter_of(RunFolder(out))).thinking == "off"
    with loaded(None, [named_adapter(str(out))], EngineLimits()) as live:
        prompt = live.client().prompt_ids([Message("user", "Q")], Sampling())
        decode = live.handle.tokenizer.decode
        assert decode(prompt).endswith("no ")
        assert decode(asked).endswith("no ")
    assert not main(["export", str(out), "--to", str(tmp_path / "peft")])
    assert "| thinking | off |" in (tmp_path / "peft" / "README.md").read_text()
    resolved = resolve_run([], resume=None, overrides={"adapter": str(out)})
    assert (resolved.config.model, resolved.config.generation.thinking) == (str(model), "off")
    assert resolved.sources["generation.thinking"] == f"adapter {out}"
    on = ("--generation.thinking", "on")
    assert main(["train", "--resume", str(out), "--steps", "2", *on]) == 2
    assert "generation.thinking is 'on' (command line) but the run" in capsys.readouterr().err
    assert not train("--model", model, "--out", tmp_path / "on", "--steps", "1", *on)
    assert read_adapter(adapter_of(RunFolder(tmp_path / "on"))).thinking == "on"
    assert train("--model", model, "--out", tmp_path / "b", "--generation.thinking", "low") == 2
    assert "give off or on" in capsys.readouterr().err


def test_a_shape_beside_the_adapter_is_refused(
    parent: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train("--adapter", parent, "--training.lora-rank", "8", "--out", tmp_path / "out") == 2
    assert "training.lora_rank is given (command line) but adapter" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_an_adapter_that_is_missing_or_of_another_model_is_named(
    parent: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train("--adapter", "nowhere", "--out", tmp_path / "out") == 2
    assert "nowhere holds no run and no adapter" in capsys.readouterr().err
    assert train("--adapter", parent, "--model", tmp_path, "--out", tmp_path / "out") == 2
    assert "was trained on model 'builtin' and cannot be put on" in capsys.readouterr().err
