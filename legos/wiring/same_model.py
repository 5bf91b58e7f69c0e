"""Check that servers have the model of the trainer: the same log-probabilities of a fixed text."""

from collections.abc import Sequence

import numpy as np

from legos.builtin import EXAMPLE
from legos.device import ModelHandle
from legos.errors import EndpointError, EngineError, ModelError, RequestError
from legos.losses.softmax import log_softmax
from legos.records.message import Message
from legos.records.names import BASE
from legos.remote.engine import RemoteEngine

__all__ = ["check_same_model", "fixed_text", "gap", "tolerance"]

PATIENCE_S = 180.0  # how long a server may take to score the text
TOLERANCE, TOLERANCE_16_BITS = 1e-3, 0.3  # nats a token
Tokens = tuple[int, ...]


def check_same_model(engine: RemoteEngine, model: ModelHandle, *, where: str) -> None:
    """Compare what each server of an engine computes for a fixed text with the trainer's model.

    Args:
        engine: its servers can score by token.
        model: the trainer's model; its LoRA is left out.
        where: what the servers are, for messages.

    Raises:
        ModelError: a server has another model.
        EngineError: a server does not answer.
    """
    asked = fixed_text(model)
    ((prompt, (answer,)),) = asked
    with model.without_lora():
        logits = model((*prompt, *answer))[len(prompt) - 1 : -1].astype(np.float64)
    own = log_softmax(np, logits)[np.arange(len(answer)), list(answer)].tolist()
    for server in engine.servers:
        at = f"{where} {server.name}"
        try:
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
        if not gap(found, own) <= tolerance(model):
            raise ModelError(
                f"{at} has another model than the trainer ({model.folder}): the log-probabilities "
                f"of a fixed text differ by {gap(found, own):.3g} nats a token, more than "
                f"{tolerance(model):g}; start the server with the trainer's model, or give its own "
                "with --model"
            )


def fixed_text(model: ModelHandle) -> list[tuple[Tokens, list[Tokens]]]:
    """A text's first token, and the others with the vocabulary's last one, to be scored."""
    row = (*model.tokenizer.render((Message("user", EXAMPLE),)), model.num_vocabulary - 1)
    return [(row[:1], [row[1:]])]


def gap(one: Sequence[float], other: Sequence[float]) -> float:
    """Mean difference of log-probabilities, nats."""
    return float(np.abs(np.subtract(one, other)).mean())


def tolerance(model: ModelHandle) -> float:
    """Largest mean difference, in nats, between two programs that compute the same model."""
    return TOLERANCE if model.dtype == "float32" else TOLERANCE_16_BITS
