"""Advice on the learning rate, from the size of a model."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["LearningRateAdvice", "advise_learning_rate"]

FULL = 5e-5  # rate of full fine-tuning at hidden size 2000
LORA = 10.0  # rate of LoRA / rate of full fine-tuning, at any rank
EXPONENTS = {"qwen": 0.0775, "llama": 0.781}  # exponent by which the rate falls with hidden size
RL = 0.1  # lowest rate of RL / rate of supervised training, because rewards are noisier than texts


@dataclass(frozen=True, slots=True)
class LearningRateAdvice:
    """A range of learning rates to try.

    Attributes:
        lowest: the rate to start with.
        highest: the rate of supervised training with LoRA.
        hidden: the model's hidden size.
    """

    lowest: float
    highest: float
    hidden: int

    def describe(self, learning_rate: float) -> str:
        """One line with the range and the configured learning rate."""
        return (
            f"learning rate {learning_rate:.3g}; for LoRA at hidden size {self.hidden} look "
            f"between {self.lowest:.1g} and {self.highest:.1g} (training.learning_rate)"
        )


def advise_learning_rate(folder: Path) -> LearningRateAdvice | None:
    """Suggest a range for the learning rate of a model's LoRA adapter.

    For supervised training, the Tinker cookbook (``hyperparam_utils``) found the rate
    ``10 * 5e-5 * (2000 / H) ** p`` with an exponent p for each model family; the factor 10 is from
    "LoRA Without Regret" (Thinking Machines 2025). Other families get the smaller rate of both.
    Recipes for reinforcement learning use a tenth of that rate or more.

    Args:
        folder: folder of the model, with its ``config.json``.

    Returns:
        The range; None where the configuration has no hidden size.
    """
    config: dict[str, Any] = json.loads((folder / "config.json").read_text())
    config |= config.get("text_config") or {}
    hidden = config.get("hidden_size")
    if not isinstance(hidden, int) or hidden < 1:
        return None
    family = str(config.get("model_type", ""))
    known = [power for name, power in EXPONENTS.items() if family.startswith(name)]
    highest = FULL * LORA * min((2000 / hidden) ** power for power in known or EXPONENTS.values())
    return LearningRateAdvice(lowest=RL * highest, highest=highest, hidden=hidden)
