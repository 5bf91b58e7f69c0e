"""Make the built-in model: supervised practice of uniformly random legal play.

Run ``python -m legos.mlx.warmup --out DIR``. The same seed gives the same bytes on the same machine.
"""

import argparse
import logging
import math
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from random import Random

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.optimizers import AdamW, clip_grad_norm
from mlx.utils import tree_flatten, tree_map
from mlx_lm.models.llama import Model, ModelArgs

from legos.builtin.files import ModelShape, Weights, model_config, random_weights, write_model
from legos.builtin.practice import Exercise, collate, made_up

__all__ = ["main", "practise"]

logger = logging.getLogger(__name__)


def practise(
    shape: ModelShape,
    positions: Sequence[Exercise],
    *,
    num_steps: int,
    seed: int,
    rows: int = 96,
    share: float = 0.2,
    peak: float = 4e-3, opt='adam', clip=1.0, cur=None,
) -> Weights:
    """Train fresh weights on known positions and made-up ones.

    Args:
        shape: sizes of the model, a llama.
        positions: decision points of real games; each batch draws from them.
        num_steps: optimiser steps.
        seed: of the weights and of every draw.
        rows: exercises per step.
        share: part of a batch that comes from `positions`.
        peak: highest learning rate.

    Returns:
        The weights under their hub names.
    """
    model = Model(ModelArgs.from_dict(model_config(shape)))
    fresh = random_weights(shape, np.random.default_rng(seed))
    model.load_weights([(name, mx.array(array)) for name, array in fresh.items()])
    optimizer = make_optimizer(opt, model)
    value_and_grad = nn.value_and_grad(model, partial(_loss, model))
    rng = Random(seed)
    started = time.monotonic()
    total = 0.0
    for step, batch in zip(range(num_steps), _batches(positions, rows, share, rng, num_steps, cur)):
        rate = _schedule(step, num_steps)
        for o, p in optimizer: o.learning_rate = p * rate * peak
        loss, gradients = value_and_grad(
            mx.array(batch.token_ids), mx.array(batch.starts), mx.array(batch.targets)
        )
        flat = dict(tree_flatten(gradients))
        gradients, _ = clip_grad_norm(gradients, clip)
        apply(optimizer, model, gradients)
        mx.eval(model.parameters(), [o.state for o, _ in optimizer], loss)
        t = np.log(np.maximum(batch.targets, 1e-9)) * batch.targets
        total += (loss.item() + float(t.sum())) / batch.targets.sum()
        if step % 100 == 99 or step == num_steps - 1:
            logger.info(
                "step %d, excess %.4f nats, %.0f s cpu %.0f", step + 1, total / 100, time.monotonic() - started, time.process_time()
            )
            total = 0
    return {name: np.array(array) for name, array in tree_flatten(model.parameters())}

def make_optimizer(kind, model):
    if kind == "adam":
        return [(AdamW(learning_rate=0.0, betas=[0.9, 0.98], weight_decay=0.01), 1.0)]
    from mlx.optimizers import Muon
    return [(Muon(learning_rate=0.0, momentum=0.95, weight_decay=0.01), 5.0), (AdamW(learning_rate=0.0, betas=[0.9, 0.98], weight_decay=0.01), 1.0)]

def apply(opts, model, gradients):
    from mlx.utils import tree_unflatten
    if len(opts) == 1:
        opts[0][0].update(model, gradients); return
    flat = tree_flatten(gradients)
    m = [(k, v) for k, v in flat if v.ndim == 2 and "layers" in k]
    a = [(k, v) for k, v in flat if not (v.ndim == 2 and "layers" in k)]
    opts[0][0].update(model, tree_unflatten(m)); opts[1][0].update(model, tree_unflatten(a))

def _batches(positions, rows, share, rng, num_steps, cur):
    step = 0
    while True:
        known = round(rows * share)
        pool = [made_up(rng) for _ in range(8 * (rows - known))]
        pool.sort(key=lambda e: len(e.view) + sum(map(len, e.legal)))
        n = rows - known
        parts = [pool[i * n : (i + 1) * n] for i in range(8)]
        rng.shuffle(parts)
        for part in parts:
            yield collate(part + [rng.choice(positions) for _ in range(known)], rng)
            step += 1


def _loss(model: Model, token_ids: mx.array, starts: mx.array, targets: mx.array) -> mx.array:
    logits = answer_logits(model, token_ids, starts, targets.shape[1])
    logp = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
    return -(targets * logp).sum() / token_ids.shape[0]


def answer_logits(model: Model, token_ids: mx.array, starts: mx.array, width: int) -> mx.array:
    """Logits at the answer positions alone; the last layer asks no question elsewhere.

    Without a SIMD exponential, most of a step on a processor goes to softmax and SwiGLU, and this
    leaves out almost half of them.

    Args:
        model: a llama.
        token_ids: [B, T].
        starts: [B] first answer position of every row.
        width: A, number of answer positions.

    Returns:
        [B, A, V]; rows past T are those of the last position.
    """
    trunk = model.model
    last, attention = trunk.layers[-1], trunk.layers[-1].self_attn
    hidden = trunk.embed_tokens(token_ids)
    for layer in trunk.layers[:-1]:
        hidden = layer(hidden, "causal")
    length = token_ids.shape[1]
    where = mx.minimum(starts[:, None] + mx.arange(width), length - 1)
    asking = mx.take_along_axis(hidden, where[:, :, None], axis=1)

    def heads(rows: mx.array, num_heads: int) -> mx.array:
        return rows.reshape(*rows.shape[:2], num_heads, -1).transpose(0, 2, 1, 3)

    normed = last.input_layernorm(hidden)
    queries = heads(attention.q_proj(last.input_layernorm(asking)), attention.n_heads)
    found = mx.fast.scaled_dot_product_attention(
        attention.rope(queries, offset=starts),
        attention.rope(heads(attention.k_proj(normed), attention.n_kv_heads)),
        heads(attention.v_proj(normed), attention.n_kv_heads),
        scale=attention.scale,
        mask=(mx.arange(length) <= where[:, :, None])[:, None],
    )
    asking = asking + attention.o_proj(found.transpose(0, 2, 1, 3).reshape(*asking.shape[:2], -1))
    asking = asking + last.mlp(last.post_attention_layernorm(asking))
    return model.lm_head(trunk.norm(asking))


def _schedule(step: int, num_steps: int) -> float:
    warm = 0.05 * num_steps
    if step < warm:
        return (step + 1) / (warm + 1)
    return 0.5 * (1 + math.cos(math.pi * (step - warm) / (num_steps - warm)))
