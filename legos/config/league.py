"""Settings of the league: which opponents a policy meets, and what is kept of its past."""

from typing import Literal

from legos.config.setting import Settings, knob


class LeagueConfig(Settings):
    """Earlier versions of the policy as opponents, and what happens when it forgets."""

    snapshot_every: int = knob(10, unit="steps", ge=1)
    """Steps from one snapshot of the policy, which its later versions meet, to the next."""
    snapshots: int = knob(8, ge=2)
    """Most snapshots of a policy at a time; the newest and the oldest stay, from three on the one
    with the highest rating, and of the others those with the most even ages. Each takes an
    adapter's memory in every engine."""
    recent: int = knob(3, ge=1)
    """Number of newest snapshots that the opponent `recent` is drawn from."""
    on_collapse: Literal["report", "stop", "rollback"] = knob("report")
    """What follows when the policy is clearly weaker than its best snapshot: an alarm alone, the
    end of the run with a checkpoint, or the weights of that snapshot for the next step."""
    collapse_elo: float = knob(100.0, unit="Elo", gt=0)
    """Fall of the rating, where chance does not explain it, that counts as a collapse."""
