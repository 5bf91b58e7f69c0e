"""The file of people's plays: what cannot be read is named."""

from pathlib import Path

import pytest

from legos.errors import CheckpointError
from legos.run.people import PEOPLE, personal_plays

NESTED = '{"result":{' + '"children":[{' * 100_000


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    PEOPLE.parent.mkdir()


def test_without_a_file_there_are_no_plays() -> None:
    assert [*personal_plays("nim", {})] == []


def test_a_file_that_cannot_be_read_is_named() -> None:
    PEOPLE.mkdir()
    with pytest.raises(CheckpointError, match=r"cannot read runs/people\.jsonl: Is a directory"):
        list(personal_plays("nim", {}))


@pytest.mark.parametrize("line", ["nonsense", NESTED, "{}"])
def test_a_line_that_is_no_play_is_named(line: str) -> None:
    PEOPLE.write_text(f"{line}\n")
    with pytest.raises(CheckpointError, match=r"line 1 of runs/people\.jsonl is no play"):
        list(personal_plays("nim", {}))
