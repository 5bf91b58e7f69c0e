"""Every example runs as its docstring says, only shorter."""

import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

ROOT = Path(__file__).parents[2]


def run(name: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / name), *arguments],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_self_play_leaves_the_reference_as_it_was() -> None:
    told = run("self_play.py", "--steps", "4")
    assert "step 4: loss" in told
    assert "the reference is unchanged: True" in told


@pytest.mark.slow
def test_the_program_runs_against_a_server() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = str(taken.getsockname()[1])
    server = subprocess.Popen(
        [sys.executable, "-m", "legos", "serve", "--port", port], stderr=subprocess.DEVNULL
    )
    url = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + 60
        while not answers(url):
            assert time.monotonic() < deadline
            time.sleep(0.2)
        told = run("over_http.py", "--url", url, "--steps", "4")
    finally:
        server.terminate()
        server.wait(30)
    assert "step 4: loss" in told
    assert "live: AdapterInfo(name='policy', version=" in told  # a step may be left out


def answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health").is_success
    except httpx.ConnectError:
        return False


@pytest.mark.slow
def test_own_game_is_evaluated_before_and_after() -> None:
    before, after = run("own_game.py", "--steps", "3").splitlines()
    assert before.startswith("before {'policy_version': 0")
    assert after.startswith("after")
    assert "'arena': 'race'" in after


def test_a_plot_is_drawn(tmp_path: Path) -> None:
    rows = [
        f'{{"step": {step}, "eval/exploitability": {0.5 / step}, "eval/vs_random_win": 0.5}}\n'
        for step in (1, 2, 3)
    ]
    (tmp_path / "evaluations.jsonl").write_text("".join(rows))
    picture = tmp_path / "plot.png"
    run("plot_evaluation.py", str(tmp_path), str(picture))
    assert picture.read_bytes().startswith(b"\x89PNG")
