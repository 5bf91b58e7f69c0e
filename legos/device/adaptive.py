"""A limit that is halved after a fault of the device, and doubled again after a while without."""


class AdaptiveLimit:
    """A limit on what is computed at once.

    A fault may pass (the display interrupts a computation, another program takes memory), so the
    limit rises again. Where it does not, one computation in ``recovery`` is made twice.

    Attributes:
        full: the limit without faults.
        value: the limit now.
    """

    def __init__(self, full: int, *, least: int = 1, recovery: int) -> None:
        """Start with the full limit.

        Args:
            full: the limit without faults.
            least: faults do not halve it below this.
            recovery: computations without a fault after which it is doubled.
        """
        self.full = self.value = full
        self._least = min(least, full)
        self._recovery = recovery
        self._sound = 0  # computations since it was halved or doubled

    def fault(self) -> None:
        """Halve it."""
        self.value, self._sound = max(self.value // 2, self._least), 0

    def success(self) -> None:
        """Count a computation without a fault."""
        self._sound += 1
        if self._sound >= self._recovery:
            self.value, self._sound = min(2 * self.value, self.full), 0
