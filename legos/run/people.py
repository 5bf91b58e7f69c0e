"""Plays of people at the terminal, which count in tournaments and leagues."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from legos.errors import CheckpointError
from legos.files.atomic import refusals_named
from legos.files.lines import NewLines, append_whole
from legos.records.episode import Episode
from legos.records.names import BASE
from legos.records.numbers import plain_value
from legos.run.folder import RUNS

PEOPLE = RUNS / "people.jsonl"


class PersonalPlay(msgspec.Struct, frozen=True, kw_only=True):
    """A play that ended, in which a person had a seat."""

    options: Mapping[str, Any]  # of the arena
    members: Mapping[str, str]  # role -> ``person:NAME``, a bot, a server, or an adapter's digest
    result: Episode  # without what was said

    @property
    def sides(self) -> Mapping[str, Sequence[str]]:
        """Who has played -> their roles."""
        sides: dict[str, list[str]] = {}
        for role, who in self.members.items():
            sides.setdefault(who, []).append(role)
        return sides

    def keep(self) -> None:
        """Add it to the file of all such plays.

        Raises:
            CheckpointError: the file cannot be written.
        """
        with refusals_named(PEOPLE):
            PEOPLE.parent.mkdir(parents=True, exist_ok=True)
            line = msgspec.json.encode(self, enc_hook=plain_value)
            append_whole(PEOPLE, line + b"\n")


def personal_plays(arena: str, options: Mapping[str, Any]) -> Iterator[PersonalPlay]:
    """The plays of an arena with these options that were kept, oldest first.

    Raises:
        CheckpointError: a line of the file is no play, or the file cannot be read.
    """
    for number, line in NewLines(PEOPLE).read():
        try:
            kept = msgspec.json.decode(line, type=PersonalPlay)
        except (ValueError, RecursionError) as error:
            raise CheckpointError(
                f"line {number} of {PEOPLE} is no play of a person: {error}; remove the line"
            ) from error
        if (kept.result.arena, kept.options) == (arena, options):
            yield kept


def lasting_base(model: str) -> str:
    """The base model as a member of these plays."""
    return f"{BASE} of {model}"
