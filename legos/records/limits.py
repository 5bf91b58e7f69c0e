"""Limits on an engine's use of the machine."""

from typing import Literal

from msgspec import Struct

DecodeAhead = Literal["auto", "on", "off"]
"""Whether the next decode step is launched before the tokens of the last one are read.

    auto  where tokens are sampled on the device: on a GPU, with a vocabulary that is not small
    on    tokens are sampled on the device everywhere, also where the host is faster
    off   every step is read before the next one is launched
"""


class EngineLimits(Struct, frozen=True, kw_only=True):
    """Limits of an engine, and when it reads sampled tokens."""

    max_rows: int = 256  # maximum number of distinct rows that are decoded together
    prefill_tokens: int | None = None  # padded prompt tokens per forward pass while no row is
    # decoded; None: by memory, at most 4096
    chunk_tokens: int = 512  # padded prompt tokens per forward pass while rows wait to decode
    cache_bytes: int | None = None  # KV cache of the rows being decoded, bytes; None: by memory
    prefix_bytes: int | None = None  # prefix cache (keys and values), bytes; 0: none; None: same
    memory_bytes: int | None = None  # memory that may be used in all; None: most of the device's
    decode_ahead: DecodeAhead = "auto"  # when the tokens of a step are read: DecodeAhead


class TrainingSize(Struct, frozen=True, kw_only=True):
    """What the memory of training depends on, besides the model."""

    rank: int = 8  # rank of LoRA
    layers: int = 16  # layers with LoRA, counted from the last; at most all of them
    before: int = 0  # first layers of the model, which have none
    micro_batch_tokens: int | None = None  # padded tokens of a pass; None: by memory
    checkpointing: bool = False  # whether layers are computed again in the backward pass
    others: int = 1  # other policies whose logits a step needs: the reference, the EMA
    policies: int = 1  # adapters that are trained
    limit_bytes: int | None = None  # memory that may be used; None: most of the device's
    engine: EngineLimits | None = EngineLimits()  # None: no engine runs in this process
