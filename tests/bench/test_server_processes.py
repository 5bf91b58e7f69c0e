"""Other programs are started by their path, and their memory is that of all their processes."""

import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from bench.server_processes import PEERS, Server, peer_command, running
from bench.servers_in_turn import ratios_to_best

from legos.errors import ConfigError
from legos.machine import BLAS, blas

CHILD = "import sys; data = bytearray(50_000_000); print('ready', flush=True); sys.stdin.read()"
PARENT = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {CHILD!r}])"

LIBRARIES = """
import sys, uvicorn
async def libraries(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": open("/proc/self/maps", "rb").read()})
uvicorn.run(libraries, port=int(sys.argv[1]), lifespan="off", log_level="warning")
"""


def test_a_peer_is_a_known_program_that_exists(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="'ollama' is not known; expected mlx-openai-server, "):
        peer_command(tmp_path / "ollama", "model", rows=4)
    program = tmp_path / "vllm-mlx"
    with pytest.raises(ConfigError, match="does not exist; give the path"):
        peer_command(program, "model", rows=4)
    program.touch()
    command = peer_command(program, "model", rows=4)
    assert command[:3] == [str(program), "serve", "model"]
    assert command[command.index("--max-num-seqs") + 1] == "4"


@pytest.mark.parametrize("name", PEERS)
def test_every_peer_gets_the_model_and_the_rows(name: str, tmp_path: Path) -> None:
    program = tmp_path / name
    program.touch()
    assert {"folder", "7"} <= set(peer_command(program, "folder", rows=7))


def test_the_memory_of_a_server_includes_its_children() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        measured = Server("http://127.0.0.1:1", process.pid).resident_bytes()
        process.communicate(b"")
    assert 50_000_000 < measured < 300_000_000


@pytest.mark.skipif(blas() is None or sys.platform != "linux", reason="no fast BLAS is installed")
def test_every_server_computes_with_the_same_blas() -> None:
    with running([sys.executable, "-c", LIBRARIES]) as server:
        assert BLAS[blas() or ""][-1].partition(".so")[0] in httpx.get(server.url).text


def test_our_figures_are_compared_with_the_best_of_the_others() -> None:
    figures = {
        "legos": {"tokens_per_s_1": 60.0, "first_token_s": 0.1, "memory_mb": 300.0},
        "a": {"tokens_per_s_1": 40.0, "first_token_s": 0.2, "memory_mb": 600.0},
        "b": {"tokens_per_s_1": 50.0, "first_token_s": 0.4, "memory_mb": 200.0},
    }
    assert ratios_to_best(figures) == {
        "tokens_per_s_1": 1.2,
        "first_token_s": 0.5,
        "memory_mb": 1.5,
    }
