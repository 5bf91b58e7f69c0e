"""The learning rate that suits LoRA on a model, from the size of the model."""

import json
import math
from pathlib import Path
from typing import Any, NamedTuple

FULL = 5e-5  # rate of full fine-tuning at hidden size 2000
LORA = 10.0  # rate of LoRA / rate of full fine-tuning, at any rank
EXPONENTS = {"qwen": 0.0775, "llama": 0.781}  # exponent by which the rate falls with hidden size
RL = 0.1  # lowest rate of RL / rate of supervised training, because rewards are noisier than texts


class LearningRates(NamedTuple):
    """The lowest and the highest rate to try."""

    lowest: float
    highest: float

    @property
    def middle(self) -> float:
        """Their geometric mean, with two digits: the default of ``training.learning_rate``."""
        return float(f"{math.sqrt(self.lowest * self.highest):.1e}")


def learning_rates(folder: Path) -> LearningRates | None:
    """The learning rates to try for a LoRA adapter of a model.

    For supervised training, the Tinker cookbook (``hyperparam_utils``) found the rate
    ``10 * 5e-5 * (2000 / H) ** p`` with an exponent p for each model family; the factor 10 is from
    "LoRA Without Regret" (Thinking Machines 2025). Other families get the smaller rate of both.
    Recipes for reinforcement learning use a tenth of that rate or more.

    Args:
        folder: folder of the model, with its ``config.json``.

    Returns:
        The rates; None where the configuration has no hidden size.
    """
    config: dict[str, Any] = json.loads((folder / "config.json").read_text())
    config |= config.get("text_config") or {}
    hidden = config.get("hidden_size")
    if not isinstance(hidden, int) or hidden < 1:
        return None
    family = str(config.get("model_type", ""))
    known = [power for name, power in EXPONENTS.items() if family.startswith(name)]
    highest = FULL * LORA * min((2000 / hidden) ** power for power in known or EXPONENTS.values())
    return LearningRates(RL * highest, highest)
