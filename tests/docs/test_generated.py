"""The reference that is made from the code has everything there is."""

import json
import re
import sys
from pathlib import Path

import pytest
from short_runs import FEW

import legos
from legos.cli.app import make_app
from legos.cli.process import main
from legos.config.resolve import knobs

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs" / "site"))

import generated  # noqa: E402


def described_metrics() -> list[re.Pattern[str]]:
    """A pattern for each metric of the pages; a word in capitals stands for a name."""
    patterns: list[re.Pattern[str]] = []
    for cell, _, _ in generated.metric_rows():
        prefix = ""
        for name in re.findall(r"`([^`]+)`", cell):
            whole = re.sub("^…/", prefix, name)
            prefix = whole.rpartition("/")[0] + "/"
            patterns.append(re.compile(re.sub("[A-Z][A-Z:]*", ".+", whole)))
    return patterns


def test_commands_settings_and_names() -> None:
    commands, settings, names = generated.commands(), generated.settings(), generated.names()
    for command in make_app(brief=True):
        assert command.startswith("-") or f"\n## legos {command}\n" in commands
    for name, field in knobs().items():
        assert f"### `{name}`\n\ndefault `" in settings
        assert field.description
        assert field.description in settings
    for name in legos.__all__:
        assert re.search(rf"^::: legos\.[\w.]+\.{name}$", names, re.MULTILINE)
    for name in ("checks.check_arena", "fakes.ScriptedClient", "builtin.RECOMMENDED"):
        assert f"\n::: legos.{name}\n" in names
    assert "did_you_mean" not in names


def test_examples_and_new_projects_use_documented_names_only() -> None:
    places = [*(ROOT / "examples").glob("*.py"), *(ROOT / "legos/apps/templates").glob("*.txt")]
    used = {
        (place.name, module)
        for place in places
        for module in re.findall(r"(?m)^ *(?:from|import) (legos[\w.]*)", place.read_text())
    }
    used.remove(("zorplex.py", "legos.mlx"))  # loads a fast BLAS before MLX
    assert {module for _, module in used} <= {"legos", *generated.MODULES}, used


def test_endpoints_and_metrics_of_a_server() -> None:
    endpoints = generated.endpoints()
    assert "## `POST /v1/chat/completions`\n\nAnswer a chat." in endpoints
    assert "| `name` | path |" in endpoints.partition("`DELETE /adapters/{name}`")[2]
    assert "| `legos_requests_total` | counter | Requests answered. |" in generated.metrics()


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        ["--mix", "nim=0.5", "--mix", "sums=0.5", "--training.tokens-per-step", "512"],
        ["--arena", "kuhn", "--play.opponents", "self=0.5", "--play.opponents", "past=0.5", *FEW],
    ],
    ids=["mix", "league"],
)
def test_every_metric_of_a_run_is_on_a_page(options: list[str], tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert main(["train", *options, "--steps", "2", "--quiet", "--out", str(run)]) == 0
    lines = (run / "metrics.jsonl").read_text().splitlines()
    logged = {name for line in lines for name in json.loads(line)}
    assert len(logged) > 50
    known = described_metrics()
    undescribed: set[str] = set()
    for name in logged:  # a mix has the plain names once for each arena
        plain = re.sub("^(?:batches|(eval))/(?:nim|sums)/", lambda f: "eval/" if f[1] else "", name)
        if not any(one.fullmatch(form) for one in known for form in (name, plain)):
            undescribed.add(name)
    assert undescribed == set()
