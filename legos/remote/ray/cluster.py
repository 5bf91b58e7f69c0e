"""Connect to a Ray cluster, check its nodes, and start actors there."""

import os
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any
from uuid import uuid4

from legos.errors import ConfigError, EngineError
from legos.remote.ray.kit import check_kit, kit_digest
from legos.remote.ray.library import RayError, RayTaskError, cause_of, first_line, ray

PROBE_S = 10.0  # how long a host may take to accept a connection
ANSWER_S = 120.0  # how long a node may take to start a process and answer
START_S = 900.0  # how long an actor may take to load what it needs
AT_ONCE = 10_000  # simultaneous calls of one actor, most of which wait


def connect(address: str) -> bool:
    """Connect this process to a cluster, unless it is connected already.

    Args:
        address: ``local`` starts a cluster of this machine alone, which ends with this process;
            ``auto`` takes the one that runs on this machine or that ``RAY_ADDRESS`` names;
            otherwise ``HOST:PORT`` of a cluster.

    Returns:
        Whether this call made the connection, so that the caller closes it (``disconnect``).

    Raises:
        ConfigError: it is no address.
        EngineError: nothing answers there.
    """
    if ray.is_initialized():
        return False
    local = address == "local"
    host, _, port = address.rpartition(":")
    probed = not local and address != "auto"
    if probed and (not host or not port.isdecimal() or "//" in host):
        raise ConfigError(f"ray is {address!r}; expected local, auto, or HOST:PORT of a cluster")
    try:
        if probed:  # because Ray tries for minutes at an address where nothing listens
            socket.create_connection((host, int(port)), timeout=PROBE_S).close()
        if local:
            os.environ.setdefault("RAY_worker_niceness", "0")  # engines are as urgent as training
        ray.init(
            address=address,
            include_dashboard=False if local else None,
            log_to_driver=False,
            logging_level="ERROR",
        )
    except Exception as error:  # Ray raises bare ones too
        with suppress(Exception):  # what was begun before the error
            ray.shutdown()
        reason = (isinstance(error, OSError) and error.strerror) or first_line(error)
        if local:
            raise EngineError(
                f"Ray did not start on this machine ({reason[:200]}); try again when it is less "
                "busy, or leave --ray out"
            ) from error
        raise EngineError(
            f"no Ray cluster answers at {address!r} ({reason[:200]}); start one with "
            "`ray start --head`, give the address that it prints, or use --ray local"
        ) from error
    return True


def disconnect() -> None:
    """Close the connection; a cluster of this process, and all processes of the run, end."""
    ray.shutdown()


def check_nodes() -> int:
    """Check that every node has this version of legos; returns the number of nodes.

    Raises:
        ConfigError: a node has another version, or none.
        EngineError: a node does not answer.
    """
    task = ray.remote(num_cpus=0, max_retries=0)(check_kit)
    affinity = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
    expected = kit_digest()
    asked: Mapping[Any, str] = {
        task.options(scheduling_strategy=affinity(node["NodeID"], soft=False)).remote(
            expected
        ): node["NodeManagerAddress"]
        for node in ray.nodes()
        if node["Alive"]
    }
    ready, late = ray.wait(list(asked), num_returns=len(asked), timeout=ANSWER_S)
    if late:
        raise EngineError(
            f"node {asked[late[0]]} did not start a process in {ANSWER_S:.0f} s; look at its Ray "
            "logs, or take it out of the cluster"
        )
    for reference in ready:
        try:
            ray.get(reference)
        except RayTaskError as error:
            cause = cause_of(error)
            if isinstance(cause, ConfigError):
                raise cause from None
            raise ConfigError(
                f"node {asked[reference]} cannot run legos: {first_line(cause)[:200]}; install the "
                "same version of legos on every node"
            ) from error
    return len(asked)


def started(
    kind: type, num: int, *arguments: Any, use_gpus: bool = False
) -> list[tuple[str, Any, Any]]:
    """Start actors on the nodes in turn, and wait until each has prepared itself.

    Ray starts an actor again when its process or its node has died.

    Args:
        kind: class of the actors, whose ``prepare`` loads what they need; its constructor takes
            ``kit_digest`` of this process first.
        num: number of actors.
        arguments: further arguments of the constructor.
        use_gpus: whether each gets a GPU of its own, where the cluster has any.

    Returns:
        The name of each in the cluster, the actor, and what its ``prepare`` has returned.

    Raises:
        ConfigError: the cluster has fewer GPUs.
        LegosError: what an actor raised while it prepared itself.
        EngineError: an actor does not start in time.
    """
    gpus = int(ray.cluster_resources().get("GPU", 0)) if use_gpus else 0
    if 0 < gpus < num:
        raise ConfigError(
            f"{num} engines take a GPU each, and the cluster has {gpus}; give --engines {gpus} or "
            "fewer"
        )
    options = {
        "num_cpus": 0,
        "num_gpus": min(gpus, 1),
        "max_restarts": -1,  # without a limit
        "max_concurrency": AT_ONCE,
        "scheduling_strategy": "SPREAD",
    }
    names = [f"legos-{kind.__name__}-{uuid4().hex}" for _ in range(num)]
    actors = [
        ray.remote(kind).options(name=name, **options).remote(kit_digest(), *arguments)
        for name in names
    ]
    try:
        prepared = ray.get([actor.prepare.remote() for actor in actors], timeout=START_S)
    except RayError as error:
        end(actors)
        if isinstance(error, RayTaskError):
            raise cause_of(error) from None
        raise EngineError(f"the cluster starts no {kind.__name__}: {error}") from error
    return list(zip(names, actors, prepared, strict=True))


def end(actors: Sequence[Any]) -> None:
    """End actors for good, with what they have started."""
    if ray.is_initialized():
        for actor in actors:
            ray.kill(actor)
