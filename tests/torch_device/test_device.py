"""The torch device: what it refuses names what works, and its calls give what MLX's give."""

import json
import threading
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from backend_steps import check_stops, logprobs_of
from pydantic import ValidationError
from random_samples import random_samples
from safetensors.numpy import load_file, save_file
from tiny_folders import builtin_with_template
from tiny_models import write_any_model
from vocabulary import TOKENS as TOKENIZER

from legos.builtin import BUILTIN
from legos.chat.tools import JSON_TOOLS, PLAIN_TOOLS
from legos.config.schema import RunConfig
from legos.errors import AdapterError, ModelError, TrainerError
from legos.fakes import make_sample
from legos.losses.objective import Objective
from legos.records.step import BackendConfig, Update
from legos.wiring.model import apply_lora, disable_lora, load_model

pytestmark = pytest.mark.torch  # imported by the first test, not by every worker

TOKENS = (5, 6, 7, 8, 9)
UPDATE = Update(learning_rate=1e-2)


def load(folder: Path | str = BUILTIN) -> Any:
    return load_model(folder, device="torch", inline=True)


def test_calls_have_the_format_that_the_chat_template_shows(tmp_path: Path) -> None:
    llama = (
        "{% if tools %}{'name': function name, \"parameters\": dictionary}{{ tools }}{% endif %}"
    )
    talk = "{% for message in messages %}{{ message.content }}{% endfor %}"
    for name, template, form in (("own", llama, JSON_TOOLS), ("plain", "", PLAIN_TOOLS)):
        model = load(builtin_with_template(tmp_path / name, template + talk))
        assert model.tool_format == form


def test_a_watchdog_sees_the_call_that_the_thread_runs() -> None:
    model: Any = load_model(device="torch")
    with closing(model):
        first, second = (model.call(lambda: model.turns).result() for _ in range(2))
    assert first.keys() == {"legos-trainer"}
    assert None is not first["legos-trainer"] != second["legos-trainer"]


def test_logits_are_those_of_mlx_with_and_without_lora() -> None:
    models = [load_model(device=device, inline=True) for device in ("mlx", "torch")]
    for model in models:
        apply_lora(model)
    base = models[0].base_adapter()
    drawn = {
        name: 0.1 * np.random.default_rng(0).standard_normal(array.shape).astype(np.float32)
        for name, array in base.arrays.items()
    }
    before = models[1](TOKENS)
    adapter = replace(base, version=1, arrays=drawn)
    under = models[1](TOKENS, adapter=adapter)
    assert models[1](TOKENS) == pytest.approx(before, abs=1e-6)
    for model in models:
        model.set_adapter(adapter)
    expected, found = (model(TOKENS) for model in models)
    assert found == pytest.approx(expected, abs=1e-4)
    assert under == pytest.approx(found, abs=1e-6)
    assert np.abs(found - before).max() > 0.1
    with disable_lora(models[1]):
        assert models[1](TOKENS) == pytest.approx(before, abs=1e-6)
    for model in models:
        start = model.make_backend(BackendConfig()).adapter()
        assert (start.version, start.digest) == (0, adapter.digest)
        assert adapter.has_effect
        assert not model.base_adapter().has_effect


@pytest.mark.parametrize("device", ["mlx", "torch"])
def test_a_step_within_a_block_without_lora_trains_lora(device: str) -> None:
    """Plays may ask the base model while the trainer computes steps with the same model."""
    model = load_model(device=device, inline=True)
    apply_lora(model)
    backend, sample = model.make_backend(), make_sample(TOKENS)
    base = model(TOKENS)
    expected = backend.forward_backward([sample], [1.0], Objective()).result()
    with disable_lora(model):
        found = backend.forward_backward([sample], [1.0], Objective()).result()
        backend.optim_step(UPDATE).result()
        assert model(TOKENS) == pytest.approx(base, abs=1e-6)
    assert found.grad_norm == pytest.approx(expected.grad_norm, rel=1e-5)
    assert expected.grad_norm > 0.0
    assert np.abs(model(TOKENS) - base).max() > 1e-3
    assert model(TOKENS) == pytest.approx(model(TOKENS, adapter=backend.adapter()), abs=1e-6)


