"""Make the servers that compute reference log-probabilities, and compare them with the trainer."""

import logging
from collections.abc import Sequence
from contextlib import ExitStack

import httpx

from legos.clients.answers import scores_of
from legos.clients.transport import api_root
from legos.config.objective import ObjectiveSettings
from legos.device import ModelHandle
from legos.errors import ModelError, RequestError
from legos.records.message import Message
from legos.records.names import BASE
from legos.remote.engine import RemoteEngine
from legos.remote.legos_server import LegosServer
from legos.remote.references import ReferenceServers
from legos.wiring.same_model import check_same_model

__all__ = ["reference_servers"]

logger = logging.getLogger(__name__)
TEXTS = ("It's 3.14, isn't it?", "def f(x):\n    return 2 * x", "été 漢字 🙂")
TOLERANCE = 0.01  # nats, between a text that the server and that the trainer turned into tokens
PATIENCE_S = 180.0  # maximum time of one answer


def reference_servers(
    config: ObjectiveSettings, model: ModelHandle, *, api_key: str | None
) -> ReferenceServers | None:
    """The servers of ``kl_server``; None: it is empty.

    They may have another model with the same tokenizer and chat template, such as a larger one,
    which the policy then learns from (distillation); a line says so.

    Args:
        config: settings of training.
        model: the trainer's model with LoRA.
        api_key: API key of the servers.

    Raises:
        ModelError: a server is not `legos serve`, or has a model with another tokenizer.
        EngineError: a server does not answer.
    """
    urls = config.kl_server
    if not urls:
        return None
    servers = [LegosServer(url, api_key=api_key, timeout_s=PATIENCE_S) for url in urls]
    engine = RemoteEngine(servers, None)
    with ExitStack() as stack:
        stack.callback(engine.close)
        try:
            check_same_model(engine, model, where="training.kl_server")
        except ModelError as error:
            if isinstance(error.__cause__, RequestError) or not _same_tokens(
                engine, urls, model, api_key
            ):
                raise
            logger.warning(
                "training.kl_server has another model than the trainer, with the same tokenizer, "
                "so the KL divergence draws the policy to that model (distillation): %s",
                error,
            )
        stack.pop_all()
    return ReferenceServers(engine, num_vocabulary=model.num_vocabulary)


def _same_tokens(
    engine: RemoteEngine, urls: Sequence[str], model: ModelHandle, api_key: str | None
) -> bool:
    """Whether servers give texts the log-probabilities that they give the trainer's tokens."""
    tokenizer = model.tokenizer
    chats = [[{"role": "user", "content": text}] for text in TEXTS]
    texts = [{"messages": chat, "choices": [TEXTS[0]]} for chat in chats]
    answers = [tokenizer.encode(TEXTS[0])]
    rows = [(tokenizer.render((Message("user", text),)), answers) for text in TEXTS]
    headers = {} if api_key is None else {"authorization": f"Bearer {api_key}"}
    for url, server in zip(urls, engine.servers, strict=True):
        body = {"prompts": texts, "model": BASE}
        said = httpx.post(
            f"{api_root(url)}/score",
            json=body,
            headers=headers,
            timeout=PATIENCE_S,
            trust_env=False,
        )
        if not said.is_success:
            return False
        scores = server.score(rows, end_ids=tokenizer.end_ids, adapter=BASE)
        pairs = zip(scores_of(said.content), engine.call(scores).result(), strict=True)
        if any(abs(one[0] - other[0]) > TOLERANCE for one, other in pairs):
            return False
    return True
