"""One generation request as the engine receives it: token ids and numbers, without text."""

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
    """The state of one completion in a grammar; it is not shared with other completions."""

    @property
    def closed(self) -> bool:
        """Whether the text is complete and nothing may follow."""
        ...

    def allowed(self) -> NDArray[np.bool_]:
        """[V] True for the token ids that may come next."""
        ...

    def advance(self, token: int) -> None:
        """Advance the state by one token."""
        ...


class Grammar(Protocol):
    """A constraint on the text of a completion."""

    def begin(self) -> GrammarState:
        """The state before the first token."""
        ...


class Request(Struct, frozen=True, kw_only=True):
    """The data that an engine needs to sample one completion."""

    prompt_ids: tuple[int, ...]  # [P] token ids of the prompt, P >= 1
    max_tokens: int  # >= 1
    temperature: float = 1.0  # 0 takes the most probable token
    seed: int = 0  # a draw depends only on (seed, position)
    end_ids: tuple[int, ...] = ()  # token ids that end the completion and are kept in it
    choices: ChoiceNode | None = None  # legal answers; generation ends when one is complete
    restrict: bool = False  # True: sample legal tokens only
    stops: Callable[[tuple[int, ...]], bool] | None = None  # whether to end, after each token
    adapter: str = POLICY  # "base": the model without adapter; "NAME@VERSION" requires a version
    filters: Filters | None = None  # changes to the distribution besides the temperature
    grammar: Grammar | None = None  # constraint on the text of the completion
    num_alternatives: int = 0  # number of most probable tokens to report per position
    raw_logprobs: bool = False  # True: also report the log-probabilities of the model itself
    stream: bool = False  # True: deliver a ``Progress`` for every token, then the whole result


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
"""What a receiver hears of a request: its tokens as they come, and in the end all or an error."""