def test_an_adapter_of_another_scale_has_its_own_effect_on_both_devices() -> None:
    for device in ("mlx", "torch"):
        theirs, ours = (load_model(device=device, inline=True) for _ in range(2))
        apply_lora(theirs, rank=8, alpha=64.0)
        apply_lora(ours, rank=8, alpha=16.0)
        base = theirs.base_adapter()
        arrays = {name: np.full(a.shape, 0.02, np.float32) for name, a in base.arrays.items()}
        adapter = replace(base, version=1, arrays=arrays)
        theirs.set_adapter(adapter)
        expected = theirs(TOKENS)
        assert np.abs(expected - ours(TOKENS)).max() > 0.1
        assert ours(TOKENS, adapter=adapter) == pytest.approx(expected, abs=1e-4), device
        ours.set_adapter(adapter)
        assert ours(TOKENS) == pytest.approx(expected, abs=1e-4), device


def test_what_is_rewarded_gets_likelier_on_the_models_own_thread() -> None:
    model = load_model(device="torch")
    apply_lora(model)
    backend = model.make_backend(BackendConfig(policies=("a", "b")))
    sample = make_sample(TOKENS, logprobs=-3.0)
    with pytest.raises(TrainerError, match="call forward_backward first"):
        backend.optim_step(UPDATE, policies=["a"]).result()
    before = float(logprobs_of(backend, [sample], policy="a")[0][0])
    for _ in range(3):
        backend.forward_backward([sample], [1.0], Objective(), policy="a").result()
        backend.optim_step(UPDATE, policies=["a"]).result()
    assert float(logprobs_of(backend, [sample], policy="a")[0][0]) > before + 0.1
    assert float(logprobs_of(backend, [sample], policy="b")[0][0]) == pytest.approx(before)
    assert (backend.adapter("a").version, backend.adapter("b").version) == (3, 0)
    model.close()


def test_lora_can_be_added_after_a_shape_that_does_not_fit() -> None:
    model = load()
    before, shape = model(TOKENS), model.lora_shape(rank=2, alpha=4.0, num_layers=1, head=False)
    with pytest.raises(AdapterError, match=r"has no linear module mlp\.other"):
        model.add_lora(replace(shape, modules=(*shape.modules, "mlp.other")))
    model.add_lora(shape)
    assert len(model.modules) == len(shape.modules)
    assert model(TOKENS) == pytest.approx(before, abs=1e-6)


def test_a_call_that_never_returns_is_given_up(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("legos.device.worker.CLOSE_S", 0.1)
    model: Any = load_model(device="torch")
    began, release = threading.Event(), threading.Event()
    hanging = model.call(lambda: (began.set(), release.wait()))
    assert began.wait(60.0)
    model.close()
    assert "legos-trainer does not end; its call is given up" in caplog.text
    assert not hanging.done()
    release.set()


def test_an_adapter_stays_as_it_is_after_later_steps() -> None:
    model = load()
    apply_lora(model)
    backend = model.make_backend()
    adapter = backend.adapter()
    digest = adapter.digest
    backend.forward_backward([make_sample(TOKENS)], [1.0], Objective()).result()
    backend.optim_step(UPDATE).result()
    del adapter.__dict__["digest"]
    assert adapter.digest == digest != backend.adapter().digest


def test_a_weight_that_is_not_finite_is_reported() -> None:
    model = load()
    apply_lora(model)
    backend = model.make_backend()
    found = backend.forward_backward([make_sample(TOKENS)], [float("inf")], Objective()).result()
    assert not np.isfinite(found.loss) or not np.isfinite(found.grad_norm)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"quantization": {"bits": 4, "group_size": 64}}, "quantised for MLX.*--device mlx"),
        ({"num_experts": 8}, "mixture of experts.*--device mlx"),
        ({"model_type": "unheard_of"}, "cannot be loaded with torch"),
        (
            {"model_type": "own", "auto_map": {"AutoConfig": "own.Own"}},
            "cannot be loaded with torch.*custom code",
        ),
    ],
)
def test_models_that_torch_cannot_train_are_refused(
    tmp_path: Path, changes: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_any_model(tmp_path)
    config = json.loads((folder / "config.json").read_text()) | changes
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "own.py").write_text("raise AssertionError('code of the folder was run')\n")
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    with pytest.raises(ModelError, match=message):
        load(folder)


