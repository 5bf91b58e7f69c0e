"""A trainer's own doors: adapters beside the policy."""

import asyncio
import re
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scripted_server import serving
from tiny_models import write_any_model

from legos.config.schema import RunConfig, TrainingConfig
from legos.device import ModelHandle
from legos.errors import AdapterError, ConfigError, EngineError
from legos.fakes.records import random_adapter
from legos.mlx import device
from legos.records.step import BackendConfig
from legos.server.options import ServerOptions
from legos.weights.adapter import LoraShape, shape_of
from legos.weights.folder import read_adapter, write_adapter
from legos.weights.peft import write_peft
from legos.wiring.engines import TokenEngine
from legos.wiring.http import app_of
from legos.wiring.model import apply_adapter, apply_lora, load_model
from legos.wiring.trainer import Trainer, trainer_of


@pytest.fixture(scope="module")
def trainer() -> Iterator[Trainer]:
    made = Trainer(model=load_model("builtin", inline=True))
    yield made
    made.close()


def test_a_saved_adapter_is_live_beside_the_policy(trainer: Trainer, tmp_path: Path) -> None:
    (tmp_path / "v0").mkdir()
    write_adapter(trainer.backend.adapter(), tmp_path / "v0")
    live = trainer.load_adapter(tmp_path / "v0", name="old")
    assert (live.name, live.digest) == ("old", trainer.backend.adapter().digest)
    assert trainer.engine.adapters()["old"] == live


def test_the_policy_is_not_replaced_by_a_saved_adapter(trainer: Trainer, tmp_path: Path) -> None:
    with pytest.raises(AdapterError, match="adapter 'policy' is being trained here; load yours as"):
        trainer.load_adapter(tmp_path, name="policy")
    with pytest.raises(AdapterError, match="nowhere"):
        trainer.load_adapter(tmp_path / "nowhere", name="old")


def test_an_adapter_of_another_program_may_adapt_no_module_of_the_last_layer(
    tmp_path: Path,
) -> None:
    """Its arrays name layers 1 and 3 of 5: the others have no attention."""
    folder = write_any_model(tmp_path / "model", architecture="lfm2", layers=5)
    source, model = load_model(folder, inline=True), load_model(folder, inline=True)
    source.add_lora(LoraShape(rank=2, scale=1.0, num_layers=5, modules=("self_attn.q_proj",)))
    adapter = source.base_adapter()
    apply_adapter(model, replace(adapter, shape=shape_of(adapter.arrays, 1.0)))
    assert model.lora is not None
    assert model.lora.num_layers == 4
    assert {*model.base_adapter().arrays} == {*adapter.arrays}


@pytest.mark.parametrize("device", ["mlx", pytest.param("torch", marks=pytest.mark.torch)])
@pytest.mark.parametrize(
    "kept",
    [
        r"\.0\.",
        r"\.[02]\.",
        r"1\.self_attn\.q|2\.self_attn\.v",
        r"0\.mlp|2\.self_attn",
    ],
)
def test_a_run_starts_from_an_adapter_that_leaves_out_layers_or_modules(
    tmp_path: Path, kept: str, device: str
) -> None:
    """As PEFT writes it with ``layers_to_transform``, or with an expression for targets."""
    folder = write_any_model(tmp_path / "model", layers=3)
    source, model = (load_model(folder, inline=True, device=device) for _ in range(2))
    apply_lora(source, rank=2, layers=3, head=False)
    drawn = random_adapter(source.base_adapter(), name="policy", version=3, size=0.1)
    part = {name: array for name, array in drawn.arrays.items() if re.search(kept, name)}
    write_peft(replace(drawn, arrays=part), tmp_path)
    rest = {n: 0 * a if n.endswith("lora_b") else a for n, a in drawn.arrays.items()}
    expected = source([1, 2, 3], adapter=replace(drawn, arrays=rest | part))
    apply_adapter(model, read_adapter(tmp_path))
    assert model([1, 2, 3]) == pytest.approx(expected, abs=1e-5)
    first = model.make_backend(BackendConfig(reference=tmp_path)).adapter()
    fresh = first.arrays.keys() - part.keys()
    assert all(first.arrays[n].any() == n.endswith("lora_a") for n in fresh)
    for name in part:
        np.testing.assert_array_equal(first.arrays[name], part[name])


def test_an_adapter_of_modules_that_the_model_lacks_is_refused(tmp_path: Path) -> None:
    model = load_model(write_any_model(tmp_path / "model"), inline=True)
    apply_lora(model, head=False)
    base = model.base_adapter()
    name = min(base.arrays)
    half = {key: array for key, array in base.arrays.items() if key != name}
    more = {**base.arrays, "model.layers.9.x.lora_a": base.arrays[name]}
    for arrays, told in ((half, f"lacks {name}"), (more, "holds model.layers.9.x.lora_a")):
        with pytest.raises(AdapterError, match=told):
            apply_adapter(model, replace(base, arrays=arrays))


def test_an_adapter_of_peft_is_refused_where_mlx_has_other_weights(tmp_path: Path) -> None:
    model = load_model(write_any_model(tmp_path / "model", architecture="falcon_h1"), inline=True)
    apply_lora(model)
    adapter = replace(model.base_adapter(), exact_base=False)
    write_peft(adapter, tmp_path)
    refused = pytest.raises(AdapterError, match="cannot be put on a falcon_h1 model")
    with refused:
        apply_adapter(model, adapter)
    with refused:
        model.make_engine().load_adapter(adapter).result()
    with refused:
        model.make_backend(BackendConfig(reference=tmp_path))


