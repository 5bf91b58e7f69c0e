"""The memory that a model's checks take when it is loaded."""

from pathlib import Path

import mlx.core as mx

from legos.mlx.generate.capabilities import probe
from legos.mlx.generate.multi_lora.slots import AdapterSlots
from legos.mlx.model.forward import CausalModel
from legos.mlx.model.load import load_tree
from legos.mlx.model.lora import add_lora, lora_shape
from legos.mlx.model.machine import num_bytes, peak_bytes
from legos.mlx.train.step_gradients import StepGradients

__all__ = ["load_check_peak"]


def load_check_peak(folder: Path) -> float:
    """The peak while an engine and a trainer check a model in bfloat16, over its weights."""
    peaks: list[float] = []
    for trained in (False, True):
        tree = load_tree(folder)
        tree.set_dtype(mx.bfloat16)
        mx.eval(tree.parameters())
        weights = num_bytes(tree.parameters())
        if trained:
            add_lora(tree, lora_shape(tree, rank=8, alpha=16.0, num_layers=2, head=False), seed=0)
            peak = peak_bytes(lambda tree=tree: StepGradients(tree))
        else:
            peak = peak_bytes(lambda tree=tree: probe(CausalModel(tree), AdapterSlots(tree)))
        peaks.append(1.0 + peak / weights)
    return max(peaks)
