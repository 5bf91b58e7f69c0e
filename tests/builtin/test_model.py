"""The committed model: small, legal and near uniform, and the same in every library."""

import math
from collections.abc import Sequence
from random import Random
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.utils import load_model
from model_files import ModelShape, weight_shapes
from pretraining.practice import Exercise, made_up, prompt_ids, text_ids
from pretraining.training import known_positions
from safetensors.numpy import load_file
from vocabulary import END, token_id

from legos.builtin import builtin_path
from legos.records.message import Message


@pytest.fixture(scope="module")
def model() -> Any:
    return load_model(builtin_path())[0]


def chances(model: Any, exercises: Sequence[Exercise]) -> list[np.ndarray]:
    """Probability of every answer, as a whole message."""
    found: list[np.ndarray] = []
    for exercise in exercises:
        prompt = prompt_ids(exercise.chat)
        spelled = [[*text_ids(answer), token_id(END)] for answer in exercise.answers]
        width = max(map(len, spelled))
        rows = [prompt + answer + [0] * (width - len(answer)) for answer in spelled]
        logits = model(mx.array(rows))[:, len(prompt) - 1 :]
        logp = np.array(logits - mx.logsumexp(logits, axis=-1, keepdims=True))
        sums = [logp[row, np.arange(len(a)), a].sum() for row, a in enumerate(spelled)]
        found.append(np.exp(sums))
    return found


def test_it_is_small() -> None:
    size = sum(file.stat().st_size for file in builtin_path().iterdir())
    assert size < 2_000_000
    weights = load_file(builtin_path() / "model.safetensors")
    assert {name: array.shape for name, array in weights.items()} == weight_shapes(ModelShape())
    assert all(array.dtype == np.float32 for array in weights.values())
    assert sum(math.prod(array.shape) for array in weights.values()) == 152_640


@pytest.mark.parametrize("game", ["Nim", "Kuhn"])
def test_it_plays_the_shipped_games_uniformly(model: Any, game: str) -> None:
    points = [point for point in known_positions() if point.chat[0].content.startswith(game)]
    assert len(points) == {"Nim": 21, "Kuhn": 12}[game]
    for point, probability in zip(points, chances(model, points), strict=True):
        assert probability.sum() > 0.99, point
        assert abs(probability - 1 / len(probability)).max() < 0.03, point


def test_it_plays_made_up_games_mostly_legally(model: Any) -> None:
    rng = Random(20_000_001)  # far from the seeds that a build draws from
    mass = [probability.sum() for probability in chances(model, [made_up(rng) for _ in range(100)])]
    assert np.mean(mass) > 0.92


@pytest.mark.parametrize(
    ("view", "moves"),
    [
        ("Pig: you 80, rival 83, turn total 15.", "roll hold"),
        ("Rock, paper, scissors: best of three, round 2.", "rock paper scissors"),
        ("Prisoner's dilemma, round 3, last: defect.", "cooperate defect"),
        ("Goofspiel: prize 3, your cards 1 2 4.", "1 2 4"),
        ("x 2 3\nx o 6\n7 x o\nYou are o.", "2 3 6 7"),
        ("Connect four, column to drop in", "1 2 3 4 5 6 7"),
        ("Heaps 3 4 5. Take from a heap.", "a1 a2 b1 b2 c1"),
        ("Sticks: 32 on the table. Whoever takes the last stick loses.", "1 2 3 4"),
    ],
)
def test_it_starts_a_game_of_ones_own_mostly_legally(model: Any, view: str, moves: str) -> None:
    legal = tuple(moves.split())
    asked = Exercise((Message("user", f"{view}\nMoves: {moves}"),), legal)
    (probability,) = chances(model, [asked])
    assert probability.sum() > 0.9
    assert probability.min() > 0.2 / len(legal)


@pytest.mark.torch
@pytest.mark.slow
def test_torch_computes_the_same_logits(model: Any) -> None:
    import torch
    import transformers

    twin = transformers.AutoModelForCausalLM.from_pretrained(builtin_path(), dtype=torch.float32)
    points = known_positions()[::5] + [made_up(Random(seed)) for seed in range(8)]
    for point in points:
        ids = prompt_ids(point.chat)
        with torch.no_grad():
            expected = twin(torch.tensor([ids])).logits.numpy()
        np.testing.assert_allclose(np.array(model(mx.array([ids]))), expected, atol=1e-4)
