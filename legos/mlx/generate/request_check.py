"""Check requests before an engine takes them."""

from collections.abc import Iterator

from msgspec.structs import replace

from legos.records.request import Request


class RequestCheck:
    """Checks requests; plays in one position ask the same one again, with another seed.

    A request that equals the last valid one except for its seed is valid too. Checking them all
    would take a third of the engine's own time in small games.
    """

    def __init__(self, *, num_vocabulary: int, context: int) -> None:
        """Make a check for a model.

        Args:
            num_vocabulary: vocabulary size; token ids must be below it.
            context: maximum number of prompt and completion tokens together.
        """
        self._num_vocabulary = num_vocabulary
        self._context = context
        self._valid: Request | None = None

    def refusal(self, request: Request, *, room: int = 0) -> str | None:
        """Why the model cannot serve a request, or None.

        Args:
            request: the request.
            room: 1 for a score, of which the prompt is all tokens and none is sampled; else 0.
        """
        if self._equals_valid(request):
            return None
        found = _complaints(request, self._num_vocabulary, self._context, room)
        reason = next(found, None)
        if reason is None and not room:
            self._valid = request
        return reason

    def _equals_valid(self, request: Request) -> bool:
        valid = self._valid
        if valid is None or not 0 <= request.seed < 1 << 64:
            return False
        if replace(request, seed=valid.seed) != valid:
            return False
        plain = request.filters is None and not request.num_alternatives
        sure = plain and isinstance(request.max_tokens, int)
        sure = sure and isinstance(request.temperature, float | int)
        return sure or not any(_wrong_types(request))  # 4.0 equals 4


def _wrong_types(request: Request) -> Iterator[str]:
    """Which settings have a wrong type, though they may equal valid ones."""
    try:
        hash((request.temperature, request.filters))  # distributions are found by them
    except TypeError as error:
        yield f"temperature or filters: {error}; expected numbers, and logit_bias as tuples"
    counts = [("max_tokens", request.max_tokens), ("num_alternatives", request.num_alternatives)]
    filters = request.filters
    if filters is not None:
        counts.append(("top_k", filters.top_k))
        for token, _ in filters.logit_bias:
            if not hasattr(token, "__index__"):
                yield f"logit_bias names token {token!r}; expected an int"
    for name, count in counts:
        if not isinstance(count, int):  # MLX takes no integers of NumPy
            yield f"{name} is {count!r}; expected an int"


def _complaints(request: Request, num_vocabulary: int, context: int, room: int) -> Iterator[str]:
    """What is wrong with a request; only the first complaint is valid."""
    prompt, choices = request.prompt_ids, request.choices
    if not prompt:
        yield "the prompt is empty; expected at least one token"
    if min(prompt) < 0 or max(prompt) >= num_vocabulary:
        bad = min(prompt) if min(prompt) < 0 else max(prompt)
        yield f"the prompt holds token {bad}; the vocabulary has {num_vocabulary}"
    if request.max_tokens < 1:
        yield f"max_tokens is {request.max_tokens}; expected at least 1"
    if len(prompt) + request.max_tokens > context + room:
        sampled = f"prompt tokens and max_tokens {request.max_tokens}"
        what, which = ("tokens to score", "them") if room else (sampled, "one of them")
        yield f"{len(prompt)} {what} exceed the context of {context}; shorten {which}"
    if request.restrict and choices is None:
        yield "restrict=True needs choices"
    if choices is not None and choices.largest >= num_vocabulary:
        yield f"a choice holds token {choices.largest}; the vocabulary has {num_vocabulary}"
    if request.restrict and request.grammar is not None:
        yield "both restrict=True and a grammar say what is legal; give one of them"
    yield from request.complaints()
    yield from _wrong_types(request)
    for token, _ in request.filters.logit_bias if request.filters else ():
        if token >= num_vocabulary:
            yield f"logit_bias names token {token}; the vocabulary has {num_vocabulary}"
