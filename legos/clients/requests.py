"""Request bodies for OpenAI-compatible servers; no network here.

Ours (``legos serve``) reports token ids, log-probabilities and versions of every token, and the
legal tokens of choices. Any other reports text alone, which can be read but never trained on.
"""

from typing import Any, Literal

import msgspec

from legos.chat.fields import message_fields
from legos.chat.tools import arguments_text
from legos.errors import RequestError
from legos.records.message import Continuation, Filters, Prompt, Sampling, messages_or_ids

Dialect = Literal["legos", "vllm", "openai"]
LARGEST_SEED = (1 << 63) - 1  # for servers other than ours
_OF_ALL = ("top_p", "presence_penalty", "frequency_penalty")  # filters that every server knows
FILTERS = (*_OF_ALL, "top_k", "min_p", "repetition_penalty")  # that ours and vLLM know


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """The model at a server that answers a request."""

    dialect: Dialect  # of the server
    adapter: str  # adapter that the seat asks for
    model: str  # its name in the request

    @property
    def ours(self) -> bool:
        """Whether the server is ``legos serve``."""
        return self.dialect == "legos"


def split_adapter(adapter: str) -> tuple[str, int | None]:
    """Name and version of ``NAME``, ``NAME@VERSION``, or a run's ``NAME@VERSION+RUN+DIGEST``.

    Raises:
        RequestError: the version is not a number.
    """
    name, found, rest = adapter.partition("@")
    if not found:
        return name, None
    version = rest.partition("+")[0]
    if not (version.isascii() and version.isdigit() and len(version) < 19):
        raise RequestError(
            f"adapter {adapter!r} asks for version {version!r}; expected a number, as in policy@12"
        )
    return name, int(version)


def request_of(prompt: Prompt, sampling: Sampling, target: Target) -> tuple[str, dict[str, Any]]:
    """Path and body of a request.

    Args:
        prompt: chat messages, token ids, or a conversation that goes on, of which another server
            than ours gets all messages.
        sampling: how the completion is sampled.
        target: the model that answers.

    Raises:
        RequestError: this kind of server cannot do what is asked.
    """
    continued: dict[str, Any] = {}
    if isinstance(prompt, Continuation):
        so_far = prompt.last.prompt_ids + prompt.last.token_ids
        continued = {"prompt_token_ids": so_far, "num_new_messages": prompt.num_new}
        prompt = prompt.messages
    messages, ids = messages_or_ids(prompt)
    chat = not ids or sampling.tools is not None
    needs_ours = {
        "token ids as the prompt": bool(ids),
        "raw_logprobs": sampling.raw_logprobs,
        "num_alternatives": bool(sampling.num_alternatives),
    }
    for what, needed in needs_ours.items():
        if needed and not target.ours:
            raise RequestError(
                f"{what} needs our server, and another kind of server answers here; leave it out, "
                "or serve the model with `legos serve`"
            )
    seed = sampling.seed
    body: dict[str, Any] = {"model": target.model, "temperature": sampling.temperature}
    shown = [message_fields(message, arguments_text) for message in messages]
    if shown:
        body |= {"messages": shown, **(continued if target.ours else {})}
    else:
        body["prompt_token_ids" if chat else "prompt"] = ids
    if sampling.tools is not None:
        body["tools"] = msgspec.json.decode(sampling.tools)
    limits = {
        "max_tokens": sampling.max_tokens,
        "stop": sampling.stop,
        "stop_token_ids": sampling.stop_ids,
        "ignore_eos": sampling.ignore_end,
    }
    body |= {name: value for name, value in limits.items() if value}
    body |= _extensions(sampling, chat=chat) if target.ours else {"seed": seed & LARGEST_SEED}
    body |= _filter_fields(sampling.filters, sampling.json_schema, target.dialect)
    return ("/chat/completions" if chat else "/completions"), body


def _extensions(sampling: Sampling, *, chat: bool) -> dict[str, Any]:
    """Fields that OpenAI's API does not have, and the seed."""
    extra: dict[str, Any] = {"return_token_ids": True, "seed": sampling.seed}
    if sampling.choices:
        extra |= {"choices": list(sampling.choices), "restrict": sampling.restrict}
    number = sampling.num_alternatives
    if number or sampling.raw_logprobs:
        extra |= {"logprobs": True, "top_logprobs": number} if chat else {"logprobs": number}
    return extra


def _filter_fields(
    filters: Filters | None, json_schema: str | None, dialect: Dialect
) -> dict[str, Any]:
    """Fields that change the distribution besides the temperature."""
    fields: dict[str, Any] = {}
    if filters is not None:
        known = _OF_ALL if dialect == "openai" else FILTERS
        for name in FILTERS:
            value = getattr(filters, name)
            if name in known:
                fields[name] = value
            elif value != getattr(Filters(), name):
                raise RequestError(
                    f"{name} is {value:g}, which OpenAI's interface does not have; leave it out, "
                    "or serve the model with `legos serve` or vLLM"
                )
        if filters.logit_bias:
            fields["logit_bias"] = {str(token): bias for token, bias in filters.logit_bias}
    if json_schema is not None:
        fields["response_format"] = {
            "type": "json_schema",
            "json_schema": {"name": "answer", "schema": msgspec.json.decode(json_schema)},
        }
    return fields
