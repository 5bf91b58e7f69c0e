"""Runs without an adapter: every command that needs one says how to continue the run."""

import asyncio
from collections.abc import Iterable, Mapping
from pathlib import Path
from random import Random

import httpx
import pytest

from legos import Arena, Table, Task, play_task
from legos.apps.adapters import loaded, report_loading, resume_command
from legos.cli.process import main
from legos.records.limits import EngineLimits


@pytest.mark.parametrize(
    "command",
    [
        ["eval", "run"],
        ["export", "run", "--to", "new"],
        ["serve", "--port", "0", "--adapter", "run"],
        ["chat", "--adapter", "run"],
    ],
    ids=lambda command: command[0],
)
def test_a_run_that_was_killed_before_its_first_adapter_can_be_resumed(
    command: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.toml").write_text('arena = "nim"\n')
    assert main(command) == 2
    printed = capsys.readouterr().err
    assert "run holds no adapter yet" in printed
    assert printed.endswith("train it first with\n  uv run legos train --resume run\n")


def test_a_run_that_does_not_exist_is_not_resumed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--adapter", "nowhere"]) == 2
    printed = capsys.readouterr().err
    assert "nowhere holds no run" in printed
    assert "--resume" not in printed


def test_a_run_of_several_processes_is_resumed_by_what_started_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    end = "legos train --resume run"
    assert resume_command(Path("run")) == f"uv run {end}"
    monkeypatch.setenv("MLX_RANK", "0")
    assert resume_command(Path("run")) == f"uv run mlx.launch ... -- python -m {end}"
    for name in ("TORCHELASTIC_RUN_ID", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "RANK"):
        monkeypatch.setenv(name, "2")
    expected = f"uv run torchrun --standalone --nproc-per-node 2 -m {end}"
    assert resume_command(Path("run")) == expected
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert resume_command(Path("run")) == f"uv run torchrun ... -m {end}"


@pytest.mark.parametrize("command", [["chat"], ["serve", "--port", "0"]], ids=["chat", "serve"])
def test_the_model_that_is_loaded_is_named_first(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command, "--model", "no/such/model/here"]) == 2
    printed = capsys.readouterr()
    assert printed.err.startswith("loading no/such/model/here\n")
    assert printed.out == ""


def test_the_built_in_model_is_named_too(capsys: pytest.CaptureFixture[str]) -> None:
    """Its first start imports the libraries of the device, which takes seconds."""
    report_loading("builtin")
    assert capsys.readouterr().err == "loading builtin\n"


class Agent(Arena):
    """A program asks for one token."""

    def tasks(self, rng: Random) -> Iterable[Task]:
        yield Task(id="one")

    async def play(self, t: Table) -> Mapping[str, float]:
        asked = {"messages": [{"role": "user", "content": "Nim"}], "max_tokens": 1}
        async with t.endpoint("player") as endpoint, httpx.AsyncClient() as program:
            key = {"authorization": f"Bearer {endpoint.api_key}"}
            url = f"{endpoint.base_url}/chat/completions"
            said = await program.post(url, json=asked, headers=key)
        return {"player": float(said.is_success)}


def test_a_program_can_play_a_seat_of_a_loaded_model() -> None:
    with loaded(None, [], EngineLimits()) as live:
        client = live.client()
        played = play_task(Agent(client), Task(id="one"), {"player": client})
        episode = asyncio.run(played)
    assert (episode.error, episode.rewards) == (None, {"player": 1.0})
