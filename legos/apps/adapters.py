"""Models that answer with adapters, and the command that resumes a run."""

import logging
import os
import shlex
import sys
from collections.abc import Generator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from legos.clients.engine import EngineClient
from legos.device import LocalEngine, ModelHandle
from legos.records.limits import EngineLimits
from legos.records.message import Thinking
from legos.weights.adapter import Adapter
from legos.wiring.engines import TokenEngine
from legos.wiring.model import apply_lora, launched, load_model
from legos.wiring.serving import base_of, put_on

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """A model with an engine in which adapters are live."""

    name: str  # of the model
    handle: ModelHandle
    engine: LocalEngine
    scale: float  # LoRA scale of the first adapter

    def client(self, thinking: Thinking | None = None) -> EngineClient:
        """A client of the engine that renders and parses as the model does; see ``TokenEngine``."""
        return TokenEngine(self.engine, self.handle).client(thinking)


def report_loading(model: str) -> None:
    """Say on standard error that a model is loaded, which takes long, at first even a small one."""
    sys.stderr.write(f"loading {model}\n")


def resume_command(folder: Path) -> str:
    """The command line that continues a run, with what started this process of several."""
    program, (launcher, _) = ["legos"], launched()
    if launcher == "torchrun":
        here, everywhere = (os.environ[name] for name in ("LOCAL_WORLD_SIZE", "WORLD_SIZE"))
        options = ["--standalone", "--nproc-per-node", here] if here == everywhere else ["..."]
        program = ["torchrun", *options, "-m", "legos"]
    elif launcher == "mlx.launch":  # which does not tell its processes how it was called
        program = [launcher, "...", "--", "python", "-m", "legos"]
    return shlex.join(["uv", "run", *program, "train", "--resume", str(folder)])


@contextmanager
def loaded(
    model: str | None,
    adapters: Sequence[Adapter],
    limits: EngineLimits,
    *,
    thinking: Thinking | None = None,
) -> Generator[Loaded]:
    """Within the block, an engine of a model serves adapters.

    Args:
        model: a folder, a name on the hub, or the built-in model; None: the model that the
            adapters were trained on.
        adapters: adapters to load into the engine; if empty, LoRA that changes nothing.
        limits: limits of the engine.
        thinking: what prompts of chats ask for; None: the same as in the training of the first
            adapter.

    Raises:
        LegosError: the model or an adapter cannot be loaded.
    """
    name = base_of(model, adapters)
    report_loading(name)
    if thinking is None and adapters:
        thinking = adapters[0].thinking
        if len(found := {adapter.thinking or "default" for adapter in adapters}) > 1:
            logger.warning(
                "the adapters were trained with thinking %s; all prompts ask as those of %r",
                " and ".join(sorted(found)),
                adapters[0].name,
            )
    with closing(load_model(name, thinking=thinking or "default")) as handle:
        if not adapters:
            apply_lora(handle)
            adapters = [handle.base_adapter()]
        with closing(handle.make_engine(limits)) as engine:
            for adapter in adapters:
                put_on(engine, adapter, name)
            yield Loaded(name=name, handle=handle, engine=engine, scale=adapters[0].shape.scale)
