"""A learning rate to start from, from the size of a model."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["LearningRateAdvice", "advise_learning_rate"]

FULL = 5e-5  # of all weights at hidden size 2000
LORA = 10.0  # LoRA learns at ten times the rate, whatever its rank
EXPONENTS = {"qwen": 0.0775, "llama": 0.781}  # how fast the rate falls with the hidden size
RL = 0.1  # rewards are noisier than texts; recipes stand a tenth and more below supervised ones


@dataclass(frozen=True, slots=True)
class LearningRateAdvice:
    """A range to look in.

    Attributes:
        lowest: where to start.
        highest: what supervised training with LoRA would take.
        hidden: the model's hidden size.
    """

    lowest: float
    highest: float
    hidden: int

    def describe(self, learning_rate: float) -> str:
        """One line, beside the rate that is set."""
        return (
            f"learning rate {learning_rate:.3g}; for LoRA at hidden size {self.hidden} look "
            f"between {self.lowest:.1g} and {self.highest:.1g} (training.learning_rate)"
        )


def advise_learning_rate(folder: Path) -> LearningRateAdvice | None:
    """Where to look for the learning rate of a model's LoRA adapter.

    ``10 * 5e-5 * (2000 / H) ** p`` with p of the model's family is what the Tinker cookbook found
    for supervised training (its ``hyperparam_utils``; the factor 10 is that of "LoRA Without
    Regret", Thinking Machines 2025); other families get the smaller of both. Recipes for
    reinforcement learning stand at a tenth of that and above.

    Args:
        folder: the model's, with its ``config.json``.

    Returns:
        None where the configuration tells no hidden size.
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