@pytest.mark.parametrize("device", ["mlx", "torch"])
def test_a_model_that_cannot_be_loaded_leaves_no_thread(tmp_path: Path, device: str) -> None:
    folder = write_any_model(tmp_path)
    (folder / "model.safetensors").write_bytes(b"damaged")
    before = set(threading.enumerate())
    with pytest.raises(ModelError, match=r"cannot be loaded|damaged"):
        load_model(folder, device=device)
    assert set(threading.enumerate()) == before


def test_an_engine_that_cannot_be_made_leaves_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: Any, **__: Any) -> None:
        raise RuntimeError("no memory")

    monkeypatch.setattr("legos.mlx.device.MlxEngine", failing)
    model = load_model()
    before = set(threading.enumerate())
    with pytest.raises(RuntimeError, match="no memory"):
        model.make_engine()
    assert set(threading.enumerate()) == before
    model.close()


def test_a_model_that_keeps_a_state_between_tokens_is_refused(tmp_path: Path) -> None:
    weights = load_file(write_any_model(tmp_path, architecture="lfm2") / "model.safetensors")
    swapped = {
        name: array.reshape(32, 1, 3) for name, array in weights.items() if "conv.conv" in name
    }
    save_file(weights | swapped, tmp_path / "model.safetensors")  # in torch's order of axes
    model = load(tmp_path)
    apply_lora(model)
    with pytest.raises(TrainerError, match=r"packed samples of a lfm2 model see each other"):
        model.make_backend()


def test_a_model_without_some_of_its_weights_is_refused(tmp_path: Path) -> None:
    weights = load_file(write_any_model(tmp_path) / "model.safetensors")
    del weights["model.norm.weight"]
    save_file(weights, tmp_path / "model.safetensors")
    with pytest.raises(ModelError, match=r"lacks the weights model.norm.weight"):
        load(tmp_path)


def test_the_peak_of_a_step_on_a_gpu_is_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    model = load()
    apply_lora(model)
    backend, calls = model.make_backend(), list[str]()

    def peak() -> int:
        calls.append("read")
        return 7

    monkeypatch.setattr("legos.torch.model.CausalModel.device", SimpleNamespace(type="cuda"))
    monkeypatch.setattr("torch.cuda.reset_peak_memory_stats", lambda: calls.append("reset"))
    monkeypatch.setattr("torch.cuda.max_memory_allocated", peak)
    for _ in range(2):
        found = backend.forward_backward([make_sample(TOKENS)], [1.0], Objective()).result()
        assert found.peak_bytes == 7
    assert calls == ["reset", "read"] * 2


def test_an_engine_is_refused() -> None:
    model = load()
    with pytest.raises(ModelError, match=r"start a server .* --server, or train with --device mlx"):
        model.make_engine()


def test_a_gpu_that_torch_does_not_find_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEGOS_DEVICE", "gpu")
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(ModelError, match="finds no CUDA device; unset it"):
        load()


