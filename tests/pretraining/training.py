"""Supervised training of the built-in model: new weights, on uniformly random legal play."""

import logging
import time
from collections.abc import Iterator, Sequence
from functools import partial
from random import Random
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.optimizers import AdamW, clip_grad_norm
from mlx.utils import tree_flatten
from mlx_lm.models.llama import Model, ModelArgs
from model_files import ModelShape, Weights, model_config, random_weights
from pretraining.practice import Exercise, Exercises, collate, echo, made_up, prompt_ids

from legos.arena.registry import find_arena
from legos.games.exact import GameTree
from legos.records.message import Message

__all__ = ["NUM_STEPS", "answer_logits", "known_positions", "practise"]

GAMES = ("nim", "kuhn")  # the games that the model should know
NUM_STEPS = 3200
ROWS = 32  # exercises per step
KNOWN = 0.2  # fraction of a batch that is positions of ``GAMES``
COPYING = 0.12  # fraction of the steps that train copying, before any moves
PEAK_RATE = 1e-2
LONGEST_ECHO = 24  # characters
POOL = 8  # batches that are sorted by length together, to reduce padding

logger = logging.getLogger(__name__)


def practise(
    shape: ModelShape, positions: Sequence[Exercise], *, num_steps: int = NUM_STEPS, seed: int = 0
) -> Weights:
    """Train fresh weights, first on copying, then on known positions and made-up ones.

    Args:
        shape: sizes of the model, a llama.
        positions: decision points of games that the model should know, at least one.
        num_steps: number of optimiser steps.
        seed: seed of the weights and of every random choice.

    Returns:
        The weights under their hub names.
    """
    model = Model(ModelArgs.from_dict(model_config(shape)))
    fresh = random_weights(shape, np.random.default_rng(seed))
    model.load_weights([(name, mx.array(array)) for name, array in fresh.items()])
    optimizer = AdamW(learning_rate=0.0, betas=[0.9, 0.98], weight_decay=0.01)
    loss_and_gradient = nn.value_and_grad(model, partial(_loss, model))
    began = time.monotonic()
    for step, batch in enumerate(_batches(positions, num_steps, Random(seed)), start=1):
        optimizer.learning_rate = PEAK_RATE * _schedule(step, num_steps)
        loss, gradient = loss_and_gradient(
            mx.array(batch.token_ids), mx.array(batch.starts), mx.array(batch.targets)
        )
        gradient, _ = clip_grad_norm(gradient, 1.0)
        optimizer.update(model, gradient)
        mx.eval(model.parameters(), optimizer.state, loss)
        if step % 100 == 0 or step == num_steps:
            excess = loss.item() - _entropy(batch)
            seconds = time.monotonic() - began
            logger.info(
                "step %d: %.4f nats an answer over the entropy, %.0f s", step, excess, seconds
            )
    return {name: np.array(array) for name, array in tree_flatten(model.parameters())}


def answer_logits(model: Model, token_ids: mx.array, starts: mx.array, width: int) -> mx.array:
    """Logits at the answer positions; the last layer is computed only there.

    On a CPU, the exponentials of softmax and SwiGLU take most of a step; this omits almost half of
    them.

    Args:
        model: a llama.
        token_ids: [B, T].
        starts: [B] first answer position of every row.
        width: number of answer positions A.

    Returns:
        [B, A, V] logits; positions beyond T repeat the last one and have no meaning.
    """
    trunk: Any = model.model
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


def _loss(model: Model, token_ids: mx.array, starts: mx.array, targets: mx.array) -> mx.array:
    logits = answer_logits(model, token_ids, starts, targets.shape[1])
    logp = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
    return -(targets * logp).sum() / targets.shape[0]


def _entropy(batch: Exercises) -> float:
    targets = batch.targets
    return float(-(targets * np.log(np.maximum(targets, 1e-9))).sum() / len(targets))


def _schedule(step: int, num_steps: int) -> float:
    """Learning rate factor: linear warm-up over 3 % of the steps, then linear decay to near 0."""
    warm = 0.03 * num_steps
    return step / warm if step < warm else (num_steps - step + 1) / (num_steps - warm + 1)


def _batches(positions: Sequence[Exercise], num_steps: int, rng: Random) -> Iterator[Exercises]:
    num_echoes = round(COPYING * num_steps)
    num_known = round(KNOWN * ROWS)
    num_made_up = ROWS - num_known
    for _ in range(num_echoes):
        length = rng.randint(4, LONGEST_ECHO)
        yield collate([echo(rng, length=length) for _ in range(ROWS)], rng)
    parts: list[list[Exercise]] = []
    for _ in range(num_steps - num_echoes):
        if not parts:
            drawn = [made_up(rng) for _ in range(POOL * num_made_up)]
            drawn.sort(key=lambda exercise: len(prompt_ids(exercise.chat)))
            parts = [drawn[at : at + num_made_up] for at in range(0, len(drawn), num_made_up)]
            rng.shuffle(parts)
        known = [rng.choice(positions) for _ in range(num_known)]
        yield collate([*parts.pop(), *known], rng)


def known_positions(games: Sequence[str] = GAMES) -> list[Exercise]:
    """Every decision point of some installed games, with the prompt of a seat, each prompt once.

    Raises:
        ArenaError: no game has that name, or it is too large to list.
    """
    found: dict[Exercise, None] = {}
    for name in games:
        for point in GameTree(find_arena(name)()).graph.points:
            found[Exercise((Message("user", point.prompt),), point.legal)] = None
    return list(found)