def test_an_adapter_of_the_text_model_alone_fits_the_wrapped_one(tmp_path: Path) -> None:
    """transformers trains Qwen3.5's text model as ``model.layers``, and MLX has it wrapped."""
    folder = write_any_model(tmp_path / "model", architecture="qwen3_5")
    model, source = load_model(folder, inline=True), load_model(folder, inline=True)
    apply_lora(source, head=True)
    base = source.base_adapter()
    assert "language_model.lm_head.lora_a" in base.arrays
    arrays = {name: np.full(array.shape, 0.1, np.float32) for name, array in base.arrays.items()}
    inner = {name.removeprefix("language_model."): array for name, array in arrays.items()}
    adapter = replace(base, arrays=inner)
    assert inner.keys().isdisjoint(arrays)
    write_peft(adapter, tmp_path)
    apply_adapter(model, read_adapter(tmp_path))
    assert {*model.base_adapter().arrays} == {*arrays}
    expected = source([1, 2, 3], adapter=replace(base, arrays=arrays))
    np.testing.assert_array_equal(model([1, 2, 3]), expected)
    assert model.make_engine().load_adapter(adapter).result().digest == adapter.digest
    model.make_backend(BackendConfig(reference=tmp_path))


@pytest.mark.parametrize("name", ["base", "nim-1@50", "nim/1"])
def test_a_name_that_no_server_takes_is_refused_here_too(
    trainer: Trainer, tmp_path: Path, name: str
) -> None:
    write_adapter(trainer.backend.adapter(), tmp_path)
    with pytest.raises(AdapterError, match=f"cannot be called '{name}': its name has"):
        trainer.load_adapter(tmp_path, name=name)


def test_a_trainer_that_cannot_be_made_leaves_no_engine(tmp_path: Path) -> None:
    ended: list[str] = []

    def make(model: ModelHandle) -> TokenEngine:
        return TokenEngine(model.make_engine(), model, closing=lambda: ended.append("engine"))

    config = TrainingConfig(kl_coef=0.1, kl_reference=tmp_path / "nowhere")
    with closing(load_model("builtin", inline=True)) as model:
        with pytest.raises(AdapterError, match="nowhere"):
            Trainer(model=model, config=config, generation=make)
        assert ended == ["engine"]


@pytest.mark.parametrize("restored", [False, True])
def test_a_reference_of_another_model_is_refused(
    trainer: Trainer, tmp_path: Path, restored: bool
) -> None:
    write_adapter(replace(trainer.backend.adapter(), base_model="x/other"), tmp_path)
    training = {"kl_coef": 0.1, "kl_reference": tmp_path}
    config = RunConfig.model_validate({"training": training})
    with pytest.raises(AdapterError, match=r"was trained on model 'x/other' and cannot be put on"):
        trainer_of(config, inline=True, restored=restored)


@pytest.mark.parametrize("restored", [False, True])
def test_policies_that_start_from_one_adapter_are_named(
    trainer: Trainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, restored: bool
) -> None:
    write_adapter(trainer.backend.adapter(), tmp_path)
    monkeypatch.setattr("legos.wiring.trainer.policies_of", lambda _: ("one", "two"))
    lines: list[str] = []
    config = RunConfig()
    trainer_of(config, inline=True, start=tmp_path, restored=restored, tell=lines.append).close()
    notice = f"every policy (one, two) starts from one adapter, {tmp_path}"
    assert lines.count(notice) == (not restored)


def test_a_run_that_cannot_begin_leaves_no_model(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[object] = []
    monkeypatch.setattr(device.MlxModel, "close", lambda model: ended.append(model))
    config = RunConfig.model_validate({"generation": {"max_tokens": 1 << 20}})
    with pytest.raises(ConfigError, match="max_tokens"):
        trainer_of(config, inline=True)
    assert len(ended) == 1


def test_a_run_resolves_the_model_once_and_learns_its_vocabulary_without_a_forward_pass(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    resolved: list[str] = []
    resolve = device.resolve_folder

    def counted(name: str, **options: Any) -> Path:
        resolved.append(name)
        return resolve(name, **options)

    def refuse(*_: object) -> None:
        raise AssertionError("a forward pass")

    monkeypatch.setattr(device, "resolve_folder", counted)
    monkeypatch.setattr(device, "all_logits", refuse)
    made = trainer_of(RunConfig(), inline=True)
    made.close()
    assert len(resolved) == 1
    assert made.select.num_vocabulary == made.model.num_vocabulary


def test_the_key_of_a_server_that_generates_travels_with_its_address() -> None:
    with closing(load_model("builtin")) as model:
        apply_lora(model)
        with closing(model.make_engine()) as engine:
            app = app_of(model, engine, name="builtin", options=ServerOptions(api_key="k"))
            with serving(app) as url, closing(load_model("builtin")) as own:

                async def published() -> Trainer:
                    """As in a notebook, whose event loop runs already."""
                    made = Trainer(model=own, generation=url, api_key="k")
                    await made.publish_weights()
                    return made

                made = asyncio.run(published())
                assert engine.adapters()["policy"] == made.adapters[0].info
                made.generation.close()
                with pytest.raises(EngineError, match="refuses the API key"):
                    Trainer(model=own, generation=url)
