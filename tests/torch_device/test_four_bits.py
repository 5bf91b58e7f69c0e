"""QLoRA: torch trains on 4 bits of bitsandbytes as on the same weights unpacked."""

import json
import re
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from accounts import balanced_ledger
from metric_lines import read_steps
from safetensors.numpy import save_file
from scripted_server import serving

from legos import apply_lora, load_model
from legos.builtin import builtin_path
from legos.cli.process import main
from legos.clients.engine import EngineClient
from legos.errors import ModelError
from legos.fakes import make_sample
from legos.installed import adding
from legos.losses.objective import Objective
from legos.records.step import BackendConfig, Update
from legos.server.app import make_app
from legos.server.service import Service

pytestmark = [
    pytest.mark.slow,  # bitsandbytes alone takes 15 s to be imported
    pytest.mark.torch,
    pytest.mark.skipif(
        any(find_spec(name) is None for name in ("bitsandbytes", "accelerate")),
        reason="bitsandbytes is not installed; uv pip install bitsandbytes accelerate",
    ),
]
PAGE = Path(__file__).parents[2] / "docs" / "run" / "devices.md"
TOKENS = (5, 6, 7, 8, 9)
RUN = Path("run")


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built-in model in 4 bits, made by the program on the page."""
    folder = tmp_path_factory.mktemp("four") / "bits"
    (program,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    given = {"MODEL": str(builtin_path()), "FOUR_BITS": str(folder)}
    for name, place in given.items():
        program = program.replace(f'"{name}"', repr(place))
    exec(program.replace("torch.bfloat16", "torch.float32"), {})
    return folder


@pytest.fixture(scope="module")
def unpacked(packed: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model in float32 whose weights have the values that the packed ones stand for."""
    from bitsandbytes.functional import dequantize_4bit
    from transformers import AutoModelForCausalLM

    any_model: Any = AutoModelForCausalLM
    model = any_model.from_pretrained(packed, local_files_only=True)
    arrays: dict[str, Any] = {}
    for name, weight in model.named_parameters():
        state = getattr(weight, "quant_state", None)
        whole = weight if state is None else dequantize_4bit(weight.data, state)
        arrays[name] = whole.detach().float().numpy()
    folder = tmp_path_factory.mktemp("float") / "model"
    shutil.copytree(builtin_path(), folder)
    save_file(arrays, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def load(folder: Path) -> Any:
    model = load_model(folder, device="torch", inline=True)
    apply_lora(model)
    return model


def test_passes_and_updates_are_those_of_the_unpacked_weights(packed: Path, unpacked: Path) -> None:
    models = [load(folder) for folder in (packed, unpacked)]
    assert models[0].num_parameters == models[1].num_parameters
    sizes = [sum(array.nbytes for array in model.causal.layers[0].parameters()) for model in models]
    assert sizes[0] < 0.2 * sizes[1]
    plain = load(builtin_path())(TOKENS)
    assert np.abs(models[1](TOKENS) - plain).max() > 0.1  # 4 bits are another model
    backends = [model.make_backend(BackendConfig()) for model in models]
    samples = [make_sample(TOKENS, logprobs=-3.0), make_sample(TOKENS[2:], logprobs=-2.0)]
    for _ in range(3):
        found, expected = (
            backend.forward_backward(samples, [1.0, -0.5], Objective()).result()
            for backend in backends
        )
        assert found.loss == pytest.approx(expected.loss, rel=1e-4)
        assert found.grad_norm == pytest.approx(expected.grad_norm, rel=1e-4)
        for backend in backends:
            backend.optim_step(Update(learning_rate=1e-2)).result()
    for model, backend in zip(models, backends, strict=True):
        model.set_adapter(backend.adapter())
    found, expected = (model(TOKENS) for model in models)
    assert found == pytest.approx(expected, abs=1e-3)
    assert backends[0].adapter().version == 3


def test_a_run_plays_on_a_server_of_the_same_weights(
    packed: Path, unpacked: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    model = load_model(unpacked)
    apply_lora(model)
    engine = model.make_engine()
    client = EngineClient(engine, model.tokenizer, use_threads=True)
    sizes: Any = {"context": model.context, "lora_scale": 1.0}
    service = Service(client, engine, model.tokenizer, model="unpacked", **sizes)
    try:
        with serving(make_app(service)) as url:
            where = ("--device", "torch", "--server", url, "--out", str(RUN))
            small = ("--play.tasks-per-step", "8", "--training.learning-rate", "0.002")
            assert main(["train", "--model", str(packed), *where, "--steps", "3", *small]) == 0
    finally:
        engine.close()
        model.close()
    steps = list(read_steps(RUN / "metrics.jsonl"))
    assert [step["policy_version"] for step in steps] == [1, 2, 3]
    assert all((step["mismatch_k3"] or 0.0) < 0.3 for step in steps)
    assert balanced_ledger(RUN)["trained"] > 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"quant_method": "gptq"}, "quantised for gptq.*4 bits of bitsandbytes$"),
        (
            {"load_in_4bit": False, "load_in_8bit": True},
            "for bitsandbytes in a form.*of bitsandbytes$",
        ),
    ],
)
def test_other_quantisations_are_refused(
    packed: Path, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(packed, folder)
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] |= changes
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match=message):
        load(folder)


def test_packages_that_are_missing_are_named(packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("legos.torch.model.find_spec", lambda name: name == "accelerate" or None)
    with pytest.raises(ModelError, match=f"need bitsandbytes: {re.escape(adding('qlora'))}"):
        load(packed)


def test_mlx_names_the_device_that_reads_them(packed: Path) -> None:
    with pytest.raises(ModelError, match=r"bitsandbytes, which MLX cannot read; .*--device torch"):
        load_model(packed, inline=True)
