"""``legos serve --replicas N``: several engines, each in a process of its own, at one address.

The process that listens has no model. It is a server like any other, whose engine is the pool of
the replicas (``legos serve`` on loopback), as in a run with several ``--server``.
"""

import secrets
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from legos.apps.adapters import Loaded
from legos.machine import blas_environment
from legos.records.limits import EngineLimits
from legos.remote.process import ServerProcess, kept_running, serve_command
from legos.server.options import ServerOptions
from legos.weights.adapter import Adapter
from legos.weights.model_folder import resolve_folder
from legos.wiring.device import check_replicas
from legos.wiring.engines import engine_on
from legos.wiring.http import Description
from legos.wiring.model import model_place
from legos.wiring.serving import base_of, put_on

__all__ = ["replicated"]

RETRIES = 2  # of a failed publication at one replica, which gets it later
MOST_RESTARTS = 20  # of one replica; a fault that comes back more often needs a person


@contextmanager
def replicated(
    model: str | None,
    adapters: Sequence[Adapter],
    limits: EngineLimits,
    *,
    options: ServerOptions,
    num: int,
    say: Callable[[str], object],
) -> Generator[Loaded]:
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
        line = serve_command(
            name,
            {
                "max-batch": options.max_running,
                "max-queue": options.max_queue,
                "timeout-s": options.request_timeout_s,
                "max-adapters": options.max_adapters,
                "memory-limit-gib": memory / 2**30,
            },
        )
        replicas = [
            ServerProcess(
                lambda port: [*line, "--port", str(port)],
                log=logs / f"{number}.log",
                program="a replica",
                environment={**blas_environment(num), "LEGOS_API_KEY": key},
                say=say,
            )
            for number in range(num)
        ]
        for replica in replicas:
            stack.callback(replica.close)
            replica.start()
        for replica in replicas:
            replica.wait()
        urls = [replica.url for replica in replicas]
        made = engine_on(urls, api_key=key, retries=RETRIES)
        engine = stack.enter_context(closing(made))
        for adapter in adapters:
            put_on(engine, adapter, name)
        stack.enter_context(kept_running(replicas, most=MOST_RESTARTS))
        scale = adapters[0].shape.scale if adapters else None
        yield Loaded(name=name, handle=handle, engine=engine, scale=scale)
