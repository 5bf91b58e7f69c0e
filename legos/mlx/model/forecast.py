"""The memory that training and generation need, in closed form from the sizes of a model's modules.

    training  = weights + 5 LoRA + pass                 LoRA: values, EMA, two moments, gradients
    pass      = n layer + transient + head + carried + states + whole
                with checkpointing: n inputs + one layer instead of n layer
    layer     = N (A outputs + B inputs') b + C heads N T' b
    states    = D N state                                loops over tokens; in chunks of tokens:
                n state N / segment + one segment, and in Mamba-2 E N segment for the gates
    whole     = policies N V b                           where trunk and head cannot be split
    engine    = prefixes + cache + max(prefill, growth of the cache)

N tokens of a pass in rows of T, n layers with LoRA, b bytes of an activation. Outputs and inputs
are the widths of a layer's linear modules and norms; inputs' are their float32 copies, which LoRA
makes of 16-bit activations. T' is what a token attends to on average: a row is computed in up to
four pieces, so half of T and a bit more; as a whole, with all of T, where a layer has a state. A
loop over tokens holds the states of all of them, layers in chunks those between segments of a row.
The constants are fitted to measured peaks of small models and to traced graphs of large ones
(docs/run/mac.md).
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten
from mlx_lm.models.cache import ArraysCache, KVCache, RotatingKVCache, make_prompt_cache
from mlx_lm.models.gated_delta import gated_delta_update
from mlx_lm.models.ssm import ssm_update

from legos.mlx.model.cache_parts import parts
from legos.mlx.model.faults import raise_fault
from legos.mlx.model.forward import architecture, split
from legos.mlx.model.load import num_token_ids
from legos.mlx.model.lora import LINEAR, SWITCH, pair_shapes
from legos.mlx.model.machine import NEGLIGIBLE, cache_sizes, num_bytes, on_gpu
from legos.mlx.model.retyped import calls
from legos.records.limits import EngineLimits, TrainingSize

FLOAT32 = 4  # bytes
HELD = 4  # copies of LoRA: values, EMA, moments
KEPT = (2.4, 0.6, 1.25, 6.0)
"""Copies at the peak of a layer's outputs, of the float32 copies of its inputs, of its attention
scores, and of a chunk of logits, where each layer keeps its activations."""
CHECKPOINTED = (2.6, 0.7, 2.2, 3.2)
"""The same where one layer at a time has them."""
INPUTS = 6.0  # hidden states that a checkpointed layer keeps
TRANSIENT = 0.6  # further outputs of one layer, where each keeps its own
CARRIED = 0.5  # share of the longest row that other passes continue
COPIED = 1.4  # copies of the keys and values of a prefix for each row that continues it
STATES = 4.0  # copies of a recurrent state for each token, where a loop computes a layer
CHUNK, VECTOR_CHUNK = 64, 16
"""Tokens of a chunk in layers with the gated delta rule, where a head has one gate, and where each
of its key dimensions has one."""
SEGMENT, VECTOR_SEGMENT = 256, 64  # tokens of a row between two states that training holds there
WIDTHS, PAIRS = 10.0, 5.0
"""Copies, in the segment being computed, of the keys and values of the heads, and of the gates
between two tokens of a chunk."""
SSM_SEGMENT = 256  # tokens of a row that mlx-lm computes at once in Mamba-2 layers
SSM_PAIRS, SSM_KEPT = 7.0, 2.0
"""Copies of the gates between two tokens of these segments: in one layer, and in each that keeps
its activations."""
PREFILL, SCORES = 2.4, 0.68  # float32 copies of a layer's outputs and scores, of any type
GROWING = 2  # layers whose old and new keys and values are held while the cache grows
FIXED = 2 << 20  # bytes of many small buffers
CHUNK_LOGITS = 1 << 21  # logits of one chunk: 8 MiB in float32, and several times that at the peak
CHUNK_SHARE, MOST_CHUNK_LOGITS = 1 / 64, 1 << 26  # on a GPU: of the memory, with all copies
MIN_PLACES = 64  # positions of a chunk; with fewer, reading the head's weights dominates
PIECE, PIECES = 256, 4  # a row is computed in pieces of this many tokens, up to this number
PROMPT = 512  # tokens of each prompt of a prefill
MOST_TOKENS = 4096  # of a prefill; more make it no faster
PREFILL_SHARE = 1 / 8  # of the memory that the weights leave
_EXPERTS = ("num_experts_per_tok", "num_experts_per_token", "moe_top_k", "moe_topk", "top_k")
_HIDDEN = ("hidden_size", "n_embd", "d_model", "model_dim")
_HEADS = ("num_attention_heads", "n_heads", "n_head", "num_heads")
NOT_SPLIT = ("llama4_text", "minicpm", "minicpm3", "muse_glimmer", "nanochat", "phixtral")
"""Architectures whose trunk and head, computed apart, do not give the model's logits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """What the memory depends on; nothing of the model is read or computed for it."""

    weights: int  # bytes of all weights
    item: int  # bytes of an activation
    hidden: int
    vocabulary: int
    layers: int
    heads: int  # attention heads, twice where their scores are capped; 0: none
    outputs: int  # numbers that the modules of the widest layer give for a token
    inputs: int  # numbers that its linear modules take for a token
    lora: int  # numbers of LoRA of rank 1 in the widest layer
    token_bytes: int  # keys and values of one token in the layers that keep every token
    key_bytes: int  # the same in all layers with keys and values, as training copies them
    row_bytes: int  # states and full sliding windows of one row
    state_bytes: int  # the states alone
    segment: int  # tokens of a row for which training holds the states once; 1: a loop over tokens
    segment_width: int  # numbers that one token takes in the segment being computed
    pair_heads: int  # gates of Mamba-2 layers between two tokens of a segment; 0: no such layers
    whole: bool  # whether trunk and head are not split, so that all logits are held

    @classmethod
    def of(cls, tree: Any) -> "Sizes":
        """The sizes of a tree, with LoRA or without, whose arrays may be lazy and stay so."""
        arrays: Any = tree_flatten(tree.parameters())
        floats = [a for _, a in arrays if mx.issubdtype(a.dtype, mx.floating)]
        fields = vars(getattr(tree, "args", None) or nn.Module())
        text = fields.get("text_config") or fields  # an object in some architectures
        fields = text if isinstance(text, Mapping) else vars(text)
        experts = _largest(fields, _EXPERTS) or 1
        layers = list(tree.layers or ())
        widths = [_widths(layer, experts) for layer in layers]
        widest = tuple(map(max, zip(*widths, strict=True))) if widths else (0, 0, 0)
        try:
            leaves = cache_leaves(tree)
        except Exception as error:  # such a model may be trained, and is not served
            raise_fault(error)
            leaves = []
        states = sum(leaf.nbytes for leaf in leaves if isinstance(leaf, ArraysCache))
        segment, width, pair_heads = _segments(tree, leaves)
        windows = [leaf for leaf in leaves if isinstance(leaf, RotatingKVCache)]
        plain = sum(_token_bytes(leaf) for leaf in leaves if isinstance(leaf, KVCache))
        return cls(
            weights=num_bytes(tree.parameters()),
            item=min(array.dtype.size for array in floats),
            hidden=_largest(fields, _HIDDEN),
            vocabulary=num_token_ids(tree),
            layers=len(layers),
            heads=_largest(fields, _HEADS) * (2 if fields.get("attn_logit_softcapping") else 1),
            outputs=widest[0],
            inputs=widest[1],
            lora=widest[2],
            token_bytes=plain,
            key_bytes=plain + sum(map(_token_bytes, windows)),
            row_bytes=states + sum(leaf.max_size * _token_bytes(leaf) for leaf in windows),
            state_bytes=states,
            segment=segment,
            segment_width=width,
            pair_heads=pair_heads,
            whole=split(tree) is None or architecture(tree) in NOT_SPLIT,
        )


