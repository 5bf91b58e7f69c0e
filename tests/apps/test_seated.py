"""Adapters that seats name: loaded, and the same when a run is resumed."""

import json
import random
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from made_snapshots import adapter

from arenas.kuhn import Kuhn
from legos import Arena, Task
from legos.apps.seated import load_seated
from legos.arena.arena import GameArena
from legos.errors import CheckpointError
from legos.fakes import ScriptedClient
from legos.league.cast import Cast
from legos.league.matchmaker import LeagueSeats
from legos.play.table import Table
from legos.protocols import Seat
from legos.weights.adapter import Adapter
from legos.weights.folder import write_adapter


class Duel(Arena):
    """The second seat is an adapter's."""

    roles = ("learner", "rival")
    rival = ""

    def tasks(self, rng: random.Random) -> Iterator[Task]:
        yield Task(id="only")

    def seats(self, task: Task) -> Mapping[str, Seat]:
        assert self.client is not None
        rival = Seat(role="rival", client=self.client, adapter=self.rival, trainable=False)
        return {**super().seats(task), "rival": rival}

    async def play(self, t: Table) -> Mapping[str, float]:
        return {}


def seated(kind: str, rival: Path) -> tuple[Arena, list[Adapter]]:
    """An arena whose seats name a folder, and the adapters that were loaded."""
    if kind == "league":
        arena: Arena = GameArena(Kuhn(), ScriptedClient([]))
        arena.matchmaker = LeagueSeats({str(rival): 1.0}, Cast(arena))
    else:
        arena = duel = Duel(ScriptedClient([]))
        duel.rival = str(rival)
    loaded: list[Adapter] = []
    load_seated([arena], loaded.append)
    return arena, loaded


def written(folder: Path, version: int) -> Adapter:
    folder.mkdir(exist_ok=True)
    write_adapter(made := adapter(version), folder)
    return made


@pytest.mark.parametrize("kind", ["league", "own seats"])
def test_a_name_that_means_other_weights_is_refused(kind: str, tmp_path: Path) -> None:
    rival = tmp_path / "rival"
    before = written(rival, 1)
    arena, loaded = seated(kind, rival)
    assert [each.digest for each in loaded] == [before.digest]
    state = json.loads(json.dumps(arena.state()))
    same, _ = seated(kind, rival)
    same.restore(state)
    assert same.state() == state
    other, _ = seated(kind, tmp_path / "rival" / ".." / "rival")  # which nobody has met
    other.restore(state)
    state = json.loads(json.dumps(other.state()))
    after = written(rival, 2)
    changed, _ = seated(kind, rival)
    with pytest.raises(CheckpointError) as error:
        changed.restore(state)
    for part in (
        str(rival),
        f"had digest {before.digest[:12]} in the checkpoint",
        f"has {after.digest[:12]} now",
        "name the weights that it had by their step, RUN@STEP, bring them back, or start a new",
    ):
        assert part in str(error.value)
    del state["adapters"]  # as an earlier version wrote it
    changed.restore(state)
