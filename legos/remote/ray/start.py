"""Start engines and players on a cluster; Ray starts again those that die."""

from collections.abc import Callable, Sequence
from typing import Any
from uuid import uuid4

from legos.arena.arena import Arena
from legos.errors import EngineError
from legos.remote.ray.cluster import SPREAD
from legos.remote.ray.engine_actor import EngineActor, MakeActorEngine
from legos.remote.ray.kit import kit_digest
from legos.remote.ray.library import RayError, RayTaskError, cause_of, ray
from legos.remote.ray.player import PlayerActor

__all__ = ["engines_named", "start_engines", "start_players"]

START_S = 600.0  # how long loading a model may take
AT_ONCE = 10_000  # simultaneous calls of one actor, most of which wait
_FOREVER = -1  # Ray starts a dead process again without a limit


def start_engines(make: MakeActorEngine, num: int) -> dict[str, Any]:
    """Start engines, on the nodes in turn; each takes a GPU where the cluster has them.

    Args:
        make: makes an engine on its node.
        num: number of engines.

    Returns:
        Name -> Ray actor of ``EngineActor``, which serves nobody yet and ends when it is forgotten.

    Raises:
        LegosError: an engine cannot be made on its node, or does not start in time.
    """
    gpus = 1 if ray.cluster_resources().get("GPU", 0) >= num else 0
    kind = ray.remote(
        num_cpus=0,
        num_gpus=gpus,
        max_restarts=_FOREVER,
        max_concurrency=AT_ONCE,
        scheduling_strategy=SPREAD,
    )(EngineActor)
    names = [f"legos-engine-{uuid4().hex}" for _ in range(num)]
    made = {name: kind.options(name=name).remote(make, kit=kit_digest()) for name in names}
    _prepared([*made.values()], "engine")
    return made


def engines_named(names: Sequence[str]) -> dict[str, Any]:
    """Name -> Ray actor of engines that another process of the run has started."""
    return {name: ray.get_actor(name) for name in names}


def start_players(make: Callable[[], Arena], num: int, *, concurrency: int) -> list[Any]:
    """Start players, on the nodes in turn.

    Args:
        make: makes the arena with its client on its node.
        num: number of players.
        concurrency: maximum number of simultaneous plays of each.

    Returns:
        [num] Ray actors of ``PlayerActor``.

    Raises:
        LegosError: the arena cannot be made on a node, or a player does not start in time.
    """
    kind = ray.remote(PlayerActor).options(
        num_cpus=0,
        max_restarts=_FOREVER,
        max_concurrency=AT_ONCE,
        scheduling_strategy=SPREAD,
    )
    made = [kind.remote(make, concurrency=concurrency, kit=kit_digest()) for _ in range(num)]
    return _prepared(made, "player")


def _prepared(actors: list[Any], what: str) -> list[Any]:
    """Wait until all are ready; end them if one is not."""
    try:
        ray.get([actor.prepare.remote() for actor in actors], timeout=START_S)
    except RayError as error:
        for actor in actors:
            ray.kill(actor)
        if isinstance(error, RayTaskError):
            raise cause_of(error) from None
        raise EngineError(f"the cluster starts no {what}: {error}") from error
    return actors
