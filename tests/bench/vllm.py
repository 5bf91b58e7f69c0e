"""The engine on a vLLM server and its publisher, against a bare client of the same server."""

import shutil
import statistics
import tempfile
import time
from collections.abc import Generator, Mapping
from contextlib import closing, contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from bench.clients import clients
from bench.rounds import Workload

from legos.bench.models import write_bench_model
from legos.bench.turns import medians
from legos.builtin import BUILTIN, builtin_path
from legos.clients.lists import LISTED
from legos.clients.submit import submit_all
from legos.device import ModelHandle
from legos.fakes.records import random_adapter
from legos.files.atomic import write_folder
from legos.records.names import POLICY
from legos.records.request import Request
from legos.remote.vllm.command import VllmOptions, vllm_command, vllm_process
from legos.weights.adapter import Adapter
from legos.weights.peft import write_peft
from legos.wiring.engines import TokenEngine
from legos.wiring.model import apply_lora, load_model
from legos.wiring.vllm import vllm_at

__all__ = ["measure_vllm"]

MOVES, PROMPT, MOVE = 256, 48, 3  # simultaneous moves, tokens of a prompt, tokens of a move
SLOTS = 6  # adapters that the server holds
LARGE, LARGE_RANK = "40m", 128  # a model and its LoRA: an adapter of 22 MB
SIZE = 0.02  # deviation of the weights of an adapter


def measure_vllm(program: Path, work: Workload) -> Mapping[str, Any]:
    """Start vLLM with the built-in model, then with one that has a larger adapter, and measure.

    By hand is what the promises of a publication need: the folder is written under another name,
    synced to the disk and renamed by ``write_folder``, and loaded. A publication also compares the
    adapter at the server with the trainer's, for which vLLM computes one step; ``first_answer`` is
    that of a request for one token by hand, which any user waits for.

    Args:
        program: the ``vllm`` program.
        work: how much to measure.

    Returns:
        ``ratios``, and ``figures``: moves per second and milliseconds of a publication, of legos
        and of a bare client.
    """
    with tempfile.TemporaryDirectory() as root:
        folder = Path(root) / BUILTIN
        shutil.copytree(builtin_path(), folder)
        with _served(program, folder, Path(root), rank=8) as bench:
            bench.publish()
            moves = medians(work.part(1 / 3).in_turn(bench.moves, bench.bare_moves, least=3))
            small = bench.publications(work.part(1 / 3))
    with tempfile.TemporaryDirectory() as root:
        folder = write_bench_model(LARGE, Path(root) / LARGE)
        with _served(program, folder, Path(root), rank=LARGE_RANK) as bench:
            large = bench.publications(work.part(1 / 3))
    return {
        "ratios": {
            "vllm_moves_vs_bare": moves[0] / moves[1],
            "vllm_publish_vs_by_hand": large["legos"] / large["by_hand"],
            "vllm_small_publish_vs_answer": small["legos"]
            / (small["by_hand"] + small["first_answer"]),
        },
        "figures": {
            "moves_per_s": dict(zip(("legos", "bare"), moves, strict=True)),
            "publish_ms": {"small": small, "large": large},
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
        self._by_hand = ""  # name of the adapter that was loaded by hand
        self._http = httpx.Client(base_url=url, timeout=60.0, trust_env=False)

    def publications(self, work: Workload) -> Mapping[str, float]:
        """Median milliseconds of a publication and of its parts by hand, and the adapter's MB."""
        rounds = work.rounds([self.publish, self.by_hand, self.first_answer], least=5)
        names = "legos", "by_hand", "first_answer"
        medians = (1e3 * statistics.median(each) for each in zip(*rounds, strict=True))
        numbers = sum(array.size for array in self._first.arrays.values())
        return {"adapter_mb": 4 * numbers / 1e6, **dict(zip(names, medians, strict=True))}

    def publish(self) -> float:
        """Seconds of a publication of the trained policy."""
        adapter = self._next()
        started = time.perf_counter()
        self._engine.engine.load_adapter(adapter).result()
        return time.perf_counter() - started

    def by_hand(self) -> float:
        """Seconds of writing and syncing a PEFT folder, and of vLLM's answer to its load."""
        adapter = self._next()
        place = self._folder / f"by-hand-{adapter.version}"
        body = {"lora_name": place.name, "lora_path": str(place)}
        started = time.perf_counter()
        write_folder(place, lambda new: write_peft(adapter, new))
        self._http.post("/v1/load_lora_adapter", json=body).raise_for_status()
        self._by_hand = place.name
        return time.perf_counter() - started

    def first_answer(self) -> float:
        """Seconds of one token of the adapter that was loaded by hand, which is then unloaded."""
        body = self._body(self._by_hand, [tuple(range(10, 18))]) | {"max_tokens": 1}
        started = time.perf_counter()
        self._http.post("/v1/completions", json=body).raise_for_status()
        seconds = time.perf_counter() - started
        unloaded = {"lora_name": self._by_hand}
        self._http.post("/v1/unload_lora_adapter", json=unloaded).raise_for_status()
        shutil.rmtree(self._folder / self._by_hand)
        return seconds

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
        listed = self._http.get("/v1/models").json()["data"]
        (model,) = (m["id"] for m in listed if m["id"].startswith(f"{POLICY}@"))
        bodies = [self._body(model, prompts[n : n + LISTED]) for n in range(0, MOVES, LISTED)]
        with clients(self._url) as ask:
            started = time.perf_counter()
            ask(bodies)
            return MOVES / (time.perf_counter() - started)

    def _next(self) -> Adapter:
        version = next(self._versions)
        return random_adapter(self._first, name=POLICY, version=version, size=SIZE)

    def _body(self, model: str, prompts: list[tuple[int, ...]]) -> dict[str, Any]:
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
def _served(program: Path, folder: Path, root: Path, *, rank: int) -> Generator[_VllmBench]:
    """Within the block, vLLM serves a model, whose adapters are published there."""
    with closing(load_model(folder)) as model:
        apply_lora(model, rank=rank)
        with (
            _started(program, folder, model, root) as url,
            closing(vllm_at([url], model, policies=(POLICY,))) as engine,
        ):
            yield _VllmBench(url, engine, model.base_adapter(), root)


@contextmanager
def _started(program: Path, folder: Path, model: ModelHandle, root: Path) -> Generator[str]:
    """Within the block, vLLM serves a model at the address."""
    assert model.lora is not None
    options = VllmOptions(
        model=folder,
        name=folder.name,
        dtype=model.dtype,
        context=model.context,
        rank=model.lora.rank,
        max_loras=SLOTS,
    )
    process = vllm_process(partial(vllm_command, program, options), log=root / "log")
    with closing(process):
        process.start()
        process.wait()
        yield process.url
