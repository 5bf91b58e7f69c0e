"""How long a thread has worked on the same call, which tells a hang from work."""

__all__ = ["TurnWatch"]


class TurnWatch:
    """Counts consecutive checks that find a thread in the same turn.

    Only checks count as time, and they run only while this process runs: after an hour in which a
    process was stopped, or a laptop slept, one check more is counted.

    Attributes:
        longest: largest count so far of a turn that has ended.
    """

    def __init__(self) -> None:
        self.longest = 0
        self._turn: int | None = None
        self._checks = 0

    def check(self, turn: int | None) -> int:
        """Number of checks, without the first, that found this turn; 0 while the thread is idle.

        Args:
            turn: number of the call that runs now; None: the thread is idle.
        """
        if turn is not None and turn == self._turn:
            self._checks += 1
        else:
            self.longest = max(self.longest, self._checks)
            self._turn, self._checks = turn, 0
        return self._checks
