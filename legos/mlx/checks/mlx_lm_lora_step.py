"""The GRPO step of mlx-lm-lora on given completions, where that package is installed."""

import importlib
import importlib.util
from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optim

from legos.mlx.checks.bare_training import Split, summed

__all__ = ["is_installed", "make_mlx_lm_lora_step", "mlx_lm_lora_gradients"]


def is_installed() -> bool:
    """Whether mlx-lm-lora can be imported."""
    return importlib.util.find_spec("mlx_lm_lora") is not None


def make_mlx_lm_lora_step(
    model: nn.Module, blocks: Sequence[Sequence[Split]]
) -> Callable[[], None]:
    """Make a function that does one optimiser step with mlx-lm-lora's loss, without a KL term.

    The other work of its trainer (rewards, checks for infinities, reports) is left out.

    Args:
        model: the module tree with LoRA.
        blocks: micro-batches of rows that are computed together.
    """
    optimiser = optim.AdamW(learning_rate=1e-6)

    def update() -> None:
        gradients = summed(
            mlx_lm_lora_gradients(model, block, [1.0 - 2.0 * (n % 2) for n in range(len(block))])
            for block in blocks
        )
        optimiser.update(model, gradients)
        mx.eval(model.trainable_parameters(), optimiser.state)

    return update


def mlx_lm_lora_gradients(model: nn.Module, block: Sequence[Split], advantages: list[float]) -> Any:
    """Gradients of mlx-lm-lora's GRPO loss for completions sampled from the current policy.

    Args:
        model: the module tree with LoRA.
        block: rows that are computed together.
        advantages: advantage of each row.

    Returns:
        The tree of gradients of the mean loss over completion tokens.
    """
    trainer = importlib.import_module("mlx_lm_lora.trainer.grpo_trainer")
    _, gradients = nn.value_and_grad(model, trainer.grpo_loss)(
        model,
        ref_model=None,
        batch=([list(tokens[:prompt]) for tokens, prompt in block], None, None, None, None),
        completions=[mx.array(tokens[prompt:]) for tokens, prompt in block],
        completion_texts=[""] * len(block),
        batch_indices=list(range(len(block))),
        advantages=mx.array(advantages),
        beta=0.0,
        epsilon=0.2,
        grpo_loss_type="bnpo",
    )
    return gradients
