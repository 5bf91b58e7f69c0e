"""``legos serve --replicas N``: several engines, each in a process of its own, at one address.

The process that listens has no model. It is a server like any other, whose engine is the pool of
the replicas (``legos serve`` on loopback), as in a run with several ``--server``.
"""

import logging
import secrets
import sys
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from legos.clients.remote import RemoteEngine
from legos.errors import EngineError
from legos.records.limits import EngineLimits
from legos.remote.process import ServerProcess
from legos.server.options import ServerOptions
from legos.stalls import Watchdog
from legos.weights.adapter import Adapter
from legos.weights.model_folder import resolve_folder
from legos.wiring.device import check_replicas
from legos.wiring.engines import engine_on
from legos.wiring.machine import blas_environment
from legos.wiring.model import model_place
from legos.wiring.replicas import Description
from legos.wiring.serving import base_of, put_on

__all__ = ["Replicated", "replicated"]

logger = logging.getLogger(__name__)

CHECK_S = 0.5  # between two checks of the processes
RETRIES = 2  # of a failed publication at one replica, which gets it later
MOST_RESTARTS = 20  # of one replica; a fault that comes back more often needs a person
DRAIN_S = 1.0  # of a replica; the process that listens has drained before


@dataclass(frozen=True, slots=True, kw_only=True)
class Replicated:
    """A model with several engines in which adapters are live; stands in for ``Loaded``."""

    name: str  # of the model
    handle: Description
    engine: RemoteEngine
    scale: float | None  # LoRA scale of the first adapter; None: there is none


@contextmanager
def replicated(
    model: str | None,
    adapters: Sequence[Adapter],
    limits: EngineLimits,
    *,
    options: ServerOptions,
    num: int,
    say: Callable[[str], object],
) -> Generator[Replicated]:
    """Within the block, several engines of a model serve adapters as one; see ``loaded``.

    A replica that ends is started again, and its requests are answered by the others.

    Args:
        model: see ``loaded``.
        adapters: see ``loaded``; if empty, the engines have the base model alone.
        limits: limits of each engine; its memory is that of all together.
        options: limits on requests.
        num: number of engines.
        say: receives progress while they start.

    Raises:
        ModelError: the model cannot be loaded, or does not fit so many times.
        AdapterError: an adapter does not fit the model.
        EngineError: a replica does not start; the message shows its log.
    """
    name = base_of(model, adapters)
    folder = resolve_folder(model_place(name))
    memory = check_replicas(folder, limits, num)
    handle = Description.of(folder)
    with ExitStack() as stack:
        logs = Path(stack.enter_context(TemporaryDirectory(prefix="legos-replicas-")))
        key = secrets.token_urlsafe()
        line = _command(name, options, memory)
        environment = {**blas_environment(num), "LEGOS_API_KEY": key}
        replicas = [_replica(line, logs / f"{i}.log", environment, say) for i in range(num)]
        for replica in replicas:
            stack.callback(replica.close)
            replica.start()
        for replica in replicas:
            replica.wait()
        urls = [replica.url for replica in replicas]
        made = engine_on(
            urls,
            api_key=key,
            retries=RETRIES,
            num_vocabulary=handle.tokenizer.vocab_size,
            context=handle.context,
        )
        engine = stack.enter_context(closing(made))
        for adapter in adapters:
            put_on(engine, adapter, name)
        check = partial(_start_again, replicas, Counter[str]())
        with Watchdog(check, name="legos-replicas", every_s=CHECK_S):
            try:
                scale = adapters[0].shape.scale if adapters else None
                yield Replicated(name=name, handle=handle, engine=engine, scale=scale)
            finally:
                for replica in replicas:  # which ends a restart, for which the check would wait
                    replica.close()


def _command(model: str, options: ServerOptions, memory: int) -> list[str]:
    """The command line of a replica, without its port."""
    return [
        *(sys.executable, "-m", "legos", "serve", "--model", model),
        *("--max-batch", str(options.max_running), "--max-queue", str(options.max_queue)),
        *("--timeout-s", str(options.request_timeout_s), "--drain-s", str(DRAIN_S)),
        *("--max-adapters", str(options.max_adapters)),
        *("--stall-after-s", str(options.stall_after_s)),
        *("--memory-limit-gib", str(memory / 2**30), "--no-keep-awake"),
    ]


def _replica(
    line: Sequence[str], log: Path, environment: dict[str, str], say: Callable[[str], object]
) -> ServerProcess:
    return ServerProcess(
        lambda port: [*line, "--port", str(port)],
        log=log,
        program="a replica",
        environment=lambda: environment,
        say=say,
    )


def _start_again(replicas: Sequence[ServerProcess], restarts: Counter[str], _: Watchdog) -> None:
    """Start the replicas again that have ended; the pool finds them by their addresses."""
    for replica in replicas:
        if replica.running or restarts[replica.url] > MOST_RESTARTS:
            continue
        restarts[replica.url] += 1
        if restarts[replica.url] > MOST_RESTARTS:
            logger.error("the replica at %s has ended too often and stays down", replica.url)
            continue
        logger.warning("the replica at %s has ended, and is started again", replica.url)
        try:
            replica.restart()
        except EngineError as error:
            logger.warning("%s", error)