def test_a_device_of_another_name_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEGOS_DEVICE", "cuda")
    with pytest.raises(ModelError, match="LEGOS_DEVICE is 'cuda'; expected cpu or gpu"):
        load()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"server": ()}, r"device is torch but server is empty; .*legos serve"),
        ({"training": {"memory_limit_gib": 4.0}}, "but training.memory_limit_gib is 4.0; torch"),
        ({"training": {"decode_pause_s": 0.5}}, "but training.decode_pause_s is 0.5"),
    ],
)
def test_settings_that_torch_does_not_support_are_refused(
    settings: dict[str, Any], message: str
) -> None:
    given = {"device": "torch", "server": ("http://localhost:8000",), **settings}
    with pytest.raises(ValidationError, match=message):
        RunConfig.model_validate(given)


@pytest.mark.parametrize("limit", [{"memory_limit_bytes": 1 << 30}, {"pass_limit_s": 0.5}])
def test_limits_that_torch_does_not_keep_are_refused_by_its_backend(limit: dict[str, Any]) -> None:
    model = load()
    apply_lora(model)
    with pytest.raises(TrainerError, match=r"but torch bounds passes by micro_batch_tokens alone"):
        model.make_backend(BackendConfig(**limit))


def test_ids_that_the_tokenizer_lacks_have_no_share_on_either_device(tmp_path: Path) -> None:
    folder = write_any_model(tmp_path, vocab=len(TOKENIZER) + 200)
    sample = make_sample(TOKENS, positions=range(1, len(TOKENS)))
    for device in ("mlx", "torch"):
        model = load_model(folder, device=device, inline=True)
        logits = model(TOKENS)[:-1, : len(TOKENIZER)].astype(np.float64)
        chosen = logits[np.arange(len(TOKENS) - 1), TOKENS[1:]]
        expected = chosen - np.logaddexp.reduce(logits, axis=1)
        apply_lora(model)
        (found,) = logprobs_of(model.make_backend(), [sample])
        assert found == pytest.approx(expected, abs=1e-5), device


def test_passes_are_as_large_again_a_while_after_the_memory_was_full(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import torch

    from legos.torch import gradients

    monkeypatch.setattr(gradients, "RECOVERY", 2)
    model = load()
    apply_lora(model)
    backend = model.make_backend(BackendConfig(micro_batch_tokens=32))
    samples = random_samples(np.random.default_rng(0), num_samples=8, vocab=40, max_length=9)
    passes: list[int] = []
    of_pass = gradients.TorchGradients._of_pass

    def counted(*given: Any) -> Any:
        passes[-1] += 1
        if len(passes) == 2 and passes[-1] == 1:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return of_pass(*given)

    monkeypatch.setattr(gradients.TorchGradients, "_of_pass", counted)
    for _ in range(4):
        passes.append(0)
        backend.forward_backward(samples, [1.0] * len(samples), Objective()).result()
    assert passes[1] - 1 > passes[0]
    assert passes[3] == passes[0]


def test_a_process_of_several_does_not_compute_again_when_its_memory_is_full() -> None:
    import torch

    from legos.torch.gradients import TorchGradients

    class OfTwo:
        rank, size = 1, 2

    model = load()
    apply_lora(model)
    config = BackendConfig(micro_batch_tokens=32)
    gradients = TorchGradients(model.causal, model.modules, config, cast("Any", OfTwo()))
    tries: list[int] = []

    def full() -> None:
        tries.append(1)
        raise torch.OutOfMemoryError("CUDA out of memory")

    with pytest.raises(TrainerError, match=r"process 1 ran out of memory; lower --training.micro-"):
        gradients.computed(full)
    assert len(tries) == 1


def test_a_step_can_be_stopped_before_each_pass() -> None:
    model = load()
    apply_lora(model)
    backend = model.make_backend(BackendConfig(micro_batch_tokens=8))
    samples = random_samples(np.random.default_rng(0), num_samples=12, vocab=40, max_length=9)
    assert check_stops(backend, samples, Objective(kl_coef=0.1)) > 4
