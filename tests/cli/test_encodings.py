"""Terminals whose encoding lacks characters of a play."""

import os
import subprocess
import sys
from pathlib import Path

from made_records import make_episode
from msgspec.structs import replace

from legos.run.folder import RunFolder


def test_a_terminal_that_cannot_show_a_play_shows_the_rest(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "run")
    run.path.mkdir()
    run.write_config("")
    run.add_episodes(1, [replace(make_episode({"ann": 1.0}), notes=("a snowman \u2603",))])
    done = subprocess.run(
        [sys.executable, "-m", "legos", "watch", str(run.path)],
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "a snowman \\u2603\nrewards: ann +1" in done.stdout
