"""Two trained policies over one base, in real runs: routed, published, booked and resumed apart."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from metric_lines import read_metrics, read_steps
from short_runs import Told
from stored_plays import TIMES

from legos.apps.members import adapters_of, free_seats
from legos.cli.process import main
from legos.errors import CheckpointError
from legos.fakes import ScriptedClient
from legos.league.cast import Cast
from legos.loop.evaluation import flat_metrics
from legos.run.checkpoint import newest_whole, read_state
from legos.run.find import find_adapter
from legos.weights.folder import read_adapter
from legos.weights.policy_state import read_policy_state
from legos.wiring.arena import make_arena
from legos.wiring.named import frozen_adapters

ARENA = """
from dataclasses import replace

from legos import Arena, Task


class Sums(Arena):
    roles = ("proposer", "solver")
    policies = ("proposer", "solver")
    max_tokens = 3

    def tasks(self, rng):
        while True:
            yield Task(id=f"{rng.getrandbits(40)}", data=rng.randrange(9))

    def seats(self, task):
        return {
            role: replace(seat, name=role, adapter=role)
            for role, seat in super().seats(task).items()
        }

    async def play(self, t):
        proposed = await t.ask("proposer", f"Propose a sum with {t.task.data}.")
        solved = await t.ask("solver", f"Solve {proposed.answer}.", max_tokens=2)
        proposal, solution = (sum(map(ord, said.text)) for said in (proposed, solved))
        return {"proposer": float(proposal % 7), "solver": float(solution % 5)}
