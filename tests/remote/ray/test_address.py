"""Addresses at which no cluster answers; needs the extra ray, and no cluster."""

from pathlib import Path
from typing import Any

import pytest

from legos.cli.process import main
from legos.errors import ConfigError

pytestmark = pytest.mark.optional


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("127.0.0.1:1", "no Ray cluster answers at '127.0.0.1:1' (Connection refused)"),
        ("ray://127.0.0.1", "ray is 'ray://127.0.0.1'; expected local, auto, or HOST:PORT"),
    ],
)
def test_an_address_where_nothing_answers_is_named(
    address: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("ray")
    assert main(["train", "--ray", address, "--steps", "1", "--out", str(tmp_path / "run")]) != 0
    assert message in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "run").exists()


def test_a_cluster_that_does_not_start_here_is_not_asked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ray: Any = pytest.importorskip("ray")

    def init(**_: Any) -> None:
        raise RuntimeError("The current node timed out during startup.")

    monkeypatch.setattr(ray, "init", init)
    assert main(["train", "--ray", "local", "--steps", "1", "--out", str(tmp_path / "run")]) != 0
    told = " ".join(capsys.readouterr().err.split())
    assert "Ray did not start on this machine (The current node timed out during startup.)" in told
    assert "use --ray local" not in told


def test_more_engines_than_gpus_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    ray: Any = pytest.importorskip("ray")
    from legos.remote.ray.cluster import started

    monkeypatch.setattr(ray, "cluster_resources", lambda: {"CPU": 64.0, "GPU": 8.0})
    with pytest.raises(ConfigError, match=r"9 engines .* has 8; give --engines 8 or fewer"):
        started(object, 9, use_gpus=True)
