"""What an engine may use of the machine."""

from typing import Literal

from msgspec import Struct

__all__ = ["EngineLimits", "InFlight"]

InFlight = Literal["switch", "pin"]
"""What a new version of an adapter does to the requests that run under the old one.

    switch  they go on under the new weights; every token carries the version it was sampled under
    pin     they end under the weights they began with, which leave with the last of them
"""


class EngineLimits(Struct, frozen=True, kw_only=True):
    """What an engine may use, and how it swaps."""

    max_rows: int = 256  # distinct rows decoded at once
    prefill_tokens: int = 4096  # padded prompt tokens of a forward pass while nothing is decoded
    chunk_tokens: int = 512  # the same while rows are decoded, which wait for it
    cache_bytes: int = 4 << 30  # keys and values of the rows being decoded
    prefix_bytes: int = 1 << 30  # keys and values kept for prompts that begin with them; 0: none
    in_flight: InFlight = "switch"  # what a new version does to running requests: InFlight
