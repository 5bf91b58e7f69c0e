"""The program: what each command calls, what it prints, and how it ends."""

import json
import os
import re
import resource
import subprocess
import sys
from collections.abc import Callable, Mapping
from operator import attrgetter
from pathlib import Path
from types import ModuleType
from typing import Any, get_args

import pytest

from legos.cli.app import make_app
from legos.cli.help import USUAL
from legos.cli.process import main
from legos.cli.train import train as train_command
from legos.config.resolve import ResolvedConfig, knobs, read_config
from legos.errors import ModelError

Stub = Callable[..., None]
COMMANDS = [name for name in make_app(brief=True) if not name.startswith("-")]
Trained = list[tuple[ResolvedConfig, Path | None]]


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> Stub:
    """Stand in for one module of ``legos.apps``, which the commands import when they run."""

    def put(name: str, **functions: Any) -> None:
        module = ModuleType(f"legos.apps.{name}")
        vars(module).update(functions)
        monkeypatch.setitem(sys.modules, f"legos.apps.{name}", module)

    return put


@pytest.fixture
def trained(stub: Stub) -> Trained:
    calls: Trained = []

    def train(config: ResolvedConfig, *, resume: Path | None, **_: Any) -> tuple[int, Path]:
        calls.append((config, resume))
        return 0, Path()

    def check(config: ResolvedConfig, *, resume: Path | None) -> None:
        """Everything may be trained."""

    stub("train", train=train, check=check)
    return calls


def test_no_argument_prints_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    printed = capsys.readouterr().out
    for command in COMMANDS:
        assert command in printed


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "--help"]) == 0
    assert f"Usage: legos {command}" in capsys.readouterr().out


def test_help_of_train_is_short_and_begins_with_examples_and_loads_no_device_library() -> None:
    code = (
        "import sys; from legos.cli.process import main; code = main(['train', '--help']);"
        "heavy = {'mlx', 'torch', 'transformers', 'wandb'} & set(sys.modules);"
        "sys.exit(' '.join(heavy) or code)"
    )
    environment = {**os.environ, "COLUMNS": "80"}
    told = subprocess.check_output([sys.executable, "-c", code], env=environment, text=True)
    assert len(told.splitlines()) < 60
    examples, _, options = told.partition("─ Parameters ─")
    assert examples.count(" legos train --") == 5
    for option in USUAL:
        assert re.search(rf"│ {option}\b", options), option
    assert "--training.micro-batch-tokens" not in options
    assert "--help-all lists every setting" in options


def test_the_examples_of_the_help_are_options_that_exist(trained: Trained) -> None:
    text = train_command.__doc__ or ""
    examples = re.findall(r"^ +legos (train .*)$", text, re.MULTILINE)
    assert len(examples) == 5
    for example in examples:
        if "--resume" not in example and ".py" not in example:  # those need files of one's own
            assert main(example.split()) == 0
    assert len(trained) == 2


def test_help_all_of_train_lists_every_setting_with_its_range(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["train", "--help-all"]) == 0
    told = capsys.readouterr().out
    for name in knobs():
        if "." in name:
            assert f"--{name.replace('_', '-')}" in told, name
    assert "(optimiser steps; >= 1; default 200)" in told


def processor_seconds(code: str) -> float:
    """What a program takes once its files are in the cache."""
    taken: list[float] = []
    for _ in range(2):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        taken.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return min(taken)


@pytest.mark.nightly
def test_help_is_fast() -> None:
    code = "from legos.cli.process import main; main(['train', '--help'])"
    # Against the libraries that it needs, which are as slow on a busy machine: about four times.
    assert processor_seconds(code) < 12 * processor_seconds("import cyclopts, pydantic, rich")


def test_train_passes_options_with_their_sources(trained: Trained, tmp_path: Path) -> None:
    settings = tmp_path / "a.toml"
    settings.write_text("[training]\nkl_coef = 0.7\nlora_rank = 4\n")
    options = ["--config", str(settings), "--steps", "7", "--seed", "3", "--track", "wandb"]
    dotted = [
        "--training.learning-rate",
        "1e-3",
        "--training.lora-rank",
        "2",
        "--loop.deterministic",
    ]
    more = [
        "--play.options.largest",
        "9",
        "--play.options.word",
        "a b",
        "--training.clip-range",
        "none",
    ]
    assert main(["train", *options, *dotted, *more]) == 0
    [(resolved, resume)] = trained
    config = resolved.config
    assert resume is None
    assert (config.model, config.arena, config.seed, config.loop.steps) == ("builtin", "nim", 3, 7)
    assert config.track.wandb == "auto"
    assert config.training.learning_rate == 1e-3
    assert config.training.lora_rank == 2
    assert config.training.kl_coef == 0.7
    assert config.training.clip_range is None
    assert config.loop.deterministic
    assert config.training.staleness_limit == 0
    assert config.play.options == {"largest": 9, "word": "a b"}
    assert resolved.sources["training.lora_rank"] == "command line"
    assert resolved.sources["training.kl_coef"] == f"file {settings}"


