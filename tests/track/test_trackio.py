"""trackio, for real: the same calls, over a resume."""

import sys
from pathlib import Path
from re import escape

import numpy as np
import pytest
from made_records import make_episode

from legos.errors import ConfigError
from legos.installed import adding
from legos.losses.alarms import Alarm
from legos.run.key_figures import key_figures
from legos.track.experiment import ExperimentTracker
from legos.track.trackio import start_trackio


def test_a_library_that_is_missing_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "trackio", None)
    with pytest.raises(ConfigError, match=f"not installed; add it: {escape(adding('trackio'))}"):
        start_trackio(tmp_path, config={})


@pytest.mark.optional
def test_what_is_written_over_a_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "data"))
    storage = pytest.importorskip("trackio.sqlite_storage").SQLiteStorage
    folder = tmp_path / "nim-1"
    for version in range(14):
        (folder / "adapters" / f"v{version}").mkdir(parents=True)
        (folder / "adapters" / f"v{version}" / "adapters.safetensors").write_text(f"{version}")
    plays = [make_episode({"only": reward}) for reward in (0.0, 1.0)]
    for first, last in ((1, 12), (11, 13)):
        library, run = start_trackio(folder, config={"seed": 3}, group="seeds")
        tracker = ExperimentTracker(library, run, folder, better=key_figures, step_column=False)
        for step in range(first, last + 1):
            ratios = lambda: np.ones(5, np.float32)  # noqa: E731
            tracker.plays(plays, step=step, evaluation=False, ratios=ratios)
            tracker.log({"loss": 1 / step, "policy_version": step}, step=step)
        tracker.plays(plays, step=last - 1, evaluation=True)
        tracker.log({"eval/reward_mean": 0.1 * last}, step=last - 1)
        tracker.alert(Alarm(level="error", metric="loss", text="too high"), step=last)
        tracker.close()
    rows = storage.get_logs("legos", "nim-1")
    assert [row["step"] for row in rows if "train/loss" in row] == [*range(1, 14)]
    assert [row["step"] for row in rows if "eval/reward_mean" in row] == [11, 12]
    assert [row["step"] for row in rows if "train/histogram/ratios" in row] == [10]
    assert all("eval/plays" in row for row in rows if "eval/reward_mean" in row)
