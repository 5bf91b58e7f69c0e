"""One generation request in the engine's own terms: token ids, numbers, no text."""

from collections.abc import Callable

from msgspec import Struct

from legos.data.choices import ChoiceNode
from legos.data.message import FinishReason

__all__ = ["Generated", "Request"]


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
    adapter: str = "policy"


class Generated(Struct, frozen=True, kw_only=True):
    """What the engine sampled for a request; the fields are those of ``Completion``."""

    token_ids: tuple[int, ...]  # [C]
    logprobs: tuple[float, ...]  # [C] nats
    versions: tuple[int, ...]  # [C]
    legal: tuple[tuple[int, ...], ...]  # [C], or () where no choices were given
    finish_reason: FinishReason