def test_dry_run_prints_settings_that_read_back(
    trained: Trained,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    assert main(["train", "--dry-run", "--steps", "5"]) == 0
    assert not trained
    printed = capsys.readouterr().out
    assert "steps = 5  # command line" in printed
    assert '#: clip_range_high = "none"  # default\n' in printed
    (tmp_path / "printed.toml").write_text(printed)
    assert read_config(tmp_path / "printed.toml").loop.steps == 5


def test_a_dry_run_prints_settings_as_json(
    trained: Trained, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "--dry-run", "--steps", "5", "--out", "runs/one", "--json"]) == 0
    assert not trained
    found = json.loads(capsys.readouterr().out)
    assert found["loop.steps"] == {"value": 5, "source": "command line"}
    assert found["out"]["value"].endswith("one")


def test_a_runs_settings_leave_another_arena_its_own(trained: Trained, tmp_path: Path) -> None:
    assert main(["train", "--training.lora-rank", "4"]) == 0
    saved = tmp_path / "config.toml"
    saved.write_text(trained[0][0].toml())
    assert main(["train", "--config", str(saved), "--arena", "kuhn"]) == 0
    assert main(["train", "--arena", "kuhn", "--training.lora-rank", "4"]) == 0
    assert trained[1][0].config == trained[2][0].config
    assert trained[1][0].config.loop.steps == 800  # kuhn's, not the 500 of nim


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["serve", "--memory-limit-gib", "-1"], "for --memory-limit-gib. Must be > 0"),
        (["serve", "--max-queue", "-1"], "for --max-queue. Must be >= 0"),
        (["train", "--training.rank", "3"], "Did you mean --training.lora-rank?"),
        (["train", "--loop.keep-awake", "no", "--seed", "1"], "leave 'no' out"),
        (["train", "--out", "run\udcff"], "argument 'run\\udcff' is not text in UTF-8"),
        (["train", "--training.lora-rnk", "3"], "Did you mean --training.lora-rank?"),
        (
            ["train", "--training.lora-rank", "0"],
            "training.lora_rank is 0; expected greater than or equal to 1",
        ),
        (["train", "--steps", "3", "--loop.steps", "4"], "--steps and --loop.steps are the same"),
        (["train", "--resume", "x" * 300], "cannot look for a run at xxx"),
        (["arenas", "new", "x" * 300], "x.py cannot be written: [Errno 36] File name too long"),
    ],
)
def test_bad_input_is_one_message_and_exit_code_2(
    arguments: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
    trained: Trained,
) -> None:
    assert main(arguments) == 2
    printed = capsys.readouterr()
    assert printed.err.startswith("error: ")
    assert message in printed.err
    assert "Traceback" not in printed.err
    assert not printed.out
    assert not trained


def test_debug_shows_where_an_error_comes_from() -> None:
    with pytest.raises(ValueError, match="expected greater"):
        main(["train", "--training.lora-rank", "0", "--debug"])


