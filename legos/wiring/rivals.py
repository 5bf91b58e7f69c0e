"""Count the adapters of opponents, for which an engine elsewhere must have room."""

from legos.config.schema import RunConfig
from legos.league.matchmaker import EXPLOITER, EXPLOITERS, with_adapters
from legos.loop.snapshots import LEAD
from legos.run.find import find_adapter
from legos.weights.folder import read_adapter
from legos.wiring.arena import policies_of


def rivals_of(config: RunConfig) -> int:
    """Most adapters of opponents that are live at the same time, as a rule.

    Those of the pool, the ones that have just left it, and those that the settings name.
    """
    league, named, pools = config.league, set[tuple[str, str]](), 0
    patience = config.training.staleness_limit + LEAD
    for name, one in config.arenas.items():
        if not (shares := {**one.play.opponents, **one.play.opponents_end}):
            continue
        policies = {*policies_of({name: one})} - {EXPLOITER}
        pools += len(policies) + (EXPLOITERS in shares)
        named |= {(who, policy) for who in with_adapters(shares) for policy in policies}
    return pools * (league.snapshots + patience // league.snapshot_every + 2) + len(named)


def rank_of_rivals(config: RunConfig) -> int:
    """The largest LoRA rank of the adapters that the settings name as opponents; 0: they name none.

    Raises:
        AdapterError: an adapter is damaged.
    """
    plays = [one.play for one in config.arenas.values()]
    named = {who for play in plays for who in {**play.opponents, **play.opponents_end}}
    ranks = (read_adapter(find_adapter(who)).shape.rank for who in with_adapters(named))
    return max(ranks, default=0)
