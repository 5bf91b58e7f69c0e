"""Check that servers have the model of the trainer: the same log-probabilities of a fixed text."""

import numpy as np

from legos.builtin import EXAMPLE
from legos.device import ModelHandle
from legos.errors import EndpointError, EngineError, ModelError, RequestError
from legos.losses.softmax import log_softmax
from legos.records.message import Message
from legos.records.names import BASE
from legos.remote.engine import RemoteEngine

PATIENCE_S = 180.0  # how long a server may take to score the text
ADVICE = "; start the server with the same model, or give its own with --model"
TOLERANCE, TOLERANCE_16_BITS = 1e-3, 0.3  # nats a token


def check_same_model(
    engine: RemoteEngine, model: ModelHandle, *, where: str, other: bool = False
) -> None:
    """Compare what each server of an engine computes for a fixed text with the trainer's model.

    Args:
        engine: its servers can score by token.
        model: the trainer's model; its LoRA is left out.
        where: what the servers are, for messages.
        other: the servers have another model: compare with the first of them instead.

    Raises:
        ModelError: a server has another model.
        EngineError: a server does not answer.
    """
    row = (*model.tokenizer.render((Message("user", EXAMPLE),)), model.num_vocabulary - 1)
    prompt, answer = row[:1], row[1:]  # which has the last token of the vocabulary
    most = TOLERANCE if model.dtype == "float32" else TOLERANCE_16_BITS
    with model.without_lora():
        logits = model((*prompt, *answer))[len(prompt) - 1 : -1].astype(np.float64)
    own = log_softmax(np, logits)[np.arange(len(answer)), list(answer)].tolist()
    whose = f"the trainer ({model.folder})"
    for server in engine.servers:
        at = f"{where} {server.name}"
        try:
            asked = [(prompt, [answer])]
            scores = server.score(asked, end_ids=(), adapter=BASE, by_token=True)
            (found,) = engine.call(scores).result(timeout=PATIENCE_S)
        except RequestError as error:
            raise ModelError(
                f"{at} cannot score the tokens of a fixed text: {error}; serve the trainer's model "
                "there with `legos serve`"
            ) from error
        except EndpointError as error:
            raise EngineError(str(error)) from error
        except TimeoutError as error:
            raise EngineError(
                f"{at} has not scored a fixed text within {PATIENCE_S:g} s; start it again"
            ) from error
        if other and server is engine.servers[0]:
            own, whose = found, server.name
        gap = np.abs(np.subtract(found, own)).mean()
        if not gap <= most:
            raise ModelError(
                f"{at} has another model than {whose}: the log-probabilities of a fixed text "
                f"differ by {gap:.3g} nats a token, more than {most:g}{ADVICE}"
            )
