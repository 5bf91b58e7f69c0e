"""Plays of people at the terminal, which count in tournaments."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from legos.errors import CheckpointError
from legos.files.atomic import refusals_named
from legos.files.lines import append_whole
from legos.records.episode import Episode
from legos.run.folder import RUNS

__all__ = ["PEOPLE", "PersonalPlay", "personal_plays"]

PEOPLE = RUNS / "people.jsonl"


class PersonalPlay(msgspec.Struct, frozen=True, kw_only=True):
    """A play that ended, in which a person had a seat."""

    options: Mapping[str, Any]  # of the arena
    members: Mapping[str, str]  # role -> ``person:NAME``, a bot, a server, or an adapter's digest
    result: Episode  # without what was said

    def keep(self) -> None:
        """Add it to the file of all such plays.

        Raises:
            CheckpointError: the file cannot be written.
        """
        with refusals_named(PEOPLE):
            PEOPLE.parent.mkdir(parents=True, exist_ok=True)
            line = msgspec.json.encode(self, enc_hook=float)  # NumPy's floats
            append_whole(PEOPLE, line + b"\n")


def personal_plays(path: Path = PEOPLE) -> Iterator[PersonalPlay]:
    """All plays that were kept, oldest first; none where there is no file.

    Raises:
        CheckpointError: a line is no play.
    """
    if not path.exists():
        return
    for number, line in enumerate(path.read_bytes().splitlines(), start=1):
        try:
            yield msgspec.json.decode(line, type=PersonalPlay)
        except msgspec.MsgspecError as error:
            raise CheckpointError(
                f"line {number} of {path} is no play of a person: {error}; remove the line"
            ) from error
