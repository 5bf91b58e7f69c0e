"""What legos can do with an architecture of mlx-lm: load a small random one, as runs load models.

An engine and a trainer compare what they compute with plain passes when they are made; here, no
more than that is done. ``tests/architectures`` compares more.
"""

from collections.abc import Callable
from contextlib import redirect_stdout
from io import StringIO

from legos.errors import LegosError
from legos.mlx.checks.small_models import small_model
from legos.mlx.generate.capabilities import probe
from legos.mlx.generate.multi_lora.slots import AdapterSlots
from legos.mlx.model.forward import WAY_OUT, CausalModel
from legos.mlx.model.load import REFUSED
from legos.mlx.model.lora import add_lora, lora_shape
from legos.mlx.train.step_gradients import StepGradients
from legos.records.step import BackendConfig


def try_architecture(name: str) -> dict[str, str]:
    """Serve and train a small random model of an architecture, which takes a second.

    Returns:
        ``architecture``, its name; ``trains``, ``checkpointing`` (of gradients) and ``serves``:
        "yes", "no" where legos refuses it, or "error", left out where it was not tried; and
        ``reasons``, for what is no or an error.
    """
    row = {"architecture": name}
    reasons: dict[str, None] = {}

    def tried(part: str, make: Callable[[], object]) -> bool:
        """Whether a part could be made."""
        try:
            make()
        except LegosError as error:
            row[part] = "no"
            reasons[f"{error}".removeprefix(f"{name} ").removesuffix(f"; {WAY_OUT}")] = None
        except (Exception, SystemExit) as error:  # of mlx-lm's code for it, whatever it is
            row[part] = "error"
            reasons[f"{part}: {type(error).__name__}: {error}"] = None
        else:
            row[part] = "yes"
        return row[part] == "yes"

    def trainer(*, checkpointing: bool) -> None:
        tree = small_model(name)
        add_lora(tree, lora_shape(tree, rank=2, alpha=4.0, num_layers=8, head=False), seed=0)
        config = BackendConfig(micro_batch_tokens=64, gradient_checkpointing=checkpointing)
        StepGradients(tree, config)

    def engine() -> None:
        tree = small_model(name)
        probe(CausalModel(tree), AdapterSlots(tree))

    if name in REFUSED:
        return {**row, "reasons": f"refused: {REFUSED[name]}"}
    try:
        with redirect_stdout(StringIO()):
            small_model(name)
    except (Exception, SystemExit) as error:
        reason = f"no small model can be built: {type(error).__name__}: {error}"
        return {**row, "reasons": reason}
    if tried("trains", lambda: trainer(checkpointing=False)):
        tried("checkpointing", lambda: trainer(checkpointing=True))
    tried("serves", engine)
    return {**row, "reasons": "; ".join(reasons)}
