"""Building the model: the shortcut computes the same, and a rebuild gives the same bytes."""

from pathlib import Path
from random import Random
from typing import Any

import mlx.core as mx
import mlx_lm
import numpy as np
import pytest
from mlx_lm.utils import load_model
from tiny_models import write_any_model

from legos.builtin.files import ModelShape, write_model
from legos.builtin.practice import Exercise, collate, made_up, prompt_ids, text_ids
from legos.mlx.pretraining import ROWS, answer_logits, imitate, known_positions, practise
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


def test_a_model_gives_answers_as_often_as_the_plays_that_it_imitates(tmp_path: Path) -> None:
    chat = (Message("user", "A coin?"), Message("assistant", "Yes."), Message("user", "Then?"))
    played = Exercise(chat, ("heads", "tails", "tails", "tails"))
    imitate([played] * (60 * ROWS), tmp_path)
    prompt = prompt_ids(chat)
    model: Any = load_model(tmp_path)[0]
    logits = np.array(model(mx.array([prompt]))[0, -1])
    first = [text_ids(text)[0] for text in ("heads", "tails")]
    chances = np.exp(logits[first] - np.logaddexp.reduce(logits))
    np.testing.assert_allclose(chances, [1 / 4, 3 / 4], atol=0.02)


def test_every_listed_game_is_practised_once() -> None:
    points = known_positions()
    assert len(set(points)) == len(points)
    prompts = {point.chat[0].content: point.answers for point in points}
    assert prompts["Nim: 2 left, last one wins.\nMoves: 1 2"] == ("1", "2")
    assert prompts["Kuhn: card Q, bets pb.\nMoves: p b"] == ("p", "b")
