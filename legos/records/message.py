"""Records of model calls: messages, sampling parameters and completions.

They are not tracked by Python's cycle collector (``gc=False``): none can be part of a cycle, and a
step holds thousands of them, which every collection would visit.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any, Literal

from msgspec import Struct

from legos.errors import RecordError, RequestError
from legos.records.names import POLICY
from legos.records.numbers import number, shown

MAX_ALTERNATIVES = 20  # maximum number of most probable tokens recorded at one position
MAX_BIAS = 1000.0  # maximum logit bias or penalty; beyond it, float32 keeps too few digits
MIN_TEMPERATURE = 1e-3  # below it, float32 logits overflow in the division

FinishReason = Literal["stop", "length", "cancelled"]
Thinking = Literal["default", "off", "on", "low", "medium", "high"]
"""Whether a model thinks before it answers, or how long; default: as its chat template has it."""

Alternatives = tuple[tuple[int, float], ...]
"""The most probable next tokens and their log-probabilities (nats), most probable first."""


class ToolCall(Struct, frozen=True, gc=False):
    """One tool call of a model."""

    name: str
    arguments: str  # JSON object as text
    id: str = ""  # identifies the call in the message with its result


class Message(Struct, frozen=True, gc=False):
    """One chat message."""

    role: str  # "system", "user", "assistant", or "tool" for the result of a call
    content: str
    tool_calls: tuple[ToolCall, ...] = ()  # tool calls in an assistant's message
    tool_call_id: str | None = None  # in a tool's message: id of the call that it answers


class Filters(Struct, frozen=True, kw_only=True, gc=False):
    """Changes to the sampling distribution besides the temperature, in the order of application.

    Penalties come first, then the bias, the temperature, and the cuts top_k, top_p and min_p; the
    rest is normalised again. A completion sampled with filters is never trained on, because its
    log-probabilities are those of the changed distribution, which the trainer does not compute.
    """

    repetition_penalty: float = 1.0  # 0.01 to 100; divides (multiplies) positive (negative) logits
    # of tokens that already occur in the prompt or the completion
    presence_penalty: float = 0.0  # subtracted from the logits of tokens in the completion
    frequency_penalty: float = 0.0  # subtracted once per occurrence in the completion
    logit_bias: tuple[tuple[int, float], ...] = ()  # token id and the value added to its logit
    top_k: int = 0  # >= 0; keep this many most probable tokens; 0 keeps all
    top_p: float = 1.0  # in (0, 1]; keep the fewest most probable tokens with this total share
    min_p: float = 0.0  # in [0, 1]; keep tokens with p >= min_p * the largest p

    @property
    def penalised(self) -> bool:
        """Whether the distribution depends on the tokens so far."""
        return bool(
            self.repetition_penalty != 1.0 or self.presence_penalty or self.frequency_penalty
        )


def _filter_complaints(filters: Filters) -> Iterator[str]:
    """Yield an error message for each invalid field, with its value and range."""
    within = f"-{MAX_BIAS:g} to {MAX_BIAS:g}"
    for name, right, expected in (
        ("repetition_penalty", 0.01 <= filters.repetition_penalty <= 100.0, "0.01 to 100"),
        ("presence_penalty", abs(filters.presence_penalty) <= MAX_BIAS, within),
        ("frequency_penalty", abs(filters.frequency_penalty) <= MAX_BIAS, within),
        ("top_k", filters.top_k >= 0, "0 (all tokens) or more"),
        ("top_p", 0.0 < filters.top_p <= 1.0, "above 0, up to 1 (all tokens)"),
        ("min_p", 0.0 <= filters.min_p <= 1.0, "0 (all tokens) to 1"),
    ):
        if not right:
            yield f"{name} is {getattr(filters, name)}; expected {expected}"
    seen: set[int] = set()
    for token, bias in filters.logit_bias:
        if token < 0:
            yield f"logit_bias names token {token}; expected ids from 0"
        if not -MAX_BIAS <= bias <= MAX_BIAS:
            yield f"logit_bias of token {token} is {bias}; expected {within}"
        if token in seen:
            yield f"logit_bias names token {token} more than once; add its values up"
        seen.add(token)


class Draws(Struct, frozen=True, kw_only=True, gc=False):
    """How tokens are drawn: the settings that a client's and an engine's request share."""

    temperature: float = 1.0  # 0 takes the most probable token; otherwise at least 0.001
    seed: int = 0  # 64 bits; a draw depends only on (seed, position), not on the batch
    restrict: bool = False  # True: only the legal answers (``choices``) can be sampled
    filters: Filters | None = None  # None: no change besides the temperature
    num_alternatives: int = 0  # 0 to 20; number of most probable tokens recorded per position
    raw_logprobs: bool = False  # True: also record the log-probabilities of the model itself

    def complaints(self) -> Iterator[str]:
        """Yield an error message for each invalid setting, with its value and range."""
        if not (self.temperature == 0.0 or MIN_TEMPERATURE <= self.temperature < math.inf):
            yield f"temperature is {self.temperature}; expected 0, or at least {MIN_TEMPERATURE}"
        if not 0 <= self.seed < 1 << 64:
            yield f"seed is {self.seed}; expected 64 bits, without a sign"
        if not 0 <= self.num_alternatives <= MAX_ALTERNATIVES:
            yield f"num_alternatives is {self.num_alternatives}; expected 0 to {MAX_ALTERNATIVES}"
        if self.filters is not None:
            yield from _filter_complaints(self.filters)


class Sampling(Draws, frozen=True, kw_only=True):
    """Sampling parameters of one completion.

    ``choices`` are the legal answers as text. They are always recorded (the entropy bonus and the
    evaluation use them). With ``restrict`` the model can sample only these, and all recorded
    log-probabilities are under the restricted distribution.
    """

    max_tokens: int | None = 256  # >= 1; None: the length of the longest of `choices`
    stop: tuple[str, ...] = ()  # texts that end the completion and are left out of it
    choices: tuple[str, ...] = ()  # the legal answers; empty: any answer is legal
    stop_ids: tuple[int, ...] = ()  # token ids that end the completion, besides the model's own
    ignore_end: bool = False  # True: the model's end tokens do not end the completion
    json_schema: str | None = None  # a JSON schema, as text, that the completion must satisfy
    tools: str | None = None  # tools that may be called, a JSON list in OpenAI's format

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            RecordError: the message names the field, the value and the range.
        """
        limit = self.max_tokens
        if limit is not None and (not 1 <= number(limit) < math.inf or limit % 1):
            raise RecordError(f"max_tokens is {limit!r}; expected at least 1, a whole number")
        if self.restrict and not self.choices:
            raise RecordError(
                "restrict=True needs choices; pass the legal answers or restrict=False"
            )
        if self.restrict and self.json_schema is not None:
            raise RecordError("both restrict=True and json_schema say what is legal; give one")
        if self.ignore_end and (self.choices or self.json_schema is not None):
            raise RecordError("choices and json_schema end with the model's end; drop ignore_end")
        for text in self.stop:
            if not isinstance(text, str):
                raise RecordError(f"stop holds {shown(text)}; expected texts")
            if not text:
                raise RecordError("stop holds an empty text, which would end every answer at once")
        for complaint in self.complaints():
            raise RecordError(complaint)


