"""What ``legos train`` refuses: one message that tells the way out, and nothing written."""

import json
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from short_runs import NIM
from tiny_folders import write_tiny_model

from legos.builtin import builtin_path
from legos.cli.process import main
from legos.track.jsonl import JsonlTracker

FAST = (*NIM, "--steps", "2")


@pytest.fixture(autouse=True)
def empty_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Commands run in a folder of their own, where nothing is."""
    place = tmp_path / "here"
    place.mkdir()
    monkeypatch.chdir(place)
    return place


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str], empty_place: Path) -> Callable[..., str]:
    """Run a command that must be refused; returns what it says."""

    def files() -> list[Path]:  # without Python's own files of a module
        return sorted(p for p in empty_place.rglob("*") if "__pycache__" not in p.parts)

    def refuse(*arguments: str) -> str:
        before = files()
        capsys.readouterr()
        assert main(list(arguments)) == 2
        told = capsys.readouterr().err
        assert told.startswith("error: ")
        assert "Traceback" not in told
        assert files() == before
        return told

    return refuse


@pytest.mark.parametrize(
    ("options", "messages"),
    [
        (
            ["--arena", "chess"],
            [
                "no arena is called 'chess'; known: absolute_zero, countdown, duel",
                "one of your own is FILE.py:Class",
            ],
        ),
        (
            ["--arena", "kuhn", "--play.options.x", "9"],
            ["'kuhn' takes no option 'x'; it takes none"],
        ),
        (
            ["--play.options.largest", "0"],
            ["arena 'nim' cannot be made with largest=0: ValueError", "expected at least 1 stone"],
        ),
        (
            ["--play.options.largest", "many"],
            ["arena 'nim': option 'largest' is 'many'; expected a valid integer"],
        ),
        (
            ["--arena", "countdown", "--play.options.operator", "yes"],
            ["arena 'countdown': option 'operator' is 'yes'; expected a valid boolean"],
        ),
        (
            ["--deterministic", "--training.staleness-limit", "2"],
            [
                "loop.deterministic is true but training.staleness_limit is 2",
                "leave one of them out",
            ],
        ),
        (
            ["--adapter-folder", "."],
            ["adapter_folder is '.' but server is empty", "give their addresses"],
        ),
        (
            ["--training.memory-limit-gib", "0"],
            ["training.memory_limit_gib is 0.0; expected greater than 0"],
        ),
    ],
    ids=lambda value: " ".join(value) if value[0].startswith("--") else "",
)
def test_options(options: list[str], messages: list[str], refused: Callable[..., str]) -> None:
    told = refused("train", *options)
    for message in messages:
        assert message in told


def test_an_option_that_an_arena_needs(empty_place: Path, refused: Callable[..., str]) -> None:
    (empty_place / "quiz.py").write_text(
        "from legos import Arena\n"
        "class Quiz(Arena):\n"
        "    def __init__(self, client=None, *, path, **common):\n"
        "        super().__init__(client, **common)\n"
    )
    told = refused("train", "--arena", "quiz.py:Quiz")
    assert "'quiz.py:Quiz' needs an option 'path'; give --play.options.path VALUE" in told


def test_a_dry_run_checks_as_much_as_it_can(
    refused: Callable[..., str], empty_place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "takes no option" in refused("train", "--dry-run", "--play.options.largst", "9")
    told = refused("train", "--dry-run", "--arena", "zorplex", "--play.options.turns", "2.5")
    assert "option 'turns' is 2.5; expected a valid integer" in told
    assert main(["train", "--dry-run", "--out", "run"]) == 0
    assert 'out = "run"  # command line' in capsys.readouterr().out
    assert not list(empty_place.iterdir())


@pytest.mark.parametrize(
    ("text", "messages"),
    [
        ("lora_rank = 3\n", ["lora_rank (file", "did you mean 'training.lora_rank'?"]),
        ("[training]\nlora_rank = 2.5\n", ["training.lora_rank is 2.5; expected a valid integer"]),
        ("training = 3\n", ["training (file", "is 3; expected a table"]),
    ],
)
def test_configuration_files(
    text: str, messages: list[str], refused: Callable[..., str], tmp_path: Path
) -> None:
    (tmp_path / "a.toml").write_text(text)
    told = refused("train", "--config", str(tmp_path / "a.toml"))
    for message in messages:
        assert message in told


def remove(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def write(name: str, text: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_text(text)


def truncate(name: str, kept: float) -> Callable[[Path], None]:
    def cut(folder: Path) -> None:
        data = (folder / name).read_bytes()
        (folder / name).write_bytes(data[: int(len(data) * kept)])

    return cut


def change(**values: Any) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | values))

    return edit


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (remove("config.json"), "is no model folder: config.json is missing"),
        (remove("tokenizer.json"), "is no model folder: tokenizer.json is missing"),
        (remove("model.safetensors"), "is no model folder: model*.safetensors is missing"),
        (write("config.json", '{"a":'), "config.json is not JSON: Expecting value"),
        (write("config.json", "[]"), "config.json is no JSON object"),
        (write("config.json", "{}"), "cannot be loaded: 'model_type'"),
        (write("tokenizer.json", '{"a":'), "cannot read the tokenizer in"),
        (truncate("model.safetensors", 0.0), "cannot be loaded: [read]"),
        (truncate("model.safetensors", 0.01), "cannot be loaded: [load_safetensors]"),
        (truncate("model.safetensors", 0.9), "cannot be loaded: [load_safetensors]"),
        (change(hidden_size=1234), "cannot be loaded: Expected shape"),
        (change(num_hidden_layers=99), "parameters: ...; copy or download the whole model again"),
    ],
    ids=range(12),
)
def test_model_folders(
    damage: Callable[[Path], object], message: str, refused: Callable[..., str], tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(builtin_path(), folder)
    damage(folder)
    told = refused("train", "--model", str(folder), "--out", "run")
    assert str(folder) in told
    assert message in told
    assert len(told) < 600


def test_a_model_of_a_user_who_does_not_exist(refused: Callable[..., str]) -> None:
    told = refused("train", "--model", "~nobody-of-this-name/model", "--out", "run")
    assert "model '~nobody-of-this-name/model' cannot be read: " in told
    assert "give a folder that this user may read" in told


def test_completions_longer_than_the_context(refused: Callable[..., str], tmp_path: Path) -> None:
    model = str(write_tiny_model(tmp_path / "model"))
    told = refused("train", "--model", model, "--out", "run", "--generation.max-tokens", "1024")
    assert f"generation.max_tokens is 1024 but model {model!r} has a context of 1024" in told
    assert "give a smaller number" in told


@pytest.mark.slow
def test_a_hub_name_without_a_network(tmp_path: Path) -> None:
    """In a process of its own, because the hub's library reads its settings once."""
    done = subprocess.run(
        ["legos", "train", "--model", "org/model"],
        env={**os.environ, "HF_ENDPOINT": "http://127.0.0.1:9", "HF_HOME": str(tmp_path / "hub")},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("error: model 'org/model' is no folder, and the hub does not")
    assert (
        "check the name and the network, log in where it is gated (uv run hf auth login), or use "
        "the built-in model: --model builtin" in done.stderr
    )
    assert "Traceback" not in done.stderr
    assert not Path("runs").exists()


def test_a_name_that_is_none_of_the_hubs(refused: Callable[..., str]) -> None:
    assert "model 'or g/mo del' is no folder" in refused("train", "--model", "or g/mo del")


def test_a_run_folder_that_is_a_file(refused: Callable[..., str]) -> None:
    Path("README.md").touch()
    for place in ("README.md", "README.md/run"):
        told = refused("train", "--out", place, *FAST)
        assert told == (
            f"error: --out is {place} but README.md is a file; "
            "give the folder of a run, such as runs/mine\n"
        )


def test_a_folder_that_cannot_be_locked_is_named(refused: Callable[..., str]) -> None:
    assert main(["train", "--out", "run", *FAST]) == 0
    Path("run/.lock").mkdir()
    assert "run/.lock cannot be written: " in refused("train", "--resume", "run", "--steps", "4")


def test_more_lora_layers_than_there_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = str(write_tiny_model(tmp_path / "model", layers=3))
    options = ["--model", model, *FAST, "--training.lora-layers", "4"]
    assert main(["train", "--out", "run", *options]) == 0
    notice = "training.lora_layers is 4; the model has 3, and all get LoRA"
    assert notice in capsys.readouterr().out
    assert main(["train", "--out", "other", "--model", model, *FAST]) == 0
    assert "training.lora_layers is" not in capsys.readouterr().out


def test_a_setting_that_has_no_effect_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--training.ema-decay", "0.5", "--training.kl-estimator", "k3"]
    options += ["--league.on-collapse", "stop"]
    assert main(["train", "--out", "run", *FAST, *options]) == 0  # nim advises a kl_coef of 0
    told = capsys.readouterr().out
    assert "training.ema_decay has no effect while ema_kl_coef is 0\n" in told
    assert "training.kl_estimator has no effect while kl_coef and ema_kl_coef are 0\n" in told
    assert "league.on_collapse has no effect without play.opponents\n" in told
    assert told.count("has no effect") == 3


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Within the block no file can grow beyond ``size`` bytes, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    writes, sys.dont_write_bytecode = sys.dont_write_bytecode, True  # it would be cut short
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        sys.dont_write_bytecode = writes


def test_a_full_disk_at_the_start(refused: Callable[..., str]) -> None:
    with largest_file(1000):
        told = refused("train", "--out", "run", *FAST)
    assert "run/config.toml cannot be written: " in told
    assert "free some space or choose another --out" in told


def test_a_full_disk_before_the_first_step(refused: Callable[..., str]) -> None:
    with largest_file(50_000):
        told = refused("train", "--out", "run", *FAST)
    assert "run/adapters/v0 cannot be written: " in told


def test_a_full_disk_at_a_checkpoint(capsys: pytest.CaptureFixture[str]) -> None:
    adapter = ["--loop.checkpoint-every", "1", "--training.lora-rank", "4"]
    assert main(["train", "--out", "first", *adapter, *FAST]) == 0
    sizes = {path.name: path.stat().st_size for path in Path("first").rglob("*.safetensors")}
    capsys.readouterr()
    with largest_file(sizes["optimiser.safetensors"] - 1):
        assert main(["train", "--out", "run", *adapter, *FAST]) == 2
    told = capsys.readouterr().err
    assert told.startswith("error: run/checkpoints/step-000000 cannot be written: ")
    assert "the run has a checkpoint" not in told
    assert not Path("run").exists()


def test_a_full_disk_in_the_metrics(capsys: pytest.CaptureFixture[str]) -> None:
    log = JsonlTracker.log

    def full(self: JsonlTracker, metrics: Any, *, step: int) -> None:
        with largest_file(0 if step == 2 and "loss" in metrics else 1 << 30):
            log(self, metrics, step=step)

    options = ["--out", "run", *NIM, "--steps", "3", "--deterministic"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(JsonlTracker, "log", full)
        assert main(["train", *options]) == 2
    told = capsys.readouterr().err
    assert told.startswith("error: cannot write run/metrics.jsonl: ")
    assert "free some space" in told
    assert "the run has a checkpoint; continue with\n  uv run legos train --resume run" in told
    assert len(Path("run/metrics.jsonl").read_text().splitlines()) == 2
    assert main(["train", "--resume", "run"]) == 0
    lines = [json.loads(line) for line in Path("run/metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [0, 1, 2, 3, 3]
