"""The scripts of ``.ci``: what the steps collect, and what a release needs."""

import os
import re
import shutil
import subprocess
from datetime import datetime
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


RELEASE = {  # the files of a release that a checklist finds right
    "pyproject.toml": 'version = "1.2.3"\n[project.urls]\n',
    "CHANGELOG.md": "## [Unreleased]\n\n- A line.\n\n## [1.2.2] - 2026-01-01\n",
    "README.md": "git clone https://legos.example.org\nVersion 1.2.3.\n",
    "docs/start/walks.md": f"Two cores, {datetime.now():%d %B\n%Y}:\n",
}


@pytest.mark.parametrize(
    ("file", "right", "wrong", "refused"),
    [
        ("README.md", "", "", "the branch is main"),  # these are no repository
        ("pyproject.toml", "1.2.3", "1.2.2", "pyproject.toml has it"),
        ("CHANGELOG.md", "1.2.2", "1.2.3", "CHANGELOG.md does not have it yet"),
        ("CHANGELOG.md", "- A line.", "", "CHANGELOG.md has entries under Unreleased"),
        ("README.md", "https://legos.example.org", "ADDRESS legos", "repository's address"),
        ("pyproject.toml", "[project.urls]\n", "", "has it under [project.urls]"),
        ("README.md", "Version 1.2.3", "Version 1.2", "Status names the version"),
        ("README.md", "1.2.3.", "1.2.3, before its first release.", "no first release to come"),
        ("docs/start/walks.md", "Two", "1 March 2026; two", "are of the last 30 days"),
    ],
)
def test_a_release_is_refused_by_the_point_that_does_not_hold(
    file: str, right: str, wrong: str, refused: str, tmp_path: Path
) -> None:
    for name, text in (RELEASE | {file: RELEASE[file].replace(right, wrong)}).items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / ".ci").mkdir()
    script = shutil.copy(ROOT / ".ci" / "release", tmp_path / ".ci")
    alone = os.environ | {"GIT_CEILING_DIRECTORIES": str(tmp_path.parent)}
    done = subprocess.run([script, "1.2.3"], env=alone, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert refused in done.stderr.splitlines()[-1]
