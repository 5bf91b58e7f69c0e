"""Grammars for completions: JSON that satisfies a schema, token by token, through llguidance."""

import json
from functools import lru_cache
from typing import Any

import numpy as np
from llguidance import LLMatcher, LLTokenizer
from numpy.typing import NDArray

from legos.chat.schemas import CALL_MARK
from legos.chat.tokenizer import ChatTokenizer
from legos.errors import RequestError
from legos.records.request import Grammar

WHITESPACE = (
    r"[ \n\t]{0,16}"  # between two JSON tokens; without a limit a model may write blanks forever
)


def json_grammar(schema: str, tokenizer: ChatTokenizer) -> Grammar:
    """The grammar of JSON texts that satisfy a schema.

    Args:
        schema: a JSON schema as text; ``{"type": "object"}`` is any object, ``{}`` any JSON. One of
            ``or_call`` allows tool calls too.
        tokenizer: tokenizer of the model that writes the JSON.

    Returns:
        The grammar. It masks the tokenizer's vocabulary; the end of text is allowed only after
        complete JSON.

    Raises:
        RequestError: the schema is not valid, or cannot be enforced, or the tokenizer is not
            supported.
    """
    try:
        parsed: Any = json.loads(schema)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"the JSON schema is not JSON: {error}") from error
    if not isinstance(parsed, dict) and parsed is not True:
        raise RequestError(f"the JSON schema is {schema[:80]}; expected an object")
    own: dict[str, Any] = {} if parsed is True else parsed
    mark = own.pop(CALL_MARK, None)
    try:
        text = LLMatcher.grammar_from_json_schema(
            json.dumps(own), defaults={"whitespace_pattern": WHITESPACE}
        )
        if isinstance(mark, str) and mark:
            answer = json.dumps(json.loads(text)["grammars"][0]["json_schema"])
            control = f"<{[*tokenizer.encode(mark)]}>"
            begin = control if tokenizer.is_control(mark) else json.dumps(mark)
            text = f"start: %json {answer} | {begin} <[*]>*"
    except ValueError as error:
        raise RequestError(f"the JSON schema cannot be used: {error}") from error
    matcher = LLMatcher(_guide(tokenizer), text, log_level=0)
    if matcher.is_error():
        raise RequestError(f"the JSON schema cannot be used: {_one_line(matcher.get_error())}")
    return _JsonGrammar(matcher)


class _JsonGrammar:
    """A compiled grammar, and the state of one completion in it, which is a copy.

    Every method raises ``RequestError`` once the grammar has failed: a token that was not allowed,
    or a text too complex for its limits.
    """

    def __init__(self, matcher: LLMatcher) -> None:
        self._matcher = matcher

    def begin(self) -> "_JsonGrammar":
        """The state before the first token."""
        return _JsonGrammar(self._matcher.deep_copy())

    @property
    def closed(self) -> bool:
        """Whether the JSON is complete and nothing may follow."""
        self._check()
        return self._matcher.is_stopped()

    def allowed(self) -> NDArray[np.bool_]:
        """[V] True for the token ids that may come next."""
        mask = np.frombuffer(self._matcher.compute_logit_bias(), np.uint8)
        self._check()
        return mask > 0

    def advance(self, token: int) -> None:
        """Advance the state by one token."""
        self._matcher.consume_token(token)
        self._check()

    def _check(self) -> None:
        if self._matcher.is_error():
            raise RequestError(
                f"the JSON does not follow its schema: {_one_line(self._matcher.get_error())}"
            )


@lru_cache(maxsize=8)
def _guide(tokenizer: ChatTokenizer) -> LLTokenizer:
    """The tokenizer for the grammars; making it reads the whole vocabulary."""
    if not tokenizer.end_ids:
        raise RequestError("this model has no end of text; a JSON schema needs one")
    definition: dict[str, Any] = json.loads(tokenizer.definition())
    definition |= {"padding": None, "truncation": None}
    try:
        return LLTokenizer(
            json.dumps(definition), n_vocab=tokenizer.vocab_size, eos_token=list(tokenizer.end_ids)
        )
    except ValueError as error:
        raise RequestError(
            f"this model's tokenizer cannot follow a JSON schema: {_one_line(str(error))}"
        ) from error


def _one_line(text: str) -> str:
    return " ".join(text.split("<state>")[0].split())
