"""Check that a server has the model of the trainer: the same tokens and the same probabilities."""

import numpy as np

from legos.builtin import EXAMPLE
from legos.clients.openai import OpenAIClient
from legos.device import ModelHandle
from legos.errors import EndpointError, EngineError, ModelError, RequestError
from legos.losses.softmax import log_softmax
from legos.records.message import Message
from legos.records.names import BASE

__all__ = ["ANSWERS", "check_same_model", "own_scores", "tolerance"]

QUESTION = (Message("user", EXAMPLE),)
ANSWERS = ("1", "2")
TOLERANCE, TOLERANCE_16_BITS = 1e-3, 0.3  # nats of one answer


async def check_same_model(client: OpenAIClient, model: ModelHandle, *, where: str) -> None:
    """Compare the probabilities of fixed answers on a server with those of the trainer's model.

    Args:
        client: a client of the server; its connections are closed at the end.
        model: the trainer's model, whose LoRA still changes nothing.
        where: the server's address, for messages.

    Raises:
        ModelError: the server has another model.
        EngineError: the server does not answer.
    """
    try:
        (found,) = await client.score([(QUESTION, ANSWERS)], adapter=BASE)
    except RequestError as error:
        raise ModelError(f"{where} cannot score the answers of a prompt: {error}") from error
    except EndpointError as error:
        raise EngineError(str(error)) from error
    finally:
        await client.aclose()
    own = own_scores(model)
    gap = float(np.abs(np.subtract(found, own)).max())
    if not gap <= tolerance(model):
        raise ModelError(
            f"{where} has another model than the trainer ({model.folder}): the log-probabilities "
            f"of {list(ANSWERS)} after a fixed prompt are {_rounded(found)} there and "
            f"{_rounded(own)} here; start the server with the trainer's model, or give its own "
            "with --model"
        )


def own_scores(model: ModelHandle) -> list[float]:
    """Log-probability of each of ``ANSWERS``, none the prefix of another, after ``QUESTION``."""
    prompt = model.tokenizer.render(QUESTION)
    scores: list[float] = []
    for answer in model.tokenizer.encode_each(ANSWERS):
        logits = model((*prompt, *answer))[len(prompt) - 1 : -1].astype(np.float64)
        chosen = log_softmax(np, logits)[np.arange(len(answer)), list(answer)]
        scores.append(float(chosen.sum()))
    return scores


def tolerance(model: ModelHandle) -> float:
    """Largest difference, in nats, between two programs that compute the same model."""
    return TOLERANCE if model.dtype == "float32" else TOLERANCE_16_BITS


def _rounded(values: "list[float]") -> list[float]:
    return [round(value, 3) for value in values]
