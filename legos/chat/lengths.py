"""Prompts that are long: whether rendering needs a thread, and whether they fit at all."""

from functools import lru_cache

from legos.chat.tokenizer import ChatTokenizer
from legos.errors import RequestError
from legos.records.message import Prompt, messages_or_ids

_LONG = 1 << 20  # characters of a prompt, which would block the event loop for a second
PER_TOKEN = 6  # characters for each token of the context; most texts have fewer
_CUT = 8  # tokens that a text may have more where it is cut than in its place


def check_length(prompt: Prompt, tokenizer: ChatTokenizer, context: int) -> None:
    """Refuse the texts of a prompt that cannot fit into the context; token ids are counted anyway.

    Args:
        prompt: the prompt; only the texts that it holds in full are checked.
        tokenizer: the model's tokenizer.
        context: maximum number of prompt and completion tokens together.

    Raises:
        RequestError: one is too long, or it is no prompt.
    """
    for message in messages_or_ids(prompt)[0]:
        text = message.content
        if message.role != "assistant" and exceeds(text, tokenizer, context):
            raise RequestError(
                f"a {message.role} message of {len(text)} characters has more than {context} "
                "tokens, the context of the model; shorten it"
            )


def exceeds(text: str, tokenizer: ChatTokenizer, context: int) -> bool:
    """Whether a text has more tokens than the context; only its beginning is tokenized.

    To tokenize all of a long text takes a fifth of a second, in every play that asks it.
    """
    most = PER_TOKEN * context
    return len(text) > most and _is_too_long(text.strip()[:most], tokenizer, context)


@lru_cache(maxsize=64)  # it keeps the beginnings
def _is_too_long(begin: str, tokenizer: ChatTokenizer, context: int) -> bool:
    return len(tokenizer.encode(begin)) > context + _CUT


def is_long(prompt: Prompt) -> bool:
    """Whether rendering a prompt takes so long that it needs a thread.

    Raises:
        RequestError: it is no prompt.
    """
    return sum(len(message.content) for message in messages_or_ids(prompt)[0]) > _LONG
