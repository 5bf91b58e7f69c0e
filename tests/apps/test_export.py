"""``legos export``: what is written computes what the run's adapter computes."""

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_runs import add_lines, made_run, step_line
from published import small_adapter
from tiny_models import write_any_model

from legos.apps.export import export
from legos.cli.process import main
from legos.errors import AdapterError, CheckpointError
from legos.files.atomic import write_folder
from legos.mlx.model.fuse import MEAN_GAP
from legos.run.find import adapter_of
from legos.run.folder import RunFolder
from legos.weights.adapter import Adapter, shape_of
from legos.weights.folder import read_adapter, write_adapter
from legos.wiring.model import apply_lora, load_model

ROWS = np.array([[1, 2, 3, 4, 5, 6], [9, 8, 7, 6, 5, 4]])


def trained(folder: Path) -> Adapter:
    """An adapter of all layers whose effect is plain to see."""
    model = load_model(folder, inline=True)
    apply_lora(model, rank=4, alpha=8.0)
    base = model.base_adapter()
    rng = np.random.default_rng(0)
    arrays: dict[str, Any] = {
        name: (0.1 * rng.standard_normal(array.shape)).astype(np.float32)
        for name, array in base.arrays.items()
    }
    return Adapter(name="policy", version=7, shape=base.shape, arrays=arrays)


def logprobs(folder: Path) -> np.ndarray:
    from legos.mlx.model.fuse import probe_logprobs
    from legos.mlx.model.load import load_tree

    return probe_logprobs(load_tree(folder), ROWS)


def applied(folder: Path, adapter: Adapter) -> np.ndarray:
    from legos.mlx.device import MlxDevice
    from legos.mlx.model.fuse import probe_logprobs

    model = MlxDevice().load(str(folder), inline=True)
    model.add_lora(adapter.shape)
    model.set_adapter(adapter)
    return probe_logprobs(model.tree, ROWS)


MODELS: Mapping[str, Mapping[str, Any]] = {
    "llama": {},
    "4bit": {"bits": 4},
    "qwen2": {"architecture": "qwen2"},
    "qwen3_moe": {"architecture": "qwen3_moe"},
}


@pytest.fixture(scope="module", params=[*MODELS])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    root = tmp_path_factory.mktemp("export")
    model = write_any_model(root / "model", **MODELS[request.param])
    folder = RunFolder(root / "run")
    with folder.new_run(f'model = "{model}"\n'):
        folder.write_adapters([trained(model)])
    return folder


def test_a_fused_model_computes_what_base_and_adapter_do(run: RunFolder, tmp_path: Path) -> None:
    model, adapter = run.path.parent / "model", read_adapter(adapter_of(run))
    told = export(str(run.path), to=tmp_path / "fused", form="fused")
    assert told["adapter"] == "v7"
    assert told["mean_logprob_gap"] < 1e-4
    np.testing.assert_allclose(logprobs(tmp_path / "fused"), applied(model, adapter), atol=1e-4)
    assert np.abs(logprobs(tmp_path / "fused") - logprobs(model)).max() > 0.1
    config = json.loads((tmp_path / "fused" / "config.json").read_text())
    assert "quantization" not in config
    tokens = load_model(tmp_path / "fused", inline=True).tokenizer.encode("12 left")
    assert tokens == load_model(model, inline=True).tokenizer.encode("12 left")
    assert "A model with merged LoRA" in (tmp_path / "fused" / "README.md").read_text()


