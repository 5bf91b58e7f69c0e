"""The torch trainer and vLLM, against a plain loop and a bare client.

The same command measures on a CPU, where the ratios count, and on a GPU, where a larger model also
gives tokens per second, MFU and peak memory.

    uv run python tests/bench/cuda.py --json
"""

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parents[1])  # the folder of the package bench

import statistics
import tempfile
from collections.abc import Mapping
from typing import Any

from bench.command import Compared, Ratio, run
from bench.plain_loop import PlainLoop
from bench.rounds import Workload
from bench.train_bench import random_rows, train_bench
from bench.vllm import measure_vllm
from model_files import ModelShape

from legos.errors import ConfigError, EngineError
from legos.machine import share_cores
from legos.remote.vllm.command import find_vllm
from legos.wiring.device import torch_device

__all__ = ["RATIOS", "bench_cuda"]

RATIOS: Mapping[str, Ratio] = {
    "torch_vs_plain": Ratio(
        "speed of torch's step against a plain loop of transformers and PEFT, padded rows", 1.3
    ),
    "torch_memory_vs_plain": Ratio(
        "peak memory of that step, against it, each in a process of its own", 0.6, at_most=True
    ),
    "loss_path_vs_bare": Ratio(
        "time of a step on rows of one length, against forward, backward and AdamW alone",
        1.05,
        at_most=True,
    ),
    "vllm_moves_vs_bare": Ratio(
        "moves per second through a vLLM server, against a client that sends as long lists", 0.7
    ),
    "vllm_publish_vs_by_hand": Ratio(
        "time to publish an adapter of 22 MB to vLLM, against writing, syncing and loading its "
        "folder",
        2,
        at_most=True,
    ),
    "vllm_small_publish_vs_answer": Ratio(
        "the same with an adapter of 0.1 MB, against that and the answer to a first request",
        2,
        at_most=True,
    ),
}
"""Name of each ratio -> its meaning and target."""

SHAPE = ModelShape(  # a head of a tenth of the parameters, as in models of a billion
    hidden=256, layers=6, heads=4, kv_heads=4, head_dim=64, intermediate=704, vocab=2_048
)
ROWS, LENGTH = 8, 257  # rows of the loss path's step, and tokens of each
ROUNDS = 15
SERVED = "vllm_moves_vs_bare", "vllm_publish_vs_by_hand", "vllm_small_publish_vs_answer"
NO_PLAIN = "give --peer the Python of an environment with torch, transformers and peft"


def bench_cuda(work: Compared) -> Mapping[str, Any]:
    """Run every comparison.

    Returns:
        ``ratios``, with the reasons of missing ones, and the figures behind them; ``gpu`` says
        "not run" without a GPU.

    Raises:
        ModelError: torch is not installed.
    """
    facts = torch_device().facts()
    share_cores(2)
    ratios: dict[str, float | None] = dict.fromkeys(("torch_vs_plain", "torch_memory_vs_plain"))
    missing: dict[str, str] = {}
    figures: dict[str, Any] = {"gpu": "not run: torch finds no CUDA device"}
    with tempfile.TemporaryDirectory() as root:
        if work.peers:
            loop = PlainLoop(Path(root) / "plain", facts, work.part(1 / 3))
            figures |= loop.measured(work.peers[0])
            ratios |= figures.pop("ratios")
        else:
            missing |= dict.fromkeys(ratios, NO_PLAIN)
        ratios["loss_path_vs_bare"] = _loss_path(Path(root) / "bare", work.part(1 / 3))
    try:
        served = measure_vllm(find_vllm(work.vllm), work.part(1 / 3))
    except (ConfigError, EngineError) as error:
        ratios |= dict.fromkeys(SERVED)
        missing |= dict.fromkeys(SERVED, f"not run: {error}")
    else:
        ratios |= served["ratios"]
        figures["vllm"] = served["figures"]
    return {**facts, **figures, "ratios": ratios, "not_measured": missing}


def _loss_path(folder: Path, work: Workload) -> float:
    """Time of a step on rows of one length, against forward, backward and AdamW on them."""
    rows = random_rows(ROWS, LENGTH, LENGTH, prompt=0.5)
    bench = train_bench(folder, SHAPE, device="torch", micro_batch_tokens=ROWS * LENGTH)
    pairs = work.in_turn(lambda: bench.step(rows), lambda: bench.bare([rows]), most=ROUNDS)
    return statistics.median(ours.seconds / bare.seconds for ours, bare in pairs)


if __name__ == "__main__":
    run(bench_cuda, RATIOS)
