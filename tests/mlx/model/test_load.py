"""Token ids and positions that a model lacks are refused before they read foreign memory."""

import json
import logging
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from load_peaks import load_check_peak
from tiny_models import write_any_model

from legos.errors import ModelError, RequestError
from legos.fakes import make_sample
from legos.losses.objective import Objective
from legos.mlx.device import MlxDevice
from legos.mlx.model import load
from legos.records.limits import TrainingSize
from legos.records.request import Request
from legos.weights.model_folder import context_length

ROWS = 300  # of the embedding; the tokenizer has more tokens


def test_token_ids_that_the_embedding_lacks_are_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = MlxDevice().load(str(write_any_model(tmp_path, architecture="qwen2", vocab=ROWS)))
    assert model.tokenizer.vocab_size > model.num_vocabulary == ROWS
    assert f"tokens but the model only {ROWS}" in caplog.text
    with pytest.raises(ModelError, match=r"token id 300 is out of range: .* 300 token ids"):
        model([5, 300])
    shape = model.lora_shape(rank=2, alpha=4.0, num_layers=1, head=False)
    model.add_lora(shape)
    backend = model.make_backend()
    sample = make_sample((5, 6, 310), positions=(2,), logprobs=-1.0)
    with pytest.raises(ModelError, match="token id 310 is out of range"):
        backend.forward_backward([sample], [1.0], Objective()).result()
    engine = model.make_engine()
    scored = engine.score([((5, 6), [(ROWS,)])], end_ids=(1,), adapter="base")
    with pytest.raises(RequestError, match="holds token 300; the vocabulary has 300"):
        scored.result()
    answer: Future[object] = Future()
    request = Request(prompt_ids=(5, 301), max_tokens=1, adapter="base")
    engine.submit([(0, request)], lambda results: answer.set_result(results[0][1]))
    assert "holds token 301; the vocabulary has 300" in str(answer.result(timeout=60))
    engine.close()
    model.close()


@pytest.mark.parametrize(
    ("config", "context"),
    [
        ({"max_position_embeddings": 77}, 77),
        ({"n_positions": 1024, "n_ctx": 512}, 512),
        ({"text_config": {"max_position_embeddings": 99}}, 99),
        ({"text_config": {"hidden_size": 1}, "max_position_embeddings": 88}, 88),
        ({"model_type": "gemma3", "text_config": {"model_type": "gemma3_text"}}, 131072),
        ({"model_type": "gemma3"}, 131072),
        ({"model_type": "mamba"}, 4096),
    ],
)
def test_the_context_has_several_names(tmp_path: Path, config: object, context: int) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert context_length(tmp_path) == context


@pytest.mark.parametrize("value", ["long", [4096], True, -1, float("inf"), float("nan")])
def test_a_context_that_is_no_number_is_named(tmp_path: Path, value: object) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"n_ctx": value}))
    with pytest.raises(ModelError, match=r"has n_ctx .*; expected a number of tokens"):
        context_length(tmp_path)


def test_an_unknown_context_is_bounded(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    (tmp_path / "config.json").write_text("{}")
    assert context_length(tmp_path) == 4096
    assert "add max_position_embeddings to it" in caplog.text


def test_a_model_that_would_end_the_process_is_not_loaded(tmp_path: Path) -> None:
    folder = write_any_model(tmp_path)
    config = json.loads((folder / "config.json").read_text()) | {"model_type": "phi3small"}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match=r"is a phi3small model: .* corrupts the memory"):
        MlxDevice().load(str(folder))


@pytest.mark.parametrize(
    ("architecture", "old", "new"),
    [
        ("llama", {"rope_theta": 77.0}, {"rope_theta": 77.0, "rope_type": "default"}),
        (
            "qwen2",
            {"rope_theta": 77.0, "rope_scaling": {"type": "linear", "factor": 3.0}},
            {"rope_theta": 77.0, "rope_type": "linear", "factor": 3.0},
        ),
        (
            "gemma3_text",
            {"rope_theta": 77.0, "rope_local_base_freq": 7.0},
            {
                "full_attention": {"rope_theta": 77.0, "rope_type": "default"},
                "sliding_attention": {"rope_theta": 7.0, "rope_type": "default"},
            },
        ),
    ],
)
def test_rotary_settings_are_read_as_transformers_5_writes_them(
    tmp_path: Path, architecture: Any, old: dict[str, Any], new: dict[str, Any]
) -> None:
    folder = write_any_model(tmp_path, architecture=architecture)
    config = json.loads((folder / "config.json").read_text())
    names = {"rope_theta", "rope_scaling", "rope_local_base_freq", "rope_parameters"}
    plain = {name: value for name, value in config.items() if name not in names}

    def logits(settings: dict[str, Any]) -> Any:
        (folder / "config.json").write_text(json.dumps(plain | settings))
        return load.load_tree(folder)(mx.array([[3, 5, 4, 6, 3, 7, 5, 4]]))

    expected = logits(old)
    assert mx.array_equal(logits({"rope_parameters": new}), expected)
    assert mx.array_equal(logits({"rope_parameters": {"rope_theta": 9.0}, **old}), expected)
    assert not mx.allclose(logits({}), expected)


def test_weights_for_torch_are_named_before_the_memory_is_planned(tmp_path: Path) -> None:
    folder = write_any_model(tmp_path)
    weights: Any = mx.load(str(folder / "model.safetensors"))
    name = "model.layers.0.self_attn.q_proj.weight"  # as bitsandbytes packs it
    weights |= {name: mx.zeros((8, 1), mx.uint8), f"{name}.absmax": mx.ones(1)}
    mx.save_safetensors(str(folder / "model.safetensors"), weights)
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "bitsandbytes", "load_in_4bit": True}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match=r"bitsandbytes, which MLX cannot read; .*--device torch"):
        MlxDevice().load(str(folder), training=TrainingSize(limit_bytes=1))


def test_a_model_whose_check_does_not_fit_is_not_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its weights alone would fit."""
    folder = write_any_model(tmp_path)
    size = sum(file.stat().st_size for file in folder.glob("model*.safetensors"))
    monkeypatch.setattr(load, "free_memory", lambda: int(1.05 * size))
    with pytest.raises(ModelError, match=r"loading and checking them takes .*in 4 bits or a small"):
        load.load_tree(folder)
    monkeypatch.setattr(load, "free_memory", lambda: int(1.15 * size))
    load.load_tree(folder)


def test_on_metal_a_model_gets_the_memory_that_the_gpu_may_use(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not all of the machine: macOS would swap."""
    monkeypatch.setattr(load.sys, "platform", "darwin")
    monkeypatch.setattr(load, "on_metal", lambda: True)
    monkeypatch.setattr(load, "usable_bytes", lambda: 123)
    assert load.free_memory() == 123


def test_packed_weights_count_as_many_parameters_as_unpacked_ones(tmp_path: Path) -> None:
    folders = [write_any_model(tmp_path / f"{bits}", bits=bits) for bits in (None, 4)]
    models = [MlxDevice().load(str(folder)) for folder in folders]
    counts = [model.num_parameters for model in models]
    for model in models:
        model.close()
    assert counts[0] == counts[1] > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "architecture", ["llama", pytest.param("qwen3", marks=pytest.mark.nightly)]
)
def test_the_checks_of_a_model_take_little_memory_beside_its_weights(
    tmp_path: Path, architecture: Any
) -> None:
    """A head is a large part of the weights, and float32 twice as large as they are."""
    folder = write_any_model(
        tmp_path / "model", architecture=architecture, hidden=256, vocab=60_000
    )
    assert load_check_peak(folder) <= 1.3
