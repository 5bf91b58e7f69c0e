"""How many logit positions the output head computes at once, by device and memory."""

from typing import Any

import mlx.core as mx
import pytest

from legos.fakes import make_sample
from legos.losses.objective import Objective
from legos.mlx.checks.small_models import small_model
from legos.mlx.model import forecast
from legos.mlx.model.forecast import chunk_positions
from legos.mlx.model.lora import add_lora, lora_shape
from legos.mlx.model.machine import peak_bytes
from legos.mlx.train.step_gradients import StepGradients
from legos.records.packing import StepSamples
from legos.records.step import BackendConfig


@pytest.mark.parametrize(
    ("usable_gib", "positions"), [(4, 64), (16, 73), (43.2, 198), (86.4, 397), (1000, 441)]
)
def test_chunks_of_the_head_follow_device_and_memory(
    monkeypatch: pytest.MonkeyPatch, usable_gib: float, positions: int
) -> None:
    """On a GPU, their copies take a 64th of the memory; a pass reads the head once for each."""
    ceiling = int(usable_gib * 2**30)
    assert chunk_positions(152_000, ceiling) == 64  # a CPU, whatever its memory
    assert chunk_positions(358, ceiling) == (1 << 21) // 358
    monkeypatch.setattr(forecast, "on_gpu", lambda: True)
    assert chunk_positions(152_000, ceiling) == positions
    copies = 6 * 4 * 152_000 * positions  # KEPT, in float32
    assert positions == 64 or copies <= ceiling / 64


@pytest.mark.slow
def test_a_gpu_reads_the_head_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted on a CPU that takes itself for one: calls of the head in a pass of 200 positions."""
    tree = small_model("llama", vocab_size=65_536)
    add_lora(tree, lora_shape(tree, rank=2, alpha=4.0, num_layers=2, head=False), seed=0)
    samples = [
        make_sample(tuple(range(first, first + 51)), positions=range(1, 51))
        for first in (1, 60, 120, 180)
    ]
    calls: list[int] = []
    for gpu in (False, True):
        monkeypatch.setattr(forecast, "on_gpu", lambda gpu=gpu: gpu)
        steps = StepGradients(
            tree, BackendConfig(micro_batch_tokens=1000, memory_limit_bytes=20 << 30)
        )
        head, sizes = steps._runner.forward.head, list[int]()

        def counted(hidden: mx.array, head: Any = head, sizes: list[int] = sizes) -> mx.array:
            sizes.append(len(hidden))
            return head(hidden)

        monkeypatch.setattr(steps._runner.forward, "head", counted)
        steps.of_step(StepSamples(samples=samples, weights=[1.0] * 4), Objective(), {})
        assert sum(sizes) == 200
        calls.append(len(sizes))
    assert calls == [4, 1]


def test_more_chunks_take_no_more_memory_where_the_trunk_gives_logits() -> None:
    """The backward pass makes one array of all logits, and not one for each chunk."""
    tree = small_model("internlm2", vocab_size=4096)
    add_lora(tree, lora_shape(tree, rank=2, alpha=4.0, num_layers=2, head=False), seed=0)
    sample = make_sample([1, 2, 3, 4, 5] * 40, positions=range(1, 200))
    step = StepSamples(samples=[sample], weights=[1.0])
    peaks: list[int] = []
    for positions in (50, 10):
        steps = StepGradients(tree, max_places=positions)
        peaks.append(peak_bytes(lambda steps=steps: steps.of_step(step, Objective(), {})))
    assert peaks[1] < 1.5 * peaks[0]  # an array for each chunk would make it several times
