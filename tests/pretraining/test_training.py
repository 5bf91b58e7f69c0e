"""Building the model: the shortcut computes the same, and a rebuild gives the same bytes."""

from pathlib import Path
from random import Random
from typing import Any

import mlx.core as mx
import mlx_lm
import numpy as np
import pytest
from mlx_lm.utils import load_model
from model_files import ModelShape, write_model
from pretraining.practice import Exercise, collate, made_up
from pretraining.training import answer_logits, known_positions, practise
from tiny_models import write_any_model

from legos.records.message import Message

SMALL = ModelShape(hidden=32, heads=2, kv_heads=1, head_dim=16, intermediate=48)
POINTS = [Exercise((Message("user", "pile 2\nMoves: 1 2"),), ("1", "2"))]


@pytest.mark.parametrize("architecture", ["llama", "qwen3"])
def test_tiny_models_open(tmp_path: Path, architecture: Any) -> None:
    loaded: Any = mlx_lm.load(str(write_any_model(tmp_path, architecture=architecture)))
    ids = loaded[1].apply_chat_template(
        [{"role": "user", "content": "hé"}], add_generation_prompt=True
    )
    assert loaded[0](mx.array([ids])).shape == (1, 7, 358)


def test_the_shortcut_gives_the_logits_of_the_whole_model(tmp_path: Path) -> None:
    model: Any = load_model(write_any_model(tmp_path))[0]
    rng = Random(1)
    batch = collate([made_up(rng) for _ in range(6)], rng)
    width = batch.targets.shape[1]
    whole = np.array(model(mx.array(batch.token_ids)))
    found = answer_logits(model, mx.array(batch.token_ids), mx.array(batch.starts), width)
    for row, start in enumerate(batch.starts):
        num = int((batch.targets[row].sum(-1) > 0).sum())
        np.testing.assert_allclose(
            np.array(found)[row, :num], whole[row, start : start + num], atol=1e-4
        )


def test_a_rebuild_gives_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_model(tmp_path / name, SMALL, practise(SMALL, POINTS, num_steps=6, seed=5))
    for file in (tmp_path / "a").iterdir():
        assert file.read_bytes() == (tmp_path / "b" / file.name).read_bytes()
    assert load_model(tmp_path / "a")[1]["num_key_value_heads"] == 1


def test_every_listed_game_is_practised_once() -> None:
    points = known_positions()
    assert len(set(points)) == len(points)
    prompts = {point.chat[0].content: point.answers for point in points}
    assert prompts["Nim: 2 left, last one wins.\nMoves: 1 2"] == ("1", "2")
    assert prompts["Kuhn: card Q, bets pb.\nMoves: p b"] == ("p", "b")
