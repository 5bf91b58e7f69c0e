"""Every test with a mark that the fast run leaves out is collected by a step of ``.ci/run``."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
RUN = (ROOT / ".ci" / "run").read_text().replace("\\\n", " ")


def collected(mark: str) -> list[Path]:
    """The files and folders of the steps whose expression needs a mark."""
    steps = re.findall(rf"""pytest -m "?{mark}\b(.*)""", RUN)
    return [ROOT / place for step in steps for place in re.findall(r"\btests/[\w./]+", step)]


@pytest.mark.parametrize("mark", ["optional", "real", "learning"])
def test_a_step_collects_every_file_with_a_mark(mark: str) -> None:
    files = [
        path
        for path in (ROOT / "tests").rglob("test_*.py")
        if re.search(rf"mark\.{mark}\b", path.read_text())
    ]
    places = collected({"learning": "real and learning"}.get(mark, mark))
    assert files
    assert [file for file in files if not any(file.is_relative_to(at) for at in places)] == []


@pytest.mark.parametrize("script", ["install", "release", "run", "vllm"])
def test_a_script_has_no_errors_of_syntax(script: str) -> None:
    subprocess.run(["bash", "-n", ROOT / ".ci" / script], check=True)
