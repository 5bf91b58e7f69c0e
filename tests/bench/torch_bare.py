"""Bare optimiser steps of torch and their peak memory, on one model."""

from collections.abc import Callable, Sequence

import torch
from bench.programs.plain_trainer import Memory
from torch import Tensor

from legos.device import ModelHandle
from legos.torch.device import TorchModel

__all__ = ["TorchBaseline"]

Split = tuple[tuple[int, ...], int]
"""Token ids, and how many of them are the prompt."""


class TorchBaseline:
    """Runs baselines on the modules and the thread of a model."""

    def __init__(self, model: ModelHandle) -> None:
        assert isinstance(model, TorchModel), "a model of the torch device"
        self._model = model
        self._memory = Memory(model.device)

    def bare_update(
        self, blocks: Sequence[Sequence[Split]], *, pad_to: int = 0
    ) -> Callable[[], None]:
        """Make a step of forward, backward and AdamW only; the loss is the mean cross-entropy.

        Args:
            blocks: rows that are computed together, padded to the longest; the head computes the
                completions only.
            pad_to: minimum padded length, tokens.
        """
        model, modules, call = self._model.causal, self._model.modules, self._model.call
        leaves = [
            part.detach().clone().requires_grad_()
            for m in modules.values()
            for part in (m.lora_a, m.lora_b)
        ]
        optimiser = torch.optim.AdamW(leaves, lr=1e-6)
        total = sum(len(tokens) - prompt for block in blocks for tokens, prompt in block)
        inputs = [_inputs(block, pad_to, model.device) for block in blocks]

        def update() -> None:
            for number, module in enumerate(modules.values()):
                module.lora_a, module.lora_b = leaves[2 * number : 2 * number + 2]
            for input_ids, rows, columns, targets in inputs:
                logits = model.head(model.hidden(input_ids)[rows, columns]).float()
                loss = torch.nn.functional.cross_entropy(logits, targets, reduction="sum")
                (loss / total).backward()
            torch.nn.utils.clip_grad_norm_(leaves, 1.0)
            optimiser.step()
            optimiser.zero_grad()
            if model.device.type == "cuda":
                torch.cuda.synchronize()

        return lambda: call(update).result()

    def peak_bytes(self, call: Callable[[], object]) -> int:
        """Run a call; returns the peak of memory in bytes, minus what was held in the beginning.

        On a CPU it is memory of the process, with what libraries keep from one call to the next.
        """
        self._memory.begin()
        call()
        return self._memory.peak_bytes()


def _inputs(
    block: Sequence[Split], pad_to: int, device: torch.device
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Token ids [R, T], and the row, column and target id of every completion token."""
    longest = max(pad_to, *(len(tokens) - 1 for tokens, _ in block))
    input_ids = [[*tokens[:-1], *[0] * (longest - len(tokens) + 1)] for tokens, _ in block]
    places = torch.tensor(
        [
            (row, column - 1, tokens[column])
            for row, (tokens, prompt) in enumerate(block)
            for column in range(prompt, len(tokens))
        ],
        device=device,
    )
    rows, columns, targets = places.unbind(1)
    return torch.tensor(input_ids, device=device), rows, columns, targets
