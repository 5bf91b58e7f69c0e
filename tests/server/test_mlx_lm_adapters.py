"""Adapters that ``mlx_lm.lora`` writes give mlx-lm's own log-probabilities everywhere."""

import base64
import io
import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import mlx_lm
import numpy as np
import pytest
from backend_steps import logprobs_of
from compiled import compiling
from mlx_lm import lora
from short_runs import NIM
from starlette.testclient import TestClient
from tiny_folders import write_tiny_model

from legos.apps.adapters import loaded
from legos.cli.process import main
from legos.fakes import make_sample
from legos.records.limits import EngineLimits
from legos.records.step import BackendConfig
from legos.server.options import ServerOptions
from legos.weights.folder import read_adapter
from legos.wiring.http import app_of
from legos.wiring.model import apply_lora, load_model
from legos.wiring.named import named_adapter

pytestmark = pytest.mark.filterwarnings("ignore")

IDS = list(range(3, 15))
DEFAULTS: Any = lora.CONFIG_DEFAULTS
SCALE = DEFAULTS["lora_parameters"]["scale"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("mlx-lm") / "model")


@pytest.fixture(scope="module")
def written(folder: Path) -> Path:
    """The folder that a short training with mlx-lm leaves, with its default parameters."""
    data = folder.parent / "data"
    data.mkdir(exist_ok=True)
    line = json.dumps({"text": "Nim: 5 left, last one wins. Moves: 1 2 3"})
    for part in ("train", "valid"):
        (data / f"{part}.jsonl").write_text(f"{line}\n" * 2)
    options = {
        "model": str(folder),
        "train": True,
        "data": str(data),
        "fine_tune_type": "lora",
        "iters": 3,
        "batch_size": 1,
        "val_batches": 1,
        "num_layers": 1,
        "learning_rate": 1e-3,
        "adapter_path": str(folder.parent / "lora"),
    }
    with compiling(False):  # which takes longer than the training
        lora.run(SimpleNamespace(**{**lora.CONFIG_DEFAULTS, **options}))
    return folder.parent / "lora"


def log_probabilities(logits: Any) -> np.ndarray:
    return np.asarray(logits - mx.logsumexp(logits, axis=-1, keepdims=True))


@pytest.fixture(scope="module")
def expected(written: Path, folder: Path) -> np.ndarray:
    """[T, V] mlx-lm's own, which are not the base model's."""
    under, base = (
        log_probabilities(mlx_lm.load(str(folder), adapter_path=path)[0](mx.array([IDS]))[0])
        for path in (str(written), None)
    )
    assert np.abs(under - base).max() > 0.05
    return under


def close(found: Any, expected: Any) -> None:
    np.testing.assert_allclose(np.asarray(found), expected, atol=2e-5, rtol=0)


@pytest.fixture(scope="module")
def served(written: Path) -> Iterator[TestClient]:
    """What `legos serve --adapter` and `legos chat --adapter` start; the file names the model."""
    with loaded(None, [named_adapter(str(written))], EngineLimits()) as live:
        options = ServerOptions()
        app = app_of(live.handle, live.engine, name=live.name, options=options, scale=1.0)
        yield TestClient(app)


def scored(http: TestClient, adapter: str) -> Any:
    """Log-probability of each token of IDS but the first, by the server."""
    prompt = {"prompt": IDS[:1], "choices": [IDS[1:]]}
    body = {"prompts": [prompt], "by_token": True, "end_token_ids": [], "adapter": adapter}
    answer = http.post("/v1/score", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()["scores"][0]


def chosen(expected: np.ndarray) -> np.ndarray:
    return expected[np.arange(len(IDS) - 1), IDS[1:]]


def test_a_folder_is_served(served: TestClient, expected: np.ndarray) -> None:
    close(scored(served, "policy"), chosen(expected))


def test_it_is_uploaded(served: TestClient, written: Path, expected: np.ndarray) -> None:
    data = (written / "adapters.safetensors").read_bytes()
    config = json.loads((written / "adapter_config.json").read_text())
    fields = {"weights": base64.b64encode(data).decode(), "version": 1}
    answers = {
        "a": served.post("/adapters/load", json={**fields, "name": "a", "config": config}),
        "b": served.post("/adapters/load", json={**fields, "name": "b", "scale": SCALE}),
        "c": served.post(
            f"/adapters/load?name=c&version=1&scale={SCALE}",
            content=data,
            headers={"content-type": "application/octet-stream"},
        ),
    }
    for name, answer in answers.items():
        assert answer.status_code == 200, answer.text
        close(scored(served, name), chosen(expected))


def test_a_configuration_that_contradicts_the_weights_is_refused(
    served: TestClient, written: Path
) -> None:
    data = base64.b64encode((written / "adapters.safetensors").read_bytes()).decode()
    config = json.loads((written / "adapter_config.json").read_text())
    for change, named in (
        ({"fine_tune_type": "full"}, "fine_tune_type is 'full'"),
        ({"lora_parameters": {"rank": 4, "scale": 20.0}}, "rank 4"),
        ({"lora_parameters": {"rank": 8, "scale": "20"}}, "`$.lora_parameters.scale`"),
        ({"lora_parameters": {"rank": 8}}, "`scale`"),
        ({"lora_parameters": None}, "no lora_parameters"),
        ({"fine_tune_type": "dora"}, "fine_tune_type is 'dora'"),
    ):
        body = {"weights": data, "version": 1, "config": {**config, **change}}
        answer = served.post("/adapters/load", json=body)
        assert answer.status_code == 400, answer.text
        assert named in answer.json()["error"]["message"]


def test_it_is_chatted_with(
    written: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("hello\n" * 8))  # three tokens may be spaces
    assert main(["chat", "--adapter", str(written), "--max-tokens", "3"]) == 0
    assert capsys.readouterr().out.strip()


def test_a_model_uses_it_as_it_is(written: Path, folder: Path, expected: np.ndarray) -> None:
    """Also where LoRA was added with another scale, as at the start of a run."""
    adapter = read_adapter(written)
    for alpha in (8 * SCALE, 32.0):
        handle = load_model(str(folder), inline=True)
        apply_lora(handle, rank=8, layers=1, alpha=alpha, head=False)
        assert handle.lora is not None
        close(log_probabilities(mx.array(handle(IDS, adapter=adapter))), expected)
        handle.set_adapter(adapter)
        close(log_probabilities(mx.array(handle(IDS))), expected)
        backend = handle.make_backend(BackendConfig())
        sample = make_sample(IDS, positions=range(1, len(IDS)))
        close(logprobs_of(backend, [sample])[0], chosen(expected))


@pytest.mark.slow
def test_a_run_evaluates_it_and_starts_with_it_as_reference(
    written: Path,
    folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("legos.wiring.model.SMALL_MODEL", 0)  # as mlx-lm, no LoRA on the head
    run = [
        *("train", "--model", str(folder), "--steps", "1", "--out", str(tmp_path / "run"), *NIM),
        *("--training.lora-layers", "1", "--training.lora-rank", "8"),
        *("--training.kl-coef", "0.1"),
        *("--training.kl-reference", str(written), "--loop.evaluate-every", "0"),
    ]
    assert main(run) == 0
    capsys.readouterr()
    assert main(["eval", str(tmp_path / "run"), "--json"]) == 0
    own = json.loads(capsys.readouterr().out)
    assert main(["eval", str(tmp_path / "run"), "--adapter", str(written), "--json"]) == 0
    theirs = json.loads(capsys.readouterr().out)
    assert own.keys() == theirs.keys()
    assert own != theirs
