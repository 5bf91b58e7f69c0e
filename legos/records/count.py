"""How far some work has come: the plays of a step or an evaluation, the passes of training."""

from dataclasses import dataclass


@dataclass(slots=True)
class Count:
    """How many plays, or other parts of some work, are planned, have begun and have ended."""

    planned: int = 0  # 0: not known
    begun: int = 0
    ended: int = 0
    unit: str = "plays"  # or "positions", which are computed at once, or "passes", one by one

    @property
    def text(self) -> str:
        """``64 plays``, ``37 of 64 plays, 27 running`` or ``pass 3 of 7``; empty: not known."""
        if self.unit == "passes":
            return f"pass {self.begun} of {self.planned}" if self.begun else ""
        done = f"{self.ended:,} of " if self.begun else ""
        parts = [f"{done}{self.planned:,} {self.unit}"] if self.planned else []
        running = self.begun - self.ended
        return ", ".join([*parts, f"{running:,} running"] if running else parts)