class Tokens(Struct, frozen=True, kw_only=True, gc=False):
    """Data that an engine records for each of N sampled tokens."""

    token_ids: tuple[int, ...] = ()  # [N] sampled token ids, the stop token included
    logprobs: tuple[float, ...] = ()  # [N] nats, fp32, under the distribution sampled from
    versions: tuple[int, ...] = ()  # [N] policy version that sampled each token
    raw_logprobs: tuple[float, ...] = ()  # [N] nats of the model itself, temperature 1; or ()
    alternatives: tuple[Alternatives, ...] = ()  # [N] of the model itself, temperature 1; or ()


class Generated(Tokens, frozen=True, kw_only=True):
    """The result of an engine for one request, with C sampled tokens."""

    legal: tuple[tuple[int, ...], ...] = ()  # [C] legal token ids at each position, () if unknown
    finish_reason: FinishReason = "stop"


class Completion(Generated, frozen=True, kw_only=True):
    """The completion of one prompt; C is the number of completion tokens.

    The token ids are the data, and the text is derived from them. A completion from an endpoint
    without token ids or log-probabilities, or from a bot that gives only ``text``, has
    ``trainable`` False and is never trained on.
    """

    text: str  # the completion as text, without stop token and stop text
    prompt_ids: tuple[int, ...] = ()  # [P] token ids of the prompt
    restricted: bool = False  # True: sampled from `legal` only
    temperature: float = 1.0  # sampling temperature
    adapter: str = POLICY  # adapter that sampled it
    filtered: bool = False  # True: sampled with filters or a grammar, so never trained on
    tool_calls: tuple[ToolCall, ...] = ()  # calls in its tokens, which are not in the text

    def __post_init__(self) -> None:
        """Check the lengths of the per-token fields.

        Raises:
            RecordError: lengths differ, or a restricted completion lacks its legal tokens; the
                message names the field and both lengths.
        """
        num_tokens = len(self.token_ids)
        for name, values, needed in (
            ("logprobs", self.logprobs, True),
            ("versions", self.versions, True),
            ("raw_logprobs", self.raw_logprobs, False),
            ("alternatives", self.alternatives, False),
            ("legal", self.legal, self.restricted),
        ):
            if len(values) != num_tokens and (values or needed):
                raise RecordError(
                    f"{name} of a completion of {num_tokens} tokens has {len(values)} values; "
                    "every token needs one"
                )

    @property
    def trainable(self) -> bool:
        """Whether it has the tokens and log-probabilities that training needs."""
        return bool(self.token_ids) and bool(self.prompt_ids) and not self.filtered