def test_errors_of_a_command_end_with_2_and_interrupts_with_130(
    stub: Stub, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(**_: object) -> None:
        raise ModelError("folder x has no config.json")

    stub("serve", serve=refuse)
    assert main(["serve"]) == 2
    assert capsys.readouterr().err == "error: folder x has no config.json\n"

    def interrupt(**_: object) -> None:
        raise KeyboardInterrupt

    stub("serve", serve=interrupt)
    assert main(["serve"]) == 130


def resumable(folder: Path, text: str = "") -> Path:
    folder.mkdir()
    (folder / "config.toml").write_text(f'arena = "kuhn"\nseed = 5\n{text}')
    return folder


def test_resume_goes_on_under_the_settings_of_the_run(trained: Trained, tmp_path: Path) -> None:
    run = resumable(tmp_path / "run", "[training]\nkl_coef = 0.7\n[loop]\nsteps = 9\n")
    assert main(["train", "--resume", str(run), "--steps", "20"]) == 0
    [(resolved, resume)] = trained
    assert resume == run
    assert resolved.config.out == run
    assert resolved.config.arena == "kuhn"
    assert resolved.config.training.kl_coef == 0.7
    assert resolved.config.loop.steps == 20


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--arena", "nim"], "arena is 'nim' (command line) but the run in"),
        (["--seed", "6"], "seed is 6 (command line) but the run in"),
        (["--out", "elsewhere"], "--out elsewhere differs from --resume"),
        (["--play.credit", "rae"], "play.credit of kuhn is 'rae' but the run in"),
    ],
)
def test_resume_as_another_run_is_refused(
    arguments: list[str],
    message: str,
    trained: Trained,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = resumable(tmp_path / "run")
    assert main(["train", "--resume", str(run), *arguments]) == 2
    assert message in capsys.readouterr().err
    assert not trained


def test_eval_prints_json_or_lines(stub: Stub, capsys: pytest.CaptureFixture[str]) -> None:
    asked: list[tuple[str, object]] = []

    def evaluate_run(
        run: str, *, adapter: str | None, overrides: Mapping[str, object]
    ) -> Mapping[str, object]:
        assert adapter is None
        asked.append((run, overrides))
        return {
            "arena": "nim",
            "vs_random": {"win": 0.91234567, "draw": 0.0},
            "exploitability": None,
        }

    stub("evaluate", evaluate_run=evaluate_run)
    assert main(["eval", "runs/a", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["vs_random"]["win"] == 0.91234567
    assert told["exploitability"] is None
    options = ["--play.options.split", "test", "--loop.evaluation-temperature", "0"]
    assert main(["eval", "runs/a@v3", *options]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "arena           nim",
        "vs_random.win   0.9123",
        "vs_random.draw  0",
    ]
    overrides = {"play.options.split": "test", "loop.evaluation_temperature": 0.0}
    assert asked == [("runs/a", {}), ("runs/a@v3", overrides)]
    assert main(["eval", "runs/a", "--plays", "9", "--temperature", "0.5"]) == 0  # as tournament
    assert asked[2][1] == {"loop.evaluation_plays": 9, "loop.evaluation_temperature": 0.5}


def test_serve_bench_and_arenas_call_their_functions(
    stub: Stub, capsys: pytest.CaptureFixture[str]
) -> None:
    calls: list[object] = []

    def serve(**options: object) -> None:
        calls.append(options)

    def bench(
        model: str | None, seconds: float, *, write: Callable[[str], None]
    ) -> Mapping[str, object]:
        calls.append((model, seconds))
        write("| decode |\n")
        return {"machine": "arm64", "lines": [{"name": "decode"}]}

    stub("serve", serve=serve)
    stub("bench", bench=bench)
    listed = {"nim": {"about": "Take stones.", "reference": {"value": 0.5}}}
    lines = {name: arena["about"] for name, arena in listed.items()}
    stub("arenas", list_arenas=lambda: listed, described=lambda arenas: lines)
    assert main(["serve", "--port", "0", "--adapter", "a/v3"]) == 0
    assert main(["bench", "--model", "a/b", "--seconds", "5", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found == {"machine": "arm64", "lines": [{"name": "decode"}]}
    assert main(["bench"]) == 0
    assert capsys.readouterr().out == "| decode |\nmachine  arm64\n"
    assert main(["arenas"]) == 0
    assert capsys.readouterr().out == "nim  Take stones.\n"
    assert main(["arenas", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == listed
    (served, *benched) = calls
    assert isinstance(served, dict)
    assert (served["model"], served["adapters"]) == (None, ("a/v3",))
    assert (served["host"], served["port"]) == ("127.0.0.1", 0)
    assert served["options"].api_key is None
    assert benched == [("a/b", 5.0), (None, 60.0)]


BOOLEANS = [
    name
    for name, field in knobs().items()
    if bool in (field.annotation, *get_args(field.annotation))
]


@pytest.mark.parametrize("name", BOOLEANS)
def test_every_boolean_can_be_switched_off_in_two_ways(trained: Trained, name: str) -> None:
    group, _, knob = name.replace("_", "-").partition(".")
    for option in (f"--no-{group}.{knob}", f"--{group}.no-{knob}"):
        assert main(["train", option]) == 0
        resolved, _ = trained[-1]
        assert attrgetter(name)(resolved.config) is False
        assert resolved.sources[name] == "command line"


def test_output_into_a_closed_pipe_ends_without_a_traceback() -> None:
    command = [sys.executable, "-m", "legos", "arenas"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait(60) == 141


def test_the_name_of_a_run_leads_to_the_command_that_describes_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["runs", "nim-1"]) == 2
    assert "`legos runs show nim-1` describes a run" in capsys.readouterr().err
