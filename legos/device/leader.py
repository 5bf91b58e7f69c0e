"""A step that several processes compute: the first one orders it, and the others compute with it.

The first process has the policies, the optimiser and the run. It sends every step with the LoRA
arrays that are installed, so the others hold no state that could differ. All processes compute the
same orders in the same sequence.
"""

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol, TypeVar

from legos.device.gradients import Arrays, DeviceGradients, Others
from legos.errors import LegosError, ModelError, Stopped
from legos.losses.objective import Objective
from legos.records.packing import StepSamples
from legos.weights.base import fingerprint_of

T = TypeVar("T")
END = "end"
Order = tuple[Any, ...]
"""Name of what is computed, and its arguments."""


class Group(Protocol):
    """Processes that a launcher started together."""

    rank: int  # index of this process, from 0
    size: int  # number of processes

    def send(self, order: Order) -> None:
        """Send an order of the first process to all others."""

    def receive(self) -> Order:
        """Wait for the next order of the first process."""

    def gathered(self, value: Any) -> list[Any]:
        """The values of all processes, in the order of their ranks."""

    def failed(self, error: Exception) -> Exception:
        """What to raise after a computation, after which the processes no longer agree."""


class Leader:
    """The first process of a group, which sends the others what they compute with it.

    Attributes:
        group: the processes; None: this one is alone.
    """

    def __init__(self, group: Group | None) -> None:
        self.group = group
        self._agreed = True

    def together(self, compute: Callable[[], T], *order: Any) -> T:
        """Compute something while the others, if there are any, compute what is ordered.

        Raises:
            TrainerError: a computation failed here, or another process has ended.
        """
        if self.group is None:
            return compute()
        try:
            with _explained(self.group):
                self.group.send(order)
                return compute()
        except Stopped:  # in all processes
            raise
        except Exception:
            self._agreed = False
            raise

    def end(self) -> None:
        """Let the other processes end, unless a computation has failed."""
        if self.group is not None and self._agreed:
            self._agreed = False
            with suppress(LegosError, RuntimeError):  # they have ended already
                self.group.send((END,))


def check_same(folder: Path, group: Group) -> None:
    """Compare the model folders of all processes; each of them must call this.

    Raises:
        ModelError: they differ; the message names a process.
    """
    with _explained(group):
        found = group.gathered((f"{folder}", fingerprint_of(folder)))
    for rank, (other, files) in enumerate(found):
        if files != found[0][1]:
            raise ModelError(
                f"process {rank} of {group.size} has another model in {other} than process 0 in "
                f"{found[0][0]}; give all processes the same --model and the same files"
            )


def follow(
    group: Group,
    make: Callable[..., DeviceGradients],
    **orders: Callable[..., object],
) -> None:
    """Compute with the first process what it orders, until its run ends.

    Args:
        group: the processes.
        make: makes what computes this process's part of a step, from what "begin" brings.
        orders: further orders of the device.

    Raises:
        TrainerError: a computation failed, or the first process has ended without a word.
    """
    device: Any = None

    def begin(*given: Any) -> None:
        nonlocal device
        device = make(*given)

    def on_device(arrays: Arrays) -> Arrays:
        return {name: device.array(array) for name, array in arrays.items()}

    def of_step(arrays: Arrays, step: StepSamples, objective: Objective, others: Others) -> None:
        device.install(on_device(arrays))
        here = {name: lora and lora.converted(on_device) for name, lora in others.items()}
        device.of_step(step, objective, here)

    known: Mapping[str, Callable[..., object]] = {"begin": begin, "of_step": of_step, **orders}
    with _explained(group):
        while (order := group.receive())[0] != END:
            with suppress(Stopped):
                known[order[0]](*order[1:])


@contextmanager
def _explained(group: Group) -> Generator[None]:
    """Within the block, an error means that the processes no longer agree on what is next."""
    try:
        yield
    except Stopped:  # in all of them
        raise
    except Exception as error:
        found = group.failed(error)
        if found is error:
            raise
        raise found from error
