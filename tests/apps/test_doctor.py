"""``legos doctor``: the report of a healthy machine, and what it says of a broken one."""

import json
import threading
from collections.abc import Mapping
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from legos.apps.doctor import Report, examine
from legos.checks import device
from legos.checks.device import Check, SelfTest
from legos.cli.process import main
from legos.mlx.checks import architectures
from legos.mlx.checks.device import MlxChecks
from legos.weights.adapter import Adapter

MODELS = ["llama", pytest.param("qwen3", marks=pytest.mark.nightly)]
ROOT = Path(__file__).parents[2]
DEVICE_CHECKS = 'uv run pytest -m "slow or nightly" tests/mlx/test_device_checks.py'


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "TOGETHER_S", 0.1)


def by_name(checks: Any) -> Mapping[str, Check]:
    return {check.name: check for check in checks}


def test_facts_alone_are_quick_and_healthy(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    told = capsys.readouterr().out
    for name in ("python", "platform", "device.mlx", "device.default", "blas", "disk_free_gib"):
        assert f"\n{name} " in f"\n{told}"
    assert "self-test" not in told


@pytest.mark.parametrize("mac", [{}, {"chip": "Apple M5"}])
def test_the_report_of_a_mac_asks_for_what_no_test_shows(mac: Mapping[str, str]) -> None:
    check = Check(name="parity", passed=True, metrics={"tokens": 256.0}, reason="")
    told = Report(facts={"mac": mac}, model="a model", checks=[check]).text()
    assert "1 of 1 pass" in told
    asked = told.rstrip().splitlines()[-3:]
    assert (asked[:2] == ["uv run legos doctor --models", "uv run legos bench"]) == bool(mac)
    assert (asked[2] == DEVICE_CHECKS) == bool(mac)
    assert (ROOT / DEVICE_CHECKS.split()[-1]).exists()
    assert f"`{DEVICE_CHECKS}`" in (ROOT / "docs" / "run" / "devices.md").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
def test_every_check_passes_here(model: str, tiny_models: Mapping[str, Path]) -> None:
    report = examine(self_test=True, model=str(tiny_models[model]))
    checks = by_name(report.checks)
    assert list(checks) == ["parity", "swap", "gradients", "together"]
    assert report.healthy, report.text()
    assert checks["parity"].metrics["tokens"] == 256
    assert 0 <= checks["parity"].metrics["largest_gap_nats"] < 1e-4
    gradients = checks["gradients"].metrics
    assert gradients["repeated"] == 0.0
    assert gradients["checkpointing"] < 1e-5
    assert 0 < gradients["whole_rows"] < 1e-4
    assert checks["together"].metrics["rounds"] >= 1
    assert "\npass  parity " in report.text()


@pytest.mark.slow
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
    assert parity["passed"] is False
    assert parity["metrics"]["largest_gap_nats"] > 1e-3
    assert "largest_gap_nats is" in parity["reason"]
    assert told["checks"]["gradients"]["passed"] is True
    assert told["checks"]["together"]["passed"] is False


def test_a_self_test_that_cannot_begin_leaves_no_thread(
    tiny_models: Mapping[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("no room")

    monkeypatch.setattr(SelfTest, "_live", refuse)
    before = set(threading.enumerate())
    [check] = device.run_checks(str(tiny_models["llama"]))
    assert (check.passed, check.reason) == (False, "RuntimeError: no room")
    assert set(threading.enumerate()) <= before


def test_a_check_that_raises_fails_alone(
    tiny_models: Mapping[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def parity(_: SelfTest) -> Check:
        raise RuntimeError("[metal] no kernel")

    monkeypatch.setattr(device, "CHECKS", (parity, SelfTest.swap))
    report = examine(self_test=True, model=str(tiny_models["llama"]))
    checks = by_name(report.checks)
    assert (checks["parity"].passed, checks["swap"].passed) == (False, True)
    assert checks["parity"].reason == "RuntimeError: [metal] no kernel"
    assert not report.healthy
    assert "1 of 2 pass" in report.text()


@pytest.mark.slow
def test_gradients_that_differ_are_found(
    tiny_models: Mapping[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(device.LARGEST_DISTANCE, "float32", 1e-12)
    monkeypatch.setattr(device, "CHECKS", (SelfTest.gradients,))
    [check] = examine(self_test=True, model=str(tiny_models["llama"])).checks
    assert (check.name, check.passed) == ("gradients", False)
    assert "at most 1e-12 is expected" in check.reason


def test_a_model_that_cannot_be_loaded_is_a_finding(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--self-test", "--model", "/nowhere"]) == 1
    assert "fail  load" in (told := capsys.readouterr().out)
    assert "no model folder '/nowhere'" in told


@pytest.mark.slow
def test_a_step_that_changes_its_gradients_is_found(
    tiny_models: Mapping[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    factors = count(1)
    compute = MlxChecks.gradients

    def gradients(*args: Any, **options: Any) -> NDArray[np.float64]:
        return compute(*args, **options) * next(factors)

    monkeypatch.setattr(MlxChecks, "gradients", gradients)
    monkeypatch.setattr(device, "CHECKS", (SelfTest.gradients,))
    [check] = examine(self_test=True, model=str(tiny_models["llama"])).checks
    assert not check.passed
    assert check.reason.startswith("repeated is 0.5; at most 0.001")


def test_facts_of_a_mac_are_part_of_the_report(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("legos.apps.doctor.mac_facts", lambda: {"chip": "Apple M9"})
    assert examine().as_dict()["mac"] == {"chip": "Apple M9"}


@pytest.mark.nightly
def test_a_random_model_is_checked_without_a_download() -> None:
    report = examine(self_test=True)
    assert report.healthy, report.text()
    assert report.model == "a random model of 5 million parameters"


@pytest.mark.nightly
def test_architectures_are_loaded_as_a_run_loads_them(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", "--models", "llama", "rwkv7", "olmo"]) == 0
    head, _, *rows = capsys.readouterr().out.splitlines()
    assert head.split() == [
        *("|", "architecture", "|", "trains", "|", "checkpointing"),
        *("|", "serves", "|"),
    ]
    assert rows[0].split()[1::2] == ["llama", "yes", "yes", "yes"]
    assert rows[1].split()[1:4:2] == ["rwkv7", "yes"]
    assert rows[2].split()[1::2] == ["olmo", "-", "-", "-"]
    assert any(row.startswith("- olmo: no small model can be built: SystemExit") for row in rows)

    def probe(*_: object) -> None:
        raise RuntimeError("[metal] no kernel")

    monkeypatch.setattr(architectures, "probe", probe)
    assert main(["doctor", "--models", "llama", "--json"]) == 1
    told = json.loads(capsys.readouterr().out)["architectures"]["llama"]
    assert (told["trains"], told["serves"]) == ("yes", "error")
    assert told["reasons"] == "serves: RuntimeError: [metal] no kernel"


def test_an_unknown_architecture_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--models", "lama"]) == 2
    said = capsys.readouterr()
    assert "no architecture 'lama'; did you mean 'llama'?" in said.err
    assert said.out == ""
    assert main(["doctor", "llama"]) == 2
    assert "only after --models" in capsys.readouterr().err


def test_a_model_without_the_checks_it_is_for_is_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["doctor", "--model", "builtin"]) == 2
    assert "--model builtin is for the checks; give --self-test too" in capsys.readouterr().err