class Continuation(Struct, frozen=True, kw_only=True, gc=False):
    """A conversation that continues in tokens: earlier tokens are kept, new messages rendered."""

    last: Completion  # newest completion of the conversation, with its prompt and token ids
    messages: tuple[Message, ...]  # whole conversation, for endpoints that accept no token ids
    num_new: int  # number of last messages that came after the completion, at least 1

    @property
    def new(self) -> tuple[Message, ...]:
        """The messages that came after the completion."""
        return self.messages[-self.num_new :]


Prompt = Sequence[Message] | Sequence[int] | Continuation
"""What is asked: chat messages, token ids, or a conversation that goes on."""

Questions = Sequence[tuple[Sequence[Message], Sequence[str]]]
"""Messages of each question, and the choices that are scored as its answer."""

ScoredRows = Sequence[tuple[tuple[int, ...], Sequence[tuple[int, ...]]]]
"""Token ids of each prompt, and of the continuations that are scored after it."""


def messages_or_ids(prompt: Prompt) -> tuple[tuple[Message, ...], tuple[int, ...]]:
    """Split a prompt into messages and token ids, one of which is empty.

    A conversation that goes on is taken as its messages.

    Raises:
        RequestError: the prompt is neither.
    """
    if isinstance(prompt, Continuation):
        return prompt.messages, ()
    expected = "expected messages, such as [Message('user', 'Hello')], or token ids"
    if isinstance(prompt, str):
        raise RequestError(f"the prompt is the text {prompt[:80]!r}; {expected}")
    if not prompt:
        raise RequestError(f"the prompt is empty; {expected}")
    items: tuple[Any, ...] = tuple(prompt)
    if not isinstance(items[0], Message):
        if not hasattr(items[0], "__index__"):
            raise RequestError(f"the prompt holds {items[0]!r:.80}; {expected}")
        return (), items
    for item in items:
        if not isinstance(item, Message):
            raise RequestError(f"the prompt holds {item!r:.80}; {expected}")
        if not isinstance(item.content, str):
            raise RequestError(f"a message of the prompt holds {item.content!r:.80}; expected text")
    return items, ()
