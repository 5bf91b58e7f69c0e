"""What the pages show, works: their programs are run, their commands and links exist."""

import asyncio
import json
import random
import re
import runpy
import shlex
import subprocess
import sys
from math import isfinite
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import legos
from legos import GRPOCredit
from legos import credit as credit_rules
from legos.arena.registry import find_arena
from legos.cli.app import make_app
from legos.cli.process import main
from legos.config.schema import PlayConfig
from legos.errors import RecordError
from legos.fakes import Asked, ScriptedClient
from legos.games.exact import GameTree, optimal_move_rate, optimal_policy
from legos.league.guards import guard_rules
from legos.losses.alarms import PAGE, RULES
from legos.wiring.arena import make_arena

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BESIDE = [ROOT / f"{name}.md" for name in ("CHANGELOG", "CONTRIBUTING", "README", "SECURITY")]


def vars_of(module: ModuleType) -> dict[str, object]:
    """A module's public names."""
    return {name: getattr(module, name) for name in dir(module)}


def program(page: Path, place: Path) -> Path:
    """The page's first Python block as a file."""
    block = re.search(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    assert block is not None
    place.write_text(block[1])
    return place


def test_the_game_of_the_readme_can_be_solved(tmp_path: Path) -> None:
    kind = find_arena(f"{program(ROOT / 'README.md', tmp_path / 'race.py')}:Race")
    tree = GameTree(kind())
    best = optimal_policy(tree)
    assert best is not None
    assert optimal_move_rate(tree, best) == pytest.approx(1.0)


def test_the_arena_of_the_index_plays(tmp_path: Path) -> None:
    page = ROOT / "docs" / "arenas" / "reference.md"
    kind = find_arena(f"{program(page, tmp_path / 'refine.py')}:Refine")
    client = ScriptedClient(lambda asked: "the sea" if "Revise" in asked.prompt else "fine")
    arena = kind(client, credit_assigner=GRPOCredit())
    arena.tasks_per_step, arena.group_size = 3, 2
    batch = asyncio.run(arena.step(concurrency=2))
    told = {episode.task.data: episode.rewards["writer"] for episode in batch.episodes}
    assert told == {"sea": 1.0, "snow": 0.0, "bread": 0.0}


def test_the_task_of_the_page_on_chat_models_plays(tmp_path: Path) -> None:
    page = ROOT / "docs" / "start" / "chat_model.md"
    kind = find_arena(f"{program(page, tmp_path / 'my_task.py')}:Additions")

    def answer(asked: Asked) -> str:
        first, second = map(int, re.findall(r"\d+", asked.prompt))
        right = f"{first} + {second} = {first + second}"
        return right if first % 2 else f"{right}, and this goes on"

    arena = kind(ScriptedClient(answer), credit_assigner=GRPOCredit())
    rng, shown = random.Random(0), page.read_text()
    trained, held_out = list(arena.tasks(rng)), list(arena.held_out(rng))
    assert f"here {len(held_out)} of {len(trained) + len(held_out)}" in shown
    assert not {tuple(task.data) for task in trained} & {tuple(task.data) for task in held_out}
    arena.group_size = 1
    plays = asyncio.run(arena.step()).episodes
    told = {int(play.task.id.split()[0]) % 2: play.rewards["player"] for play in plays}
    assert told == {0: 1.0, 1: 1.2}
    assert f"{arena.tasks_per_step * kind.group_size} answers a step" in shown


@pytest.mark.slow
def test_the_program_of_the_page_on_python_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = program(ROOT / "docs" / "start" / "python.md", tmp_path / "program.py")
    runpy.run_path(str(path))
    told = capsys.readouterr().out
    assert "step 10/10" in told
    assert "optimal_move_rate" in told


@pytest.mark.slow
def test_the_program_of_the_page_on_leagues_meets_the_past_and_a_bot(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = program(ROOT / "docs" / "arenas" / "league.md", tmp_path / "program.py")
    assert len(runpy.run_path(str(path))["arena"].matchmaker.pool.members) == 4
    told = re.findall(r"^\{.*\}$", capsys.readouterr().out, re.MULTILINE)
    assert len(told) == 6
    for name in ("past", "random"):
        assert all(f"'league/score_{name}': " in line for line in told)


def test_the_program_of_the_page_on_ratings_shows_what_the_page_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = ROOT / "docs" / "reference" / "ratings.md"
    runpy.run_path(str(program(page, tmp_path / "program.py")))
    shown = re.search(r"```text\n(.*?)```", page.read_text(), re.DOTALL)
    assert shown is not None
    assert capsys.readouterr().out == shown[1]


def test_every_public_name_is_on_a_page() -> None:
    pages = " ".join(page.read_text() for page in PAGES)
    assert [name for name in legos.__all__ if not re.search(rf"`[^`]*\b{name}\b", pages)] == []


def test_the_rules_of_the_page_on_python_are_all_there_are() -> None:
    page = (ROOT / "docs" / "start" / "python.md").read_text()
    rows = re.findall(r"^\| (`\w+\(.*?\)`(?:, `.*?`)*) \| (.*?) \|$", page, re.MULTILINE)
    names = [name for _, told in rows[:-1] for name in re.findall(r"`(\w+)`", told)]
    assert sorted(names) == sorted(credit_rules.RULES)
    for made, _ in rows:
        for expression in re.findall(r"`(.*?\))`", made):
            assert eval(expression, {**vars_of(legos), "credit": GRPOCredit()}), expression


def test_every_link_leads_somewhere() -> None:
    links = [
        (page.name, page.parent / link)
        for page in {*PAGES, *BESIDE}
        for link in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text())
        if "//" not in link
    ]
    assert len(links) > len(PAGES)
    assert [(page, place) for page, place in links if not place.exists()] == []


def test_every_file_that_a_page_of_the_root_names_exists() -> None:
    named = {
        (page.name, place)
        for page in BESIDE
        for place in re.findall(r"`((?:\.ci|docs|examples|legos|tests)/[\w./]+)`", page.read_text())
    }
    assert len(named) > len(BESIDE)
    assert {(page, place) for page, place in named if not (ROOT / place).exists()} == set()


def test_the_program_has_no_other_commands_than_the_index_tells() -> None:
    told = set(re.findall(r"\| `legos ([a-z]+)", (ROOT / "docs" / "index.md").read_text()))
    assert told == {name for name in make_app(brief=True) if not name.startswith("-")}


def test_every_command_exists() -> None:
    pages = {
        (page.name, command)
        for page in PAGES
        for command in re.findall(r"(?:`|run )legos ([a-z]+)", page.read_text())
    }
    assert len(pages) > len(PAGES)
    known = {*make_app(brief=True)}
    assert {(page, command) for page, command in pages if command not in known} == set()


def test_the_commands_of_the_log_of_chat_models_are_read_and_do_not_meet() -> None:
    page = (ROOT / "docs" / "log" / "chat_models.md").read_text().replace("\\\n", "")
    program, made = make_app(brief=False), list[str]()
    for options, line in re.findall(r"^    uv run (.*)legos (\w+ .*)$", page, re.MULTILINE):
        given = {"$MODEL": "builtin", "RATE": "1e-3", "LIMIT": "0"}
        words = [given.get(word, word) for word in shlex.split(line)]
        assert not [word for word in words if "$" in word], "a word of several is one in zsh"
        program.parse_args(words, exit_on_error=False, print_error=False)
        assert ("reasoning_gym:" in line) == ("--extra reasoning_gym" in options), line
        if words[0] == "imitate":
            made.append(words[words.index("--out") + 1].removeprefix("runs/"))
        elif "--adapter" in words:
            assert words[words.index("--adapter") + 1] == made[-1]
    assert len(made) == len(set(made)) == 4


def test_the_page_of_alarms_has_each_with_its_levels() -> None:
    page = (ROOT / PAGE).read_text()
    told = re.findall(r"^\| `([\w/]+)` \| ([\d.]+) \| ([\d.]+|never) \|", page, re.MULTILINE)
    assert told == [
        (rule.metric, f"{rule.warning:g}", f"{rule.error:g}" if isfinite(rule.error) else "never")
        for rule in RULES
    ]


def test_the_page_of_alarms_has_each_guard_with_its_limit() -> None:
    rows = re.findall(r"^\| `league/(\w+)`.*? \| (.*?) \|", (ROOT / PAGE).read_text(), re.MULTILINE)
    limits = {rule.metric: f"{rule.warning:g}" for rule in guard_rules(100.0)}
    limits |= {"fall": "`league.collapse_elo`", "forgotten": "one"}
    assert dict(rows).keys() == limits.keys()
    assert [(name, text) for name, text in rows if limits[name] not in text.split()] == []


def one_step(game: str, credit: str) -> list[list[float]]:
    """Advantages of a step played at random, by turn."""
    rng = random.Random(0)
    client = ScriptedClient(lambda asked: rng.choice(asked.sampling.choices))
    arena = make_arena(game, client, play=PlayConfig(credit=credit))
    batch = asyncio.run(arena.step(concurrency=8))
    return [list(sample.advantages) for sample in batch.samples]


@pytest.mark.parametrize("game", ["nim", "kuhn"])
def test_credit_rules_come_to_what_the_page_on_games_says(game: str) -> None:
    joint = [advantage for turn in one_step(game, "joint") for advantage in turn]
    assert joint
    assert not np.any(joint)
    assert one_step(game, "hierarchical") == one_step(game, "dr_grpo")
    assert np.std([turn[0] for turn in one_step(game, "same_view")]) > 0.5
    with pytest.raises(RecordError, match="needs rewards >= 0"):
        one_step(game, "maxrl")


def test_the_credit_rule_of_the_page_on_credit_is_used(tmp_path: Path) -> None:
    place = program(ROOT / "docs" / "ideas" / "credit.md", tmp_path / "half.py")
    assert {abs(turn) for turns in one_step("nim", f"{place}:Half") for turn in turns} == {0.5, 1.5}


MEETS = """
import asyncio
from duel import Duel
from legos import GRPOCredit
from legos.fakes import ScriptedClient

met = OftenLost(["left", "right"])
rock = ScriptedClient(lambda asked: "rock")
batch = asyncio.run(Duel(rock, credit_assigner=GRPOCredit(), matchmaker=met).step())
seats = {episode.rollouts[1].seat for episode in batch.episodes}
won = sum(episode.rewards["rival"] > 0 for episode in batch.episodes)
assert seats == {"left", "right"}
assert sum(met.wins.values()) == 2 + won > 2
"""

SEATED = """
from legos import Task
from legos.fakes import ScriptedClient

seats = Sums(ScriptedClient(lambda asked: "1")).seated(Task(id="t"), 0)
assert {role: seat.policy for role, seat in seats.items()} == {r: r for r in Sums.policies}
"""


@pytest.mark.nightly
def test_the_programs_of_the_page_on_seats_train(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (ROOT / "docs" / "arenas" / "seats.md").read_text()
    duel, script, league, sums = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    Path("duel.py").write_text(duel)
    options = ["--steps", "2", "--training.min-samples-per-step", "16"]
    for run, rival in (("bot", "bot"), ("base", "base"), ("older", "bot@2")):
        arguments = ["train", "--arena", "duel.py:Duel", "--out", f"runs/{run}", *options]
        assert main([*arguments, "--play.options.rival", rival]) == 0
        plays = list(map(json.loads, Path(f"runs/{run}/episodes.jsonl").read_text().splitlines()))
        assert {seat["seat"] for play in plays for seat in play["seats"]} == {"policy", rival}
        assert {play["failure"] for play in plays} == {None}
    capsys.readouterr()
    assert main(["eval", "older", "--json", "--loop.evaluation-plays", "4"]) == 0
    assert json.loads(capsys.readouterr().out)["plays"] == 4
    arguments = ["train", "--arena", "duel.py:Duel", "--play.options.rival"]
    assert main([*arguments, "bot@7"]) == 2
    assert "bot" in capsys.readouterr().err
    adapter = "runs/duel-1/adapters/v200"
    assert script.count(adapter) == 1
    Path("script.py").write_text(script.replace(adapter, "runs/bot/adapters/v2"))
    Path("league.py").write_text(league + MEETS)
    Path("sums.py").write_text(sums + SEATED)
    for program in ("script.py", "league.py", "sums.py"):
        done = subprocess.run(
            [sys.executable, program], capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, done.stderr
    capsys.readouterr()
