"""Run folders whose checkpoint has a league of nim, or of another arena."""

from made_snapshots import adapter, take

from legos.config.resolve import read_config
from legos.league.payoffs import PayoffTable
from legos.league.pool import Pool
from legos.run.checkpoint import write_checkpoint
from legos.run.folder import RunFolder

__all__ = ["with_league"]


def usual_table() -> PayoffTable:
    """Policy@2 beats policy@0 and random, and forfeits two plays against each."""
    table = PayoffTable()
    for theirs in ("policy@0", "random"):
        account = table.account("policy@2", theirs, ["first"], ["second"])
        for play, reward in enumerate((1.0,) * 15 + (-1.0,) * 5):
            account.count(reward, -reward, ["first"] if play >= 18 else ())
    return table


def with_league(
    folder: RunFolder, *, arena: str = "nim", size: int = 8, table: PayoffTable | None = None
) -> None:
    """A checkpoint with a table, and snapshots of which policy@4 has met nobody."""
    pool, table = Pool(size), table or usual_table()
    for step in (0, 2, 4):
        take(pool, adapter(step), step)
    stored = {"pool": pool.state(), "table": table.state(), "unit": 1.0}
    named = read_config(folder.settings).arenas  # FILE.py:Class -> class
    arenas = {name.rpartition(":")[2].lower(): {"matchmaker": {}} for name in named}
    state = {"trainer": {"step": 4}, "arenas": {**arenas, arena: {"matchmaker": stored}}}
    write_checkpoint(folder.checkpoints, 4, lambda _: state, keep=1)
