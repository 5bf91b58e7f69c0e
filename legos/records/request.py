"""One generation request as the engine receives it: token ids and numbers, without text."""

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from legos.records.choices import ChoiceNode
from legos.records.message import Draws, Generated, Tokens
from legos.records.names import POLICY


class GrammarState(Protocol):
    """The state of one completion in a grammar; it is not shared with other completions."""

    @property
    def closed(self) -> bool:
        """Whether the text is complete and nothing may follow."""

    def allowed(self) -> NDArray[np.bool_]:
        """[V] True for the token ids that may come next."""

    def advance(self, token: int) -> None:
        """Advance the state by one token."""


@runtime_checkable
class Grammar(Protocol):
    """A constraint on the text of a completion."""

    def begin(self) -> GrammarState:
        """The state before the first token."""


class PlainRequest(Draws, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A request as plain data, as it is sent to another process."""

    prompt_ids: tuple[int, ...]  # [P] token ids of the prompt, P >= 1
    max_tokens: int  # >= 1
    end_ids: tuple[int, ...] = ()  # token ids that end the completion and are kept in it
    choice_texts: tuple[str, ...] = ()  # legal answers; generation ends when one is complete
    stop: tuple[str, ...] = ()  # texts that end the completion
    adapter: str = POLICY  # "base": the model without adapter; "NAME@VERSION" requires a version
    json_schema: str | None = None  # JSON schema, as text, that the completion must satisfy
    stream: bool = False  # True: deliver a ``Progress`` for every token, then the whole result


class Request(PlainRequest, frozen=True, kw_only=True):
    """The data that an engine needs to sample one completion.

    What ends or constrains the completion is here also in the form that the engine uses.
    """

    choices: ChoiceNode | None = None  # the prefix tree of ``choice_texts``
    stops: Callable[[Sequence[int]], bool] | None = None  # tests for ``stop`` after each token
    grammar: Grammar | None = None  # the grammar of ``json_schema``


class Progress(Tokens, frozen=True, kw_only=True):
    """The tokens sampled for a streamed request since its last ``Progress``."""

    @classmethod
    def joined(cls, parts: Sequence["Progress"]) -> "Progress":
        """Concatenate several parts."""
        if len(parts) == 1:
            return parts[0]
        return cls(
            **{
                name: tuple(x for part in parts for x in getattr(part, name))
                for name in cls.__struct_fields__
            }
        )


Result = Generated | Progress | Exception
"""What a receiver gets for a request: tokens as they are sampled, then the result or an error."""