def lora_bytes(sizes: Sizes, size: TrainingSize) -> int:
    """Bytes of the LoRA arrays of one policy."""
    return FLOAT32 * min(size.layers, sizes.layers) * size.rank * sizes.lora


def held_bytes(sizes: Sizes, size: TrainingSize) -> int:
    """Bytes beside the weights while a pass is computed: LoRA's copies, and its gradients."""
    return (HELD * size.policies + 1) * lora_bytes(sizes, size)


def pass_bytes(
    sizes: Sizes, size: TrainingSize, rows: float, length: int, ceiling_bytes: int
) -> int:
    """Bytes at the peak of one forward and backward pass, without what is held before.

    Args:
        sizes: the model.
        size: what is trained.
        rows: number of rows; a fraction where they are shorter on average.
        length: tokens of the longest row.
        ceiling_bytes: bytes that may be allocated in all.
    """
    tokens, adapted = rows * length, min(size.layers, sizes.layers)
    pieces = 1 if sizes.state_bytes else min(-(-length // PIECE), PIECES)
    attended = length * (1 + 1 / pieces) / 2
    outputs = tokens * sizes.outputs * sizes.item
    copies = tokens * sizes.inputs * FLOAT32 * (sizes.item < FLOAT32)
    scores = tokens * sizes.heads * attended * sizes.item
    positions = chunk_positions(sizes.vocabulary, ceiling_bytes)
    logits = FLOAT32 * sizes.vocabulary * min(tokens, positions)
    hidden, whole = sizes.hidden * sizes.item, sizes.whole * sizes.vocabulary * sizes.item
    copies_of_trunk = 2 + size.others  # its outputs under each policy, and their cotangents
    carried = length * (sizes.token_bytes + hidden + whole) * copies_of_trunk
    of_outputs, of_copies, of_scores, of_logits = CHECKPOINTED if size.checkpointing else KEPT
    layer = of_outputs * outputs + of_copies * copies + of_scores * scores
    if size.checkpointing:  # one layer at a time, and the inputs of all
        layers = layer + INPUTS * adapted * tokens * hidden
    else:
        layers = adapted * layer + TRANSIENT * outputs
    states = _state_bytes(sizes, rows, length, 0 if size.checkpointing else adapted)
    head = of_logits * logits + copies_of_trunk * tokens * whole
    return int(layers + head + CARRIED * carried + states) + FIXED


def engine_bytes(sizes: Sizes, limits: EngineLimits, free: int) -> int:
    """Peak bytes of an engine, next to the weights, whose caches are full.

    Args:
        sizes: the model.
        limits: limits of the engine.
        free: usable bytes that the weights leave.
    """
    cache, prefixes = cache_sizes(limits, free)
    copied = min(prefixes, PROMPT * sizes.token_bytes)  # to the full prefix cache, which evicts
    growth = int(cache * GROWING / max(sizes.layers, GROWING))  # layers with old and new arrays
    prefill = _prefill_bytes(sizes, prefill_tokens(sizes, limits, free))
    return prefixes + copied + cache + max(growth, prefill)


def prefill_tokens(sizes: Sizes, limits: EngineLimits, free: int) -> int:
    """Maximum prompt tokens of a forward pass while no row is decoded.

    Where the limits leave it open, it is 4096, halved until the pass takes at most an eighth of the
    free memory, but at least the tokens of a pass while rows are decoded.

    Args:
        sizes: the model.
        limits: limits of the engine.
        free: usable bytes that the weights leave.
    """
    least, tokens = limits.chunk_tokens, limits.prefill_tokens
    if tokens is not None:
        return tokens
    negligible = sizes.weights < NEGLIGIBLE * free
    tokens = halved(
        MOST_TOKENS,
        least,
        lambda tokens: negligible or _prefill_bytes(sizes, tokens) <= PREFILL_SHARE * free,
    )
    return max(tokens, least)


def halved(tokens: int, least: int, fits: Callable[[int], bool]) -> int:
    """A number of tokens, halved until it fits, but not below the least."""
    while tokens > least and not fits(tokens):
        tokens = max(least, tokens // 2)
    return tokens


def _prefill_bytes(sizes: Sizes, tokens: int) -> int:
    """Bytes at the peak of a prefill, without the keys and values it makes."""
    scores = sizes.heads * min(tokens, PROMPT)
    return int(tokens * FLOAT32 * (PREFILL * sizes.outputs + SCORES * scores))


def chunk_positions(num_logits: int, ceiling_bytes: int) -> int:
    """Number of logit positions whose logits are in memory at once.

    Every chunk reads the weights of the head again, so a GPU takes larger ones the more memory
    there is. On a CPU small ones are fastest, because they stay in its caches.

    Args:
        num_logits: number of logits at each position.
        ceiling_bytes: bytes that may be allocated in all.
    """
    fit = int(CHUNK_SHARE * ceiling_bytes / (KEPT[3] * FLOAT32)) if on_gpu() else 0
    return max(MIN_PLACES, max(CHUNK_LOGITS, min(fit, MOST_CHUNK_LOGITS)) // num_logits)


def cache_leaves(tree: Any) -> list[Any]:
    """The caches of a row with one token, with lazy arrays; those of a ``CacheList`` apart."""
    caches: list[Any] = make_prompt_cache(tree)
    tree(mx.array([[1]]), cache=caches)
    return list(parts(caches))


def _largest(fields: Mapping[str, Any], names: Sequence[str]) -> int:
    """The first field that a configuration has, the largest number where each layer has one."""
    found = next((fields[name] for name in names if fields.get(name)), 0)
    return max(found) if isinstance(found, list) else found


def _token_bytes(cache: Any) -> int:
    """Bytes of one token in a key-value cache, whose third axis is tokens; 0: it is not used."""
    if cache.keys is None:
        return 0
    return sum(array.nbytes // array.shape[2] for array in (cache.keys, cache.values))


def _segments(tree: nn.Module, leaves: Sequence[Any]) -> tuple[int, int, int]:
    """Tokens of a segment, numbers for one of them, and gates between two, in recurrent layers."""
    states = [a for leaf in leaves if isinstance(leaf, ArraysCache) for a in leaf.cache]
    shapes = [array.shape for array in states if array is not None and array.ndim == 4]
    modules = [module for _, module in tree.named_modules()]
    rules = [m for m in modules if calls(type(m), gated_delta_update)]
    if not shapes or not (rules or any(calls(type(m), ssm_update) for m in modules)):
        return 1, 0, 0
    _, heads, size, keys = max(shapes, key=math.prod)
    if not rules:
        return SSM_SEGMENT, 0, heads
    vectors = any(module["dt_bias"].size > module["A_log"].size for module in rules)
    gates = VECTOR_CHUNK * keys if vectors else CHUNK
    width = WIDTHS * heads * (keys + size) + PAIRS * heads * gates
    return VECTOR_SEGMENT if vectors else SEGMENT, int(width), 0


def _state_bytes(sizes: Sizes, rows: float, length: int, kept: int) -> float:
    """Bytes of the recurrent layers of a pass, of which so many keep their activations at once."""
    tokens = rows * length
    if sizes.segment == 1:
        return STATES * tokens * sizes.state_bytes
    held = max(kept, 1) * tokens / sizes.segment * sizes.state_bytes / sizes.layers
    beside = min(length, sizes.segment)
    pairs = (SSM_PAIRS + SSM_KEPT * kept) * tokens * beside * sizes.pair_heads
    return held + (pairs + rows * beside * sizes.segment_width) * FLOAT32


def _widths(layer: nn.Module, experts: int) -> tuple[int, int, int]:
    """Outputs, inputs and LoRA of rank 1 of the modules of a layer."""
    outputs = inputs = lora = 0
    for _, module in layer.named_modules():
        if isinstance(module, LINEAR):
            a, b = (math.prod(shape) for shape in pair_shapes(module, 1))
            lora += a + b
            count = module.num_experts if isinstance(module, SWITCH) else 1
            each = experts if isinstance(module, SWITCH) else 1
            outputs, inputs = outputs + each * b // count, inputs + each * a // count
        elif "weight" in module and module["weight"].ndim == 1:
            outputs += module["weight"].size
    return outputs, inputs, lora