def test_adapters_come_back_from_both_formats(run: RunFolder, tmp_path: Path) -> None:
    adapter = read_adapter(adapter_of(run))
    assert main(["export", str(run.path), "--to", str(tmp_path / "peft")]) == 0
    assert main(["export", str(run.path), "--to", str(tmp_path / "mlx"), "--format", "mlx"]) == 0
    assert read_adapter(tmp_path / "peft").digest == adapter.digest
    assert read_adapter(tmp_path / "mlx").digest == adapter.digest
    config = json.loads((tmp_path / "peft" / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == str(run.path.parent / "model")


def test_a_further_policy_is_exported_by_its_folder(tmp_path: Path) -> None:
    run = made_run(tmp_path / "duel", steps=4)
    run.metrics.unlink()
    for step in range(1, 5):
        versions = {"policy_version": step, "solver/policy_version": step // 2}
        add_lines(run.metrics, [step_line(step, **versions)])
    solver = small_adapter(1, name="solver")
    run.write_adapters([small_adapter(3, name="proposer"), solver])
    told = export(str(run.adapters / "solver" / "v1"), to=tmp_path / "out")
    assert (told["run"], told["adapter"]) == (str(run.path), "v1")
    assert read_adapter(tmp_path / "out").info == solver.info
    card = (tmp_path / "out" / "README.md").read_text()
    assert "| policy | solver |" in card
    assert "| optimiser steps | 1 applied, of 4 in the run |" in card
    assert "| tokens generated | 300 |" in card  # after step 3, the last with that version
    assert export(f"{run.path}@v3", to=tmp_path / "first")["adapter"] == "v3"
    write_folder(tmp_path / "alone", partial(write_adapter, solver))
    with pytest.raises(CheckpointError, match="alone holds no run"):
        export(str(tmp_path / "alone"), to=tmp_path / "new")


@pytest.mark.parametrize(
    ("kind", "module"),
    [
        ("granitemoe", "model.layers.0.block_sparse_moe.switch_mlp.up_proj"),
        ("falcon_h1", "model.layers.0.self_attn.q_proj"),
        ("gpt2", "model.h.0.attn.c_attn"),
    ],
)
def test_peft_is_refused_where_transformers_would_compute_something_else(
    tmp_path: Path, kind: str, module: str
) -> None:
    """PEFT loads some of them without an error."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps({"model_type": kind}))
    experts = (2,) if "switch_mlp" in module else ()
    shapes = {"lora_a": (*experts, 2, 2), "lora_b": (*experts, 2, 2)}
    arrays = {f"{module}.{part}": np.ones(shape, np.float32) for part, shape in shapes.items()}
    adapter = Adapter(name="policy", version=1, shape=shape_of(arrays, 2.0), arrays=arrays)
    folder = RunFolder(tmp_path / "run")
    with folder.new_run(f'model = "{tmp_path / "model"}"\n'):
        folder.write_adapters([adapter])
    with pytest.raises(AdapterError, match=f"model', a {kind} model, .* with --format mlx"):
        export(str(folder.path), to=tmp_path / "peft")
    assert export(str(folder.path), to=tmp_path / "mlx", form="mlx")["adapter"] == "v1"


def test_a_link_is_followed_and_the_current_folder_refused(
    run: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (other := tmp_path / "other disk").mkdir()
    (link := tmp_path / "link").symlink_to(other)
    export(str(run.path), to=link)
    assert link.is_symlink()
    assert (other / "adapter_config.json").exists()
    (here := tmp_path / "here").mkdir()
    monkeypatch.chdir(here)
    with pytest.raises(CheckpointError, match="in which this program runs; choose another --to"):
        export(str(run.path), to=Path())
    assert not [*here.iterdir()]


def test_what_is_there_already_stays(run: RunFolder, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    with pytest.raises(CheckpointError, match="exists already; choose another --to"):
        export(str(run.path), to=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
    with pytest.raises(CheckpointError, match="has no adapter 'v3'; it has v7"):
        export(f"{run.path}@v3", to=tmp_path / "new")
    with pytest.raises(CheckpointError, match="nowhere holds no run"):
        export("nowhere", to=tmp_path / "new")
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_the_merged_model_is_released_before_the_written_one_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import mlx.core as mx

    from legos.mlx.model import fuse

    folder, held, load = write_any_model(tmp_path / "model"), list[int](), fuse.load_tree
    adapter, before = trained(folder), mx.get_active_memory()

    def loaded(written: Path) -> Any:
        held.append(mx.get_active_memory() - before)
        return load(written)

    monkeypatch.setattr(fuse, "load_tree", loaded)
    (tmp_path / "out").mkdir()
    load_model(folder, inline=True).write_fused(adapter, tmp_path / "out")
    assert held[0] < (tmp_path / "out" / "model.safetensors").stat().st_size / 10


def test_a_merged_model_too_large_to_load_is_written_and_not_compared(
    run: RunFolder,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    model, adapter = run.path.parent / "model", read_adapter(adapter_of(run))
    handle = load_model(model, inline=True)
    monkeypatch.setattr("legos.mlx.model.fuse.free_memory", lambda: 0)
    (tmp_path / "out").mkdir()
    assert handle.write_fused(adapter, tmp_path / "out") is None
    assert "not compared with the adapter, because loading it takes 0.0 GiB" in caplog.text
    monkeypatch.undo()
    compared = logprobs(tmp_path / "out")
    np.testing.assert_allclose(compared, applied(model, adapter), atol=1e-4)


def test_a_merged_model_that_computes_something_else_is_not_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = write_any_model(tmp_path / "model")
    monkeypatch.setitem(MEAN_GAP, "float32", -1.0)
    (tmp_path / "out").mkdir()
    with pytest.raises(AdapterError, match=r"differ by .* nats on average .*; at most -1.0"):
        load_model(model, inline=True).write_fused(trained(model), tmp_path / "out")
    folder = RunFolder(tmp_path / "run")
    with folder.new_run(f'model = "{model}"\n'):
        folder.write_adapters([trained(model)])
    with pytest.raises(AdapterError, match=r"differ by .* nats on average .*; at most -1.0"):
        export(str(folder.path), to=tmp_path / "fused", form="fused")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "out", "run"]
