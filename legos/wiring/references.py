"""Make the servers that compute reference log-probabilities, and compare them with the trainer."""

from contextlib import ExitStack

from legos.config.objective import ObjectiveSettings
from legos.device import ModelHandle
from legos.remote.engine import RemoteEngine
from legos.remote.legos_server import LegosServer
from legos.remote.references import ReferenceServers
from legos.wiring.same_model import check_same_model

__all__ = ["reference_servers"]

PATIENCE_S = 180.0  # maximum time of one answer


def reference_servers(
    config: ObjectiveSettings, model: ModelHandle, *, api_key: str | None
) -> ReferenceServers | None:
    """The servers of ``kl_server``; None: it is empty.

    Args:
        config: settings of training.
        model: the trainer's model with LoRA.
        api_key: API key of the servers.

    Raises:
        ModelError: a server is not `legos serve`, or has another model or vocabulary.
        EngineError: a server does not answer.
    """
    urls = config.kl_server
    if not urls:
        return None
    servers = [LegosServer(url, api_key=api_key, timeout_s=PATIENCE_S) for url in urls]
    engine = RemoteEngine(servers, None)
    with ExitStack() as stack:
        stack.callback(engine.close)
        check_same_model(engine, model, where="training.kl_server")
        stack.pop_all()
    return ReferenceServers(engine, num_vocabulary=model.num_vocabulary)
