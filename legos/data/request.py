"""One generation request in the engine's own terms: token ids, numbers, no text."""

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from legos.data.choices import ChoiceNode
from legos.data.message import Filters, Generated, Tokens
from legos.data.names import POLICY

__all__ = ["Generated", "Grammar", "GrammarState", "Progress", "Request", "Result"]


class GrammarState(Protocol):
    """How far one completion has come in a grammar; it belongs to that completion alone."""

    @property
    def closed(self) -> bool:
        """Whether the text is whole and nothing may follow."""
        ...

    def allowed(self) -> NDArray[np.bool_]:
        """[V] the token ids that may come next."""
        ...

    def advance(self, token: int) -> None:
        """Take the next token."""
        ...


class Grammar(Protocol):
    """What a completion must look like."""

    def begin(self) -> GrammarState:
        """The state before the first token."""
        ...


class Request(Struct, frozen=True, kw_only=True):
    """What an engine needs to sample one completion."""

    prompt_ids: tuple[int, ...]  # [P] P >= 1
    max_tokens: int  # >= 1
    temperature: float = 1.0  # 0 takes the most probable token
    seed: int = 0  # the draw depends on (seed, position) alone
    end_ids: tuple[int, ...] = ()  # token ids that end the completion and are kept in it
    choices: ChoiceNode | None = None  # legal answers; generation ends when one is whole
    restrict: bool = False  # True: sample legal tokens only
    stops: Callable[[tuple[int, ...]], bool] | None = None  # asked after each token: end here?
    adapter: str = POLICY  # "base" is the model without any; "NAME@VERSION" insists on a version
    filters: Filters | None = None  # what changes the distribution besides the temperature
    grammar: Grammar | None = None  # what the completion must look like
    num_alternatives: int = 0  # most probable tokens to report at every position
    raw_logprobs: bool = False  # True: report the model's own log-probabilities as well
    stream: bool = False  # True: deliver a ``Progress`` for every token, then the whole


class Progress(Tokens, frozen=True, kw_only=True):
    """The tokens that a streamed request got since the last one."""

    @classmethod
    def joined(cls, parts: Sequence["Progress"]) -> "Progress":
        """Several as one."""
        return cls(
            **{
                name: tuple(x for part in parts for x in getattr(part, name))
                for name in cls.__struct_fields__
            }
        )


Result = Generated | Progress | Exception
"""What a receiver hears of a request: its tokens as they come, and in the end all or an error."""