"""
OPTIONS = (
    *("--play.tasks-per-step", "2", "--play.group-size", "4"),
    *("--training.min-samples-per-step", "4", "--loop.evaluation-plays", "4"),
    *("--loop.checkpoint-every", "2", "--loop.evaluate-every", "2", "--steps", "4"),
)


@pytest.fixture(scope="module")
def arena(tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("arena") / "sums.py"
    file.write_text(ARENA)
    return f"{file}:Sums"


@pytest.fixture(scope="module")
def run(arena: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    options = ("--arena", arena, "--out", str(folder), "--deterministic")
    assert main(["train", *options, *OPTIONS]) == 0
    return folder


def timeless(path: Path) -> list[Mapping[str, Any]]:
    lines = read_metrics(path)
    return [{k: v for k, v in line.items() if k not in TIMES} for line in lines]


def test_each_policy_has_its_own_steps_adapters_and_tokens(run: Path) -> None:
    lines = read_steps(run / "metrics.jsonl")
    assert [line["step"] for line in lines] == [1, 2, 3, 4]
    for line in lines:
        assert line["applied"] == line["solver/applied"] == 1
        assert line["policy_version"] == line["solver/policy_version"] == line["step"]
        assert line["loss"] != line["solver/loss"]
        assert line["staleness_max"] == 0
        trained = (line["trained/proposer_tokens"] or 0), (line["trained/solver_tokens"] or 0)
        assert min(trained) > 0
        assert sum(trained) == line["tokens_trained"]
        uses = ("trained", "filtered", "discarded", "queued")
        assert line["tokens_generated"] == sum(line[f"tokens_{use}"] or 0 for use in uses)
    digests: set[str] = set()
    for name, parent in (("proposer", "adapters"), ("solver", "adapters/solver")):
        for version in (2, 4):
            adapter = read_adapter(run / parent / f"v{version}")
            assert (adapter.name, adapter.version) == (name, version)
            digests.add(adapter.digest)
    assert len(digests) == 4


def test_checkpoints_have_the_state_of_both(run: Path, tmp_path: Path) -> None:
    place = newest_whole(run / "checkpoints")
    state = read_state(place)
    ledger = state["trainer"]["ledger"]
    assert set(ledger["trained_by"]) == {"proposer", "solver"}
    for name in ("proposer", "solver"):
        shapes = {k: a.shape for k, a in read_adapter(run / "adapters" / "v4").arrays.items()}
        policy = read_policy_state(place / name, name, shapes)
        assert (policy.version, policy.updates) == (4, 4)
    copy = shutil.copytree(run / "checkpoints", tmp_path / "checkpoints")
    damaged = copy / place.name / "solver" / "adapter.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:-1])
    assert newest_whole(copy).name == "step-000002"


def test_a_killed_run_ends_as_an_undisturbed_one(run: Path, tmp_path: Path) -> None:
    resumed = shutil.copytree(run, tmp_path / "resumed")
    shutil.rmtree(resumed / "checkpoints" / "step-000004")
    assert main(["train", "--resume", str(resumed)]) == 0
    assert timeless(resumed / "metrics.jsonl") == timeless(run / "metrics.jsonl")
    for place in ("adapters/v4", "adapters/solver/v4"):
        assert read_adapter(resumed / place).digest == read_adapter(run / place).digest


@pytest.mark.parametrize(("at", "line"), [("", -1), ("@2", 1)])
def test_a_later_evaluation_has_the_adapters_of_both(
    run: Path, at: str, line: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["eval", f"{run}{at}", "--json"]) == 0
    found = flat_metrics(json.loads(capsys.readouterr().out))
    then = read_metrics(run / "evaluations.jsonl")[line]
    rewards = {name: value for name, value in then.items() if name.startswith("eval/reward")}
    assert set(rewards) == {"eval/reward_mean", "eval/reward_proposer", "eval/reward_solver"}
    assert {name: found[name] for name in rewards} == rewards


def test_a_step_has_the_policies_of_that_step_where_one_kept_its_version(
    run: Path, tmp_path: Path
) -> None:
    place = shutil.copytree(run, tmp_path / "run")
    lines = read_metrics(place / "metrics.jsonl")
    for line in lines:  # as if the updates of the proposer had been left out from step 3 on
        if (line.get("policy_version") or 0) > 2:
            line["policy_version"] = 2
    (place / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))

    def versions(at: str) -> list[int]:
        found = frozen_adapters(f"{place}{at}", ("proposer", "solver"))
        return [adapter.version for adapter in found.values()]

    assert [versions(at) for at in ("@0", "@2", "@4", "@v2")] == [[0, 0], [2, 2], [2, 4], [2, 4]]
    shutil.rmtree(place / "adapters" / "solver" / "v4")
    assert versions("@v2") == [2, 2]  # the newest step of which both are kept
    (place / "metrics.jsonl").unlink()
    with pytest.raises(CheckpointError, match=r"does not say which adapters solver had .* with v2"):
        versions("@v2")


def test_the_adapters_that_a_fork_took_over_are_found(run: Path, tmp_path: Path) -> None:
    fork = shutil.copytree(run, tmp_path / "fork")
    text = (fork / "config.toml").read_text()
    started = text.replace('#: fork_from = "none"', f'fork_from = "{run}@2"')
    (fork / "config.toml").write_text(started)
    lines = read_metrics(fork / "metrics.jsonl")
    later = (f"{json.dumps(line)}\n" for line in lines if (line["step"] or 0) > 2)
    (fork / "metrics.jsonl").write_text("".join(later))
    (fork / "evaluations.jsonl").unlink()
    assert find_adapter(f"{fork}@2") == fork / "adapters" / "v2"
    found = frozen_adapters(f"{fork}@v2", ("proposer", "solver"))
    assert [adapter.version for adapter in found.values()] == [2, 2]
    shutil.rmtree(fork / "adapters" / "v4")
    with pytest.raises(CheckpointError, match="keeps no adapter of step 4"):
        find_adapter(f"{fork}@4")


@pytest.mark.slow
def test_policies_flow_next_to_each_other_with_lag(arena: str, tmp_path: Path) -> None:
    run = tmp_path / "run"
    limit = ("--training.staleness-limit", "2", "--loop.step-concurrency", "2")
    assert main(["train", "--arena", arena, "--out", str(run), *limit, *OPTIONS]) == 0
    lines = read_steps(run / "metrics.jsonl")
    assert [line["step"] for line in lines] == [1, 2, 3, 4]
    for line in lines:
        assert 0 <= (line["staleness_max"] or 0) <= 2
        uses = ("trained", "filtered", "discarded", "queued")
        assert line["tokens_generated"] == sum(line[f"tokens_{use}"] or 0 for use in uses)
    assert [line["step"] for line in read_metrics(run / "evaluations.jsonl")] == [0, 2, 4]
    assert (run / "adapters" / "solver" / "v2").is_dir()  # of the evaluation after step 2


@pytest.mark.slow
def test_members_of_a_tournament_have_an_adapter_for_each_policy(
    run: Path, arena: str, told: Told
) -> None:
    names = ("proposer", "solver")
    new, old = f"{run}@4", f"{run}@2"
    made = make_arena(arena, ScriptedClient([]))
    found = adapters_of([new, old, "base"], made.policies)
    live = {each: adapter.name for each, adapter in found.items()}
    seats = free_seats(made)
    for who, version in ((new, 4), (old, 2)):
        for name, parent in zip(names, ("adapters", "adapters/solver"), strict=True):
            kept = read_adapter(run / parent / f"v{version}")
            assert found[who, name].digest == kept.digest
            seat = Cast(made, live=live).seat(who, seats[name])
            assert seat.adapter == f"seat-{kept.digest[:12]}"
    table = told("tournament", new, old, "base", "--plays", "4")
    assert (table["plays"], table["failed"]) == (12, 0)
    against = told("eval", str(run), "--against", old, "--loop.evaluation-plays", "4")["against"]
    assert against[old]["roles"].keys() == {*names}
