"""Every example runs as its docstring says, only shorter."""

import json
import re
import runpy
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from launched import announced, finished

from legos.config.resolve import resolve
from legos.credit import RULES
from legos.installed import adding

ROOT = Path(__file__).parents[2]


def run(name: str, *arguments: str) -> str:
    return finished((sys.executable, ROOT / "examples" / name, *arguments))


EXAMPLES = sorted(path.name for path in (ROOT / "examples").glob("*.py"))
ARENAS = {"distil.py"}  # to be named in a command
NOTEBOOKS = {"async_notebook.py", "first_hour_notebook.py"}  # marimo has the options of these


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_is_short_and_has_its_command_and_its_time(name: str) -> None:
    text = (ROOT / "examples" / name).read_text()
    assert name in NOTEBOOKS or len(text.splitlines()) <= 80
    told = text.split('"""')[1]
    assert f"examples/{name}" in told
    assert re.search(r"\b(minutes?|seconds?)\b", told)


@pytest.mark.parametrize("name", sorted({*EXAMPLES} - ARENAS - NOTEBOOKS))
def test_an_example_has_help(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [name, "--help"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(ROOT / "examples" / name), run_name="__main__")
    assert ended.value.code == 0
    assert f"usage: {name}" in capsys.readouterr().out


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("example", "package"), [("gsm8k.py", "datasets"), ("ray_cluster.py", "ray")]
)
def test_a_missing_package_is_named_without_a_traceback(
    example: str, package: str, tmp_path: Path
) -> None:
    missing = f"import sys; sys.modules['{package}'] = None; import runpy; sys.argv = ['{example}']"
    program = (
        f"{missing}; runpy.run_path({str(ROOT / 'examples' / example)!r}, run_name='__main__')"
    )
    line = [sys.executable, "-c", program]
    done = subprocess.run(line, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode not in (0, -11)
    assert adding(package) in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.nightly
def test_self_play_leaves_the_reference_as_it_was() -> None:
    told = run("self_play.py", "--steps", "12")
    assert "skipped" not in told  # all steps are applied, from the first on
    assert "step 12: loss" in told
    assert "the reference is unchanged: True" in told


@pytest.mark.nightly
def test_three_arenas_share_the_tokens() -> None:
    told = run("orchestrator.py", "--steps", "10")
    shares = dict(re.findall(r"(\w+): \d+ tokens, ([\d.]+) of all", told))
    assert shares.keys() == {"nim", "kuhn", "sums"}
    assert all(float(share) > 0 for share in shares.values())  # how much depends on the speed
    assert abs(sum(map(float, shares.values())) - 1) < 0.02
    assert re.findall(r"step 10: (\w+) gave \d+%; waiting: rollouts", told) == list(shares)
    assert "optimal_move_rate 0." in told


@pytest.mark.nightly
def test_the_notebook_of_the_first_hour_learns_its_game() -> None:
    found = re.search(r"optimal moves: (\S+) before, (\S+) after", run("first_hour_notebook.py"))
    assert found
    before, after = map(float, found.groups())
    assert before < 0.6
    assert after > 0.9


@pytest.mark.nightly
def test_the_notebook_of_overlap_runs_without_a_browser() -> None:
    told = run("async_notebook.py", "--steps", "4")
    in_turns, overlap = (dict(re.findall(r"'([^']+)': '([^']+)'", x)) for x in told.splitlines())
    assert (in_turns["run"], in_turns["oldest, steps"]) == ("in turns", "0")
    assert overlap["run"] == "overlap"
    assert overlap["oldest, steps"] in {"0", "1"}  # the staleness limit


def test_the_settings_of_maths_are_those_of_the_program() -> None:
    program = runpy.run_path(str(ROOT / "examples" / "gsm8k.py"))
    config = resolve(files=[ROOT / "examples" / "gsm8k.toml"]).config
    given: dict[str, Any] = {}
    make, place = program["make_trainer"], program["make_trainer"].__globals__
    place["load_model"], place["Trainer"] = (lambda *_, **__: None), given.update
    make(SimpleNamespace(model="builtin", server=None, learning_rate=None, sync_every=1))
    own, theirs = vars(given["config"]), config.training.model_dump()
    assert not {name for name in theirs if own[name] != theirs[name]}
    assert RULES[config.play.credit or ""] in program.values()


@pytest.mark.nightly
def test_maths_in_gsm8ks_form_as_a_program(tmp_path: Path) -> None:
    data = tmp_path / "rows.jsonl"
    rows = [{"question": f"{n} + 1?", "answer": f"one more\n#### {n + 1}"} for n in range(20)]
    data.write_text("\n".join(map(json.dumps, rows)))
    options = ("--steps", "3", "--data", str(data), "--out", str(tmp_path / "saved"))
    every = ("--problems", "2", "--max-tokens", "4", "--sync-every", "2", "--checkpoint-every", "2")
    told = run("gsm8k.py", *options, *every)
    assert re.findall(r"step (\d): reward_mean [\d.]+, loss ", told) == ["1", "2", "3"]
    assert re.search(r"held out: 64 plays, player/correct [\d.]+, player/format 0\n", told)
    assert [folder.name for folder in (tmp_path / "saved").iterdir()] == ["step-2"]
    assert (tmp_path / "saved" / "step-2" / "optimiser.safetensors").is_file()
    line = (sys.executable, ROOT / "examples" / "gsm8k.py", *options)
    again = subprocess.run(line, capture_output=True, text=True, check=False)
    assert again.stderr.endswith("saved has checkpoints; give another folder as --out\n")
    assert again.returncode == 2


@pytest.mark.nightly
def test_the_program_runs_against_a_server() -> None:
    serve = (sys.executable, "-m", "legos", "serve", "--port", "0")
    with subprocess.Popen(serve, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as server:
        try:
            told = run("over_http.py", "--url", announced(server), "--steps", "4")
        finally:
            server.terminate()
    assert "step 4: loss" in told
    assert "live: AdapterInfo(name='policy', version=" in told  # a step may be left out


@pytest.mark.nightly
def test_a_model_learns_the_form_of_zorplex_alone(tmp_path: Path) -> None:
    assert run("zorplex.py", str(tmp_path / "base"), "100").startswith("wrote ")
    options = ("--model", str(tmp_path / "base"), "--arena", "zorplex", "--steps", "1")
    play = ("--play.options.kinds", '["simple"]', "--play.options.levels", '["easy"]')
    small = ("--play.tasks-per-step", "2", "--generation.max-tokens", "24")
    out = tmp_path / "run"
    finished((sys.executable, "-m", "legos", "train", *options, *play, *small, "--out", str(out)))
    before = json.loads((out / "evaluations.jsonl").read_text().splitlines()[0])
    assert before["eval/reward_part_player/format"] > 0.8
    assert before["eval/reward_part_player/correct"] < 0.3


@pytest.mark.slow
def test_own_game_is_evaluated_before_and_after(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["own_game.py", "--steps", "3"])
    runpy.run_path(str(ROOT / "examples" / "own_game.py"), run_name="__main__")
    before, *steps, after = capsys.readouterr().out.splitlines()
    assert before.startswith("before: optimal_move_rate 0.49")
    assert [line.split()[1] for line in steps] == ["1/3", "3/3"]
    assert after.startswith("after: optimal_move_rate ")


@pytest.mark.optional
@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_a_cluster_of_this_machine_plays_generates_and_scores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ray")
    monkeypatch.chdir(tmp_path)
    run("ray_cluster.py", "--steps", "3")
    [metrics] = tmp_path.glob("runs/*/metrics.jsonl")
    _, *steps, _ = [json.loads(line) for line in metrics.read_text().splitlines()]
    assert [step["step"] for step in steps] == [1, 2, 3]
    evaluations = (metrics.parent / "evaluations.jsonl").read_text().splitlines()
    assert [json.loads(line)["eval/failed"] for line in evaluations] == [0, 0]
    assert all(step["arena/failed"] == 0 and 0 < step["reward_mean"] < 1 for step in steps)
