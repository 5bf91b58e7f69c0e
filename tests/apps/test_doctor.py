"""``legos doctor``: the report of a healthy machine, and what it says of a broken one."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from legos.apps.doctor import examine
from legos.bench import self_test
from legos.bench.self_test import Check, SelfTest
from legos.cli import main
from legos.weights.adapter import Adapter

MODELS = ["llama", "qwen3"]


def by_name(checks: Any) -> Mapping[str, Check]:
    return {check.name: check for check in checks}


def test_facts_alone_are_quick_and_healthy(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    told = capsys.readouterr().out
    for name in ("python", "platform", "device.mlx", "device.default", "blas", "disk_free_gib"):
        assert f"\n{name} " in f"\n{told}"
    assert "valid (model builtin, arena nim)" in told
    assert "self-test" not in told


@pytest.mark.parametrize("model", MODELS)
def test_every_check_passes_here(model: str, tiny_models: Mapping[str, Path]) -> None:
    report = examine(self_test=True, model=str(tiny_models[model]))
    checks = by_name(report.checks)
    assert list(checks) == ["parity", "swap", "checkpointing", "shared_prefix", "speed"]
    assert report.healthy, report.text()
    assert {name for name, check in checks.items() if check.status == "skip"} <= {"swap"}
    assert checks["parity"].figures["tokens"] == 256
    assert 0 <= checks["parity"].figures["largest_gap_nats"] < 1e-4
    assert checks["checkpointing"].figures["distance"] < 1e-5
    assert 0 < checks["shared_prefix"].figures["distance"] < 1e-4
    assert checks["speed"].figures["sampled_tokens_per_s"] > 0
    assert "\npass  parity " in report.text()


def test_an_engine_with_other_weights_than_the_trainer_is_found(
    tiny_models: Mapping[str, Path],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    live = SelfTest._live

    def other(self: SelfTest, adapter: Adapter) -> None:
        live(self, adapter)
        arrays = {name: 2 * array for name, array in adapter.arrays.items()}
        wrong = Adapter(name="policy", version=adapter.version, shape=adapter.shape, arrays=arrays)
        self._engine.load_adapter(wrong).result()

    monkeypatch.setattr(SelfTest, "_live", other)
    arguments = ["doctor", "--self-test", "--model", str(tiny_models["llama"]), "--json"]
    assert main(arguments) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["healthy"] is False
    parity = told["checks"]["parity"]
    assert parity["status"] == "fail"
    assert parity["figures"]["largest_gap_nats"] > 1e-3
    assert "largest_gap_nats is" in parity["reason"]
    assert told["checks"]["shared_prefix"]["status"] == "pass"


def test_a_check_that_raises_fails_alone(
    tiny_models: Mapping[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: SelfTest) -> Check:
        raise RuntimeError("[metal] no kernel")

    monkeypatch.setattr("legos.apps.doctor.CHECKS", {"parity": broken, "speed": SelfTest.speed})
    report = examine(self_test=True, model=str(tiny_models["llama"]))
    checks = by_name(report.checks)
    assert (checks["parity"].status, checks["speed"].status) == ("fail", "pass")
    assert checks["parity"].reason == "RuntimeError: [metal] no kernel"
    assert not report.healthy
    assert "1 pass, 1 fail, 0 skip" in report.text()


def test_gradients_that_differ_are_found(
    tiny_models: Mapping[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(self_test.LARGEST_DISTANCE, "float32", 1e-12)
    report = examine(self_test=True, model=str(tiny_models["llama"]))
    assert by_name(report.checks)["shared_prefix"].status == "fail"
    assert "at most 1e-12 is expected" in report.text()


def test_a_model_that_cannot_be_loaded_is_a_finding(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--self-test", "--model", "/nowhere"]) == 1
    assert "fail  load" in (told := capsys.readouterr().out)
    assert "no model folder '/nowhere'" in told


@pytest.mark.slow
def test_the_small_model_is_checked_within_a_minute() -> None:
    report = examine(self_test=True)
    assert report.healthy, report.text()
    assert sum(check.seconds for check in report.checks) < 60
