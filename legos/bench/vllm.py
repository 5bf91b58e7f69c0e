"""The engine on a vLLM server and its publisher, against a bare client of the same server."""

import shutil
import statistics
import tempfile
import time
from collections.abc import Generator, Mapping
from contextlib import closing, contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from legos.bench.clients import clients
from legos.bench.models import random_adapter
from legos.bench.rounds import Workload, medians
from legos.builtin import BUILTIN, builtin_path
from legos.clients.lists import LISTED
from legos.clients.submit import submit_all
from legos.data.names import POLICY
from legos.data.request import Request
from legos.device import ModelHandle
from legos.vllm.command import VllmOptions, vllm_command
from legos.vllm.process import free_port, vllm_process
from legos.weights.adapter import Adapter
from legos.weights.peft import write_peft
from legos.wiring.engines import TokenEngine
from legos.wiring.model import apply_lora, load_model
from legos.wiring.vllm import vllm_at

__all__ = ["measure_vllm"]

MOVES, PROMPT, MOVE = 256, 48, 3  # simultaneous moves, tokens of a prompt, tokens of a move
SLOTS = 6  # adapters that the server holds


def measure_vllm(program: Path, work: Workload) -> Mapping[str, Any]:
    """Start vLLM with the built-in model, and measure.

    Args:
        program: the ``vllm`` program.
        work: how much to measure.

    Returns:
        ``ratios``, and ``figures``: moves per second and milliseconds of a publication, of legos
        and of a bare client.
    """
    with tempfile.TemporaryDirectory() as root, closing(load_model()) as model:
        apply_lora(model)
        folder = Path(root) / BUILTIN
        shutil.copytree(builtin_path(), folder)
        with (
            _started(program, folder, model, Path(root)) as url,
            closing(vllm_at([url], model, policies=(POLICY,))) as engine,
        ):
            bench = _VllmBench(url, engine, model.base_adapter(), Path(root))
            bench.publish()
            moves = medians(work.part(1 / 2).in_turn(bench.moves, bench.bare_moves, least=3))
            rounds = work.part(1 / 2).rounds(
                [bench.publish, bench.by_hand, bench.one_token], least=5
            )
    publish, by_hand, token = map(statistics.median, zip(*rounds, strict=True))
    return {
        "ratios": {
            "vllm_moves_vs_bare": moves[0] / moves[1],
            "vllm_publish_vs_by_hand": publish / by_hand,
        },
        "figures": {
            "moves_per_s": dict(zip(("legos", "bare"), moves, strict=True)),
            "publish_ms": {
                "legos": 1e3 * publish,
                "by_hand": 1e3 * by_hand,
                "one_token": 1e3 * token,  # what a check of the adapter at the server takes
            },
        },
    }


class _VllmBench:
    """Measures one server."""

    def __init__(self, url: str, engine: TokenEngine, first: Adapter, folder: Path) -> None:
        self._url = url
        self._engine = engine
        self._first = first
        self._folder = folder
        self._versions, self._rounds = count(1), count()
        self._http = httpx.Client(base_url=url, timeout=60.0, trust_env=False)

    def publish(self) -> float:
        """Seconds of a publication of the trained policy."""
        adapter = random_adapter(self._first, name=POLICY, version=next(self._versions), size=0.02)
        started = time.perf_counter()
        self._engine.load_adapter(adapter)
        return time.perf_counter() - started

    def by_hand(self) -> float:
        """Seconds of writing a PEFT folder and of vLLM's answer to its load."""
        version = next(self._versions)
        adapter = random_adapter(self._first, name=POLICY, version=version, size=0.02)
        place = self._folder / f"by-hand-{version}"
        started = time.perf_counter()
        place.mkdir()
        write_peft(adapter, place)
        body = {"lora_name": place.name, "lora_path": str(place)}
        self._http.post("/v1/load_lora_adapter", json=body).raise_for_status()
        seconds = time.perf_counter() - started
        self._http.post("/v1/unload_lora_adapter", json=body).raise_for_status()
        return seconds

    def one_token(self) -> float:
        """Seconds of the answer to a request for one token of a short prompt."""
        body = self._body([tuple(range(10, 18))]) | {"max_tokens": 1}
        started = time.perf_counter()
        self._http.post("/v1/completions", json=body).raise_for_status()
        return time.perf_counter() - started

    def moves(self) -> float:
        """Moves per second through the engine, all asked at once."""
        requests = [
            Request(prompt_ids=prompt, max_tokens=MOVE, adapter=POLICY)
            for prompt in self._prompts()
        ]
        started = time.perf_counter()
        submit_all(self._engine.engine, requests).result()
        return MOVES / (time.perf_counter() - started)

    def bare_moves(self) -> float:
        """Moves per second of a client that sends as long lists to the same adapter."""
        prompts = self._prompts()
        bodies = [self._body(prompts[n : n + LISTED]) for n in range(0, MOVES, LISTED)]
        with clients(self._url) as ask:
            started = time.perf_counter()
            ask(bodies)
            return MOVES / (time.perf_counter() - started)

    def _body(self, prompts: list[tuple[int, ...]]) -> dict[str, Any]:
        listed = self._http.get("/v1/models").json()["data"]
        (model,) = (m["id"] for m in listed if m["id"].startswith(f"{POLICY}@"))
        return {
            "model": model,
            "prompt": prompts,
            "max_tokens": MOVE,
            "temperature": 1.0,
            "logprobs": 0,
            "return_token_ids": True,
            "ignore_eos": True,
        }

    def _prompts(self) -> list[tuple[int, ...]]:
        """Prompts that no prefix cache holds."""
        ids = np.random.default_rng(next(self._rounds)).integers(6, 90, size=(MOVES, PROMPT))
        return [tuple(row) for row in ids.tolist()]


@contextmanager
def _started(program: Path, folder: Path, model: ModelHandle, root: Path) -> Generator[str]:
    """Within the block, vLLM serves a model at the address."""
    assert model.lora is not None
    options = VllmOptions(
        model=folder,
        name=BUILTIN,
        dtype=model.dtype,
        context=model.context,
        rank=model.lora.rank,
        max_loras=SLOTS,
    )
    port = free_port()
    process = vllm_process(vllm_command(program, options, port=port), port=port, log=root / "log")
    with closing(process):
        process.start()
        process.wait()
        yield process.url
