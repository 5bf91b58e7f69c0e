"""One real vLLM server for all tests marked ``vllm``; it serves the built-in model."""

import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from legos.builtin import BUILTIN, builtin_path
from legos.errors import ConfigError
from legos.remote.process import ServerProcess
from legos.remote.vllm.command import VllmOptions, find_vllm, vllm_command, vllm_process

StartVllm = Callable[..., ServerProcess]


@pytest.fixture(scope="session")
def vllm_program() -> Path:
    """The program of a vLLM that is installed elsewhere."""
    try:
        return find_vllm()
    except ConfigError as error:
        pytest.fail(f"tests marked vllm need the real server: {error}")


@pytest.fixture(scope="session")
def vllm_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of the built-in model in the hub's format."""
    folder = tmp_path_factory.mktemp("model") / BUILTIN
    shutil.copytree(builtin_path(), folder)
    return folder


@pytest.fixture(scope="session")
def start_vllm(
    vllm_program: Path, vllm_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[StartVllm]:
    """Starts real servers of the built-in model in float32; arguments replace options."""
    monkeypatch = pytest.MonkeyPatch()
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")  # GiB
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    started: list[ServerProcess] = []

    def start(*arguments: str, max_loras: int = 4) -> ServerProcess:
        options = VllmOptions(
            model=vllm_model,
            name=BUILTIN,
            dtype="float32",
            context=2048,
            rank=16,
            max_loras=max_loras,
            arguments=("--enforce-eager", *arguments),
        )
        log = tmp_path_factory.mktemp("vllm") / "vllm.log"
        server = vllm_process(partial(vllm_command, vllm_program, options), log=log)
        started.append(server)
        server.start()
        server.wait()
        return server

    yield start
    for server in started:
        server.close()
    monkeypatch.undo()


@pytest.fixture(scope="session")
def vllm_server(start_vllm: StartVllm) -> ServerProcess:
    """A real server that every test may use, and must leave running."""
    return start_vllm()
