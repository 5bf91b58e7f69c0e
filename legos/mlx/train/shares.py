"""Steps in whose passes the processes share that ``mlx.launch`` started; the first one orders them.

    mlx.launch -n 2 --backend ring -- python -m legos train

The first process has the policies, the optimiser and the run. It sends every step with the LoRA
arrays of its tree, so the others hold no state that could differ.
"""

import logging
import pickle
import zlib
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

from legos.errors import LegosError, ModelError, Stopped, TrainerError
from legos.losses.objective import Objective
from legos.mlx.model.faults import is_fault
from legos.mlx.model.load import load_tree
from legos.mlx.model.lora import add_lora, set_lora_arrays
from legos.mlx.train.step_gradients import StepGradients
from legos.records.packing import StepSamples
from legos.records.step import BackendConfig
from legos.weights.adapter import LoraShape
from legos.weights.model_folder import fingerprint
from legos.weights.reference import Lora

__all__ = ["Leader", "follow", "gradients_of"]

logger = logging.getLogger(__name__)
Group = mx.distributed.Group
Arrays = Mapping[str, mx.array]


class Leader:
    """The first process of a group: sends the others what they compute with it.

    All methods run on the thread that owns the module tree.

    Attributes:
        group: the processes.
    """

    def __init__(self, group: Group, folder: Path) -> None:
        """Meet the other processes.

        Raises:
            ModelError: one of them has another model.
            TrainerError: one of them has ended.
        """
        self.group = group
        self._open = True
        with self._checked():
            _check_same(folder, group)

    def begin(self, shape: LoraShape, config: BackendConfig) -> None:
        """Let the others add LoRA to their trees, and make what computes the steps.

        Raises:
            TrainerError: one of them has ended.
        """
        with self._checked():
            _tell(self.group, ("begin", shape, _settings(config)))

    @contextmanager
    def step(
        self,
        samples: StepSamples,
        objective: Objective,
        lora: Arrays,
        *,
        ema: Arrays,
        reference: Lora | None,
    ) -> Generator[None]:
        """Within the block, the others compute their part of a step.

        Args:
            samples: the samples of the step, and their weights.
            objective: what is minimised.
            lora: LoRA arrays of the policy.
            ema: LoRA arrays of its EMA.
            reference: LoRA of the reference; None: the base model.

        Raises:
            TrainerError: one of them has ended.
        """
        others = (_to_numpy(ema if objective.ema_kl_coef else {}), _to_numpy(reference))
        with self._checked():
            _tell(self.group, ("step", _to_numpy(lora), samples, objective, *others))
            yield

    def end(self) -> None:
        """Let the other processes end, unless they have."""
        if self._open:
            self._open = False
            try:
                _tell(self.group, None)
            except RuntimeError as error:
                logger.info("the other processes have ended already: %s", error)

    @contextmanager
    def _checked(self) -> Generator[None]:
        """Within the block, an error means that the processes no longer agree on what is next."""
        try:
            yield
        except LegosError:
            self._open = False
            raise
        except RuntimeError as error:  # of MLX: the connection to another process is lost
            self._open = False
            if is_fault(error):
                raise
            raise TrainerError(
                f"another process has ended ({error}); look at its messages, and resume the run "
                "with mlx.launch"
            ) from error


def gradients_of(tree: Any, config: BackendConfig, group: Group | None) -> StepGradients:
    """What computes the steps of a tree with LoRA, alone or with the other processes of a group.

    Raises:
        TrainerError: the model cannot be trained.
    """
    return StepGradients(tree, **_settings(config), group=group, report=config.report)


def follow(folder: Path, group: Group) -> None:
    """Compute with the first process what it orders, until its run ends.

    Args:
        folder: the model.
        group: the processes.

    Raises:
        ModelError: the model is not found, or the first process has another one.
        TrainerError: the first process has ended without a word.
    """
    try:
        _check_same(folder, group)
        tree = load_tree(folder)
        logger.info("process %d of %d computes with process 0", group.rank(), group.size())
        gradients: StepGradients | None = None
        while (order := _told(group)) is not None:
            if order[0] == "begin":
                _, shape, settings = order
                add_lora(tree, shape, seed=0)
                gradients = StepGradients(tree, **settings, group=group, report=logger.info)
            else:
                _, lora, samples, objective, ema, reference = order
                assert gradients is not None, "the first process begins before it orders a step"
                set_lora_arrays(tree, _to_mlx(lora))
                with suppress(Stopped):
                    gradients.of_step(
                        samples, objective, _to_mlx(ema), reference=_to_mlx(reference)
                    )
    except RuntimeError as error:
        if isinstance(error, LegosError) or is_fault(error):
            raise
        raise TrainerError(f"the first process has ended without a word: {error}") from error


def _settings(config: BackendConfig) -> dict[str, Any]:
    """The settings with which all processes compute."""
    return {
        "max_tokens": config.micro_batch_tokens,
        "checkpointing": config.gradient_checkpointing,
        "ceiling_bytes": config.memory_limit_bytes,
    }


def _check_same(folder: Path, group: Group) -> None:
    """Compare the model folders of all processes; each of them must call this.

    Raises:
        ModelError: this process or another one has another model than the first.
    """
    own = zlib.crc32(repr(fingerprint(folder)).encode())
    found = np.array(mx.distributed.all_gather(mx.array([own], mx.uint32), group=group))
    different = np.flatnonzero(found != found[0]).tolist()
    if different:
        raise ModelError(
            f"processes {different} of {group.size()} have another model than process 0 (here: "
            f"{folder}); give all processes the same --model and the same files"
        )


def _tell(group: Group, order: tuple[Any, ...] | None) -> None:
    """Send an order to the other processes; None: the run has ended."""
    sent = np.frombuffer(pickle.dumps(order), np.uint8)
    mx.eval(mx.distributed.all_sum(mx.array(len(sent)), group=group))
    mx.eval(mx.distributed.all_sum(mx.array(sent), group=group))


def _told(group: Group) -> tuple[Any, ...] | None:
    """Wait for the next order of the first process."""
    length = int(np.array(mx.distributed.all_sum(mx.array(0), group=group)))
    sent = np.array(mx.distributed.all_sum(mx.zeros(length, mx.uint8), group=group))
    return pickle.loads(sent.tobytes())  # from a process that the same user launched


def _to_numpy(tree: Any) -> Any:
    """Arrays, or the LoRA of a reference, as what can be sent."""
    return _converted(tree, np.array)


def _to_mlx(tree: Any) -> Any:
    """The same as arrays of MLX."""
    return _converted(tree, mx.array)


def _converted(tree: Any, convert: Any) -> Any:
    if isinstance(tree, Lora):
        return Lora(arrays=_converted(tree.arrays, convert), scale=tree.scale)
    return None if tree is None else {name: convert(array) for name, array in tree.items()}
