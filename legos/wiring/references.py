"""Make the servers that compute reference log-probabilities, and compare them with the trainer."""

import logging
from contextlib import ExitStack, aclosing, suppress
from functools import partial
from typing import get_args

import msgspec

from legos.clients.responses import decoded
from legos.clients.transport import Transport, server_root
from legos.config.objective import ObjectiveSettings
from legos.device import ModelHandle
from legos.errors import ModelError, RequestError
from legos.records.message import Message, Thinking
from legos.remote.engine import RemoteEngine
from legos.remote.legos_server import LegosServer
from legos.remote.references import ReferenceServers
from legos.wiring.same_model import ADVICE, check_same_model

logger = logging.getLogger(__name__)
TEXTS = ("It's 3.14, isn't it?", "def f(x):\n    return 2 * x", "été 漢字 🙂")
PATIENCE_S = 180.0  # maximum time of one answer


class _Tokens(msgspec.Struct):
    """The answer of ``/tokenize``."""

    tokens: tuple[int, ...]


_tokens_of = partial(decoded, kind=_Tokens)


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
            if isinstance(error.__cause__, RequestError):
                raise
            if not all(engine.call(_same_tokens(url, model, api_key)).result() for url in urls):
                raise
            check_same_model(engine, model, where="training.kl_server", other=True)
            logger.warning(
                "%s; it has the same tokenizer, so the KL divergence draws the policy to that "
                "model (distillation)",
                f"{error}".removesuffix(ADVICE),
            )
        stack.pop_all()
    return ReferenceServers(engine, num_vocabulary=model.num_vocabulary)


async def _same_tokens(url: str, model: ModelHandle, api_key: str | None) -> bool:
    """Whether a server turns chats into the trainer's token ids, with any setting of thinking."""
    root = server_root(url)
    own = [model.tokenizer]
    for thinking in get_args(Thinking):
        with suppress(ModelError):  # the chat template has no variable for it
            own.append(model.tokenizer.with_thinking(thinking))
    async with aclosing(
        Transport(root, api_key=api_key, timeout_s=PATIENCE_S, max_connections=1, retries=2)
    ) as server:
        for text in TEXTS:
            asked = {"messages": [{"role": "user", "content": text}]}
            found = await server.request("POST", "/tokenize", _tokens_of, json=asked)
            if found.tokens not in [one.render((Message("user", text),)) for one in own]:
                return False
    return True
