"""``legos doctor``: the report of a healthy machine, and what it says of a broken one."""

import json
from collections.abc import Mapping
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from pace import slowness

from legos.apps.doctor import examine
from legos.bench import self_test
from legos.bench.self_test import CHECKS, Check, SelfTest
from legos.cli import main
from legos.mlx.checks.device import MlxChecks
from legos.mlx.fits import USUAL_MODELS
from legos.records.step import MeasuredStep
from legos.weights.adapter import Adapter

MODELS = ["llama", "qwen3"]


@pytest.fixture
def own_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the checks of the model itself; those on small models have tests of their own."""
    own = {name: check for name, check in CHECKS.items() if name not in self_test.SMALL}
    monkeypatch.setattr("legos.apps.doctor.CHECKS", own)
    monkeypatch.setattr(self_test, "TOGETHER_S", 0.1)


def by_name(checks: Any) -> Mapping[str, Check]:
    return {check.name: check for check in checks}


def test_facts_alone_are_quick_and_healthy(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    told = capsys.readouterr().out
    for name in ("python", "platform", "device.mlx", "device.default", "blas", "disk_free_gib"):
        assert f"\n{name} " in f"\n{told}"
    assert "valid (model builtin, arena nim)" in told
    assert "self-test" not in told


@pytest.mark.slow
@pytest.mark.usefixtures("own_checks")
@pytest.mark.parametrize("model", MODELS)
def test_every_check_passes_here(model: str, tiny_models: Mapping[str, Path]) -> None:
    report = examine(self_test=True, model=str(tiny_models[model]))
    checks = by_name(report.checks)
    names = ["parity", "swap", "checkpointing", "shared_prefix", "repeat", "together", "speed"]
    assert list(checks) == names
    assert report.healthy, report.text()
    assert {name for name, check in checks.items() if check.status == "skip"} <= {"swap"}
    assert checks["parity"].figures["tokens"] == 256
    assert 0 <= checks["parity"].figures["largest_gap_nats"] < 1e-4
    assert checks["checkpointing"].figures["distance"] < 1e-5
    assert 0 < checks["shared_prefix"].figures["distance"] < 1e-4
    assert checks["repeat"].figures == {"distance": 0.0, "equal_bits": 1.0}
    assert checks["together"].figures["rounds"] >= 1
    speed = checks["speed"].figures
    for name in ("sampled_tokens_per_s", "sync_ms", "fork_ms", "decode_ms", "lora_decode_ms_ahead"):
        assert speed[name] > 0
    assert "\npass  parity " in report.text()


@pytest.mark.usefixtures("own_checks")
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
    assert told["checks"]["together"]["status"] == "fail"


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


@pytest.mark.usefixtures("own_checks")
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


@pytest.mark.usefixtures("own_checks")
def test_a_step_that_changes_its_gradients_is_found(
    tiny_models: Mapping[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    factors = count(1)
    compute = MlxChecks.step

    def step(*args: Any, **options: Any) -> MeasuredStep:
        found = compute(*args, **options)
        return replace(found, gradients=found.gradients * next(factors))

    monkeypatch.setattr(MlxChecks, "step", step)
    checks = by_name(examine(self_test=True, model=str(tiny_models["llama"])).checks)
    assert (checks["parity"].status, checks["repeat"].status) == ("pass", "fail")
    assert checks["repeat"].figures["equal_bits"] == 0.0


@pytest.mark.usefixtures("own_checks")
def test_the_long_test_lets_engine_and_trainer_compute_for_longer(
    tiny_models: Mapping[str, Path],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(self_test, "TOGETHER_S", 0.0)
    monkeypatch.setattr(self_test, "LONG_TOGETHER_S", 0.5)
    monkeypatch.setattr("legos.apps.doctor.CHECKS", {"together": SelfTest.together})
    arguments = ["doctor", "--self-test", "--long", "--model", str(tiny_models["llama"]), "--json"]
    assert main(arguments) == 0
    figures = json.loads(capsys.readouterr().out)["checks"]["together"]["figures"]
    assert figures["rounds"] >= 1
    assert figures["footprint_mib"] > 10
    assert main(["doctor", "--long"]) == 2
    assert "--long is for the checks" in capsys.readouterr().err


def test_facts_of_a_mac_are_part_of_the_report(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("legos.apps.doctor.mac_facts", lambda: {"chip": "Apple M9"})
    assert examine().as_dict()["mac"] == {"chip": "Apple M9"}


@pytest.mark.nightly
def test_the_small_model_is_checked_within_a_minute() -> None:
    slow = slowness()
    report = examine(self_test=True)
    assert report.healthy, report.text()
    assert sum(check.seconds for check in report.checks) < 60 * max(slow, slowness())


@pytest.mark.nightly
def test_the_longest_rows_on_macs_come_from_configurations(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    models = json.loads(USUAL_MODELS.read_text())
    file = tmp_path / "models.json"
    file.write_text(json.dumps({"Llama 3.2 1B": models["Llama 3.2 1B"]}))
    assert main(["doctor", "--fits", str(file)]) == 0
    page = Path("docs/run/mac.md").read_text()
    table = capsys.readouterr().out.strip().splitlines()
    assert len(table) == 4
    assert all(line in page for line in table)
    assert all(f"| {name} | 4 bits |" in page for name in models)
