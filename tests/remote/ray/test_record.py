"""Records of plays, the version of the kit and a missing Ray, without a cluster."""

import asyncio
import os
import sys
from collections.abc import Generator
from concurrent.futures import Future
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
from msgspec.structs import replace

from legos import make_arena
from legos.cli.process import main
from legos.errors import ConfigError
from legos.fakes import ScriptedClient
from legos.installed import adding
from legos.play.step import play_all
from legos.records.episode import Episode, Task
from legos.remote.ray import kit
from legos.remote.ray.kit import check_kit, kit_digest
from legos.remote.ray.record import pack_episodes, unpack_episodes


def played(number: int) -> tuple[list[Episode], list[tuple[Task, int]]]:
    arena = make_arena("nim", ScriptedClient(lambda asked: asked.sampling.choices[0]))
    arena.tasks_per_step = number
    plays = arena.cursor.next_group("round").plays
    return asyncio.run(play_all(arena, plays, asyncio.Semaphore(64))), [*plays]


def test_a_record_gives_back_every_field_of_the_plays_and_the_tasks_of_the_group() -> None:
    episodes, plays = played(8)
    spawned = replace(episodes[0], children=(replace(episodes[1], error="no", failure="failed"),))
    back = unpack_episodes(pack_episodes([spawned, *episodes[1:]]), plays)
    assert back[1:] == episodes[1:]
    assert back[0].children[0].rollouts == episodes[1].rollouts
    assert back[0].children[0].failure == "failed"
    assert back[0].children[0].task.data is None
    assert back[0].task.data == episodes[0].task.data


def test_another_version_of_the_kit_is_named_with_its_node() -> None:
    check_kit(kit_digest())
    with pytest.raises(
        ConfigError, match=rf"node {os.uname().nodename} has another version of leg"
    ):
        check_kit("0123")


class RayError(Exception):
    """An error of Ray's."""


class RayTaskError(RayError):
    """An error of an actor's method."""


class Actor:
    """An actor of Ray's, all of whose methods give the same."""

    def __init__(self, answer: bytes | None = None, *, hangs: bool = False) -> None:
        self.answer, self.hangs = answer, hangs
        self.play = self.prepare = self.sampled = self

    def remote(self, *_: object) -> Any:
        return self

    def future(self) -> "Future[bytes]":
        future: Future[bytes] = Future()
        if self.answer is None:
            future.set_exception(RayError("the object is lost"))
        else:
            future.set_result(self.answer)
        return future

    def __await__(self) -> Generator[Any, Any, int]:
        return asyncio.sleep(3600 if self.hangs else 0, 1).__await__()


@pytest.fixture
def players() -> Generator[Any]:
    """The module, with a stand-in for Ray."""
    errors = SimpleNamespace(RayError=RayError, RayTaskError=RayTaskError)
    with patch.dict(sys.modules, {"ray": SimpleNamespace(), "ray.exceptions": errors}):
        for name in ("library", "cluster", "players"):
            sys.modules.pop(f"legos.remote.ray.{name}", None)
        yield import_module("legos.remote.ray.players")


def test_a_group_whose_episodes_are_lost_with_their_node_is_played_again(players: Any) -> None:
    """Ray raises another error then than where the player has died."""
    episodes, plays = played(1)
    arena: Any = SimpleNamespace(name="nim", matchmaker=SimpleNamespace(seating=dict))
    two = players.Players([Actor(), Actor(pack_episodes(episodes))])
    assert asyncio.run(two.play(None, arena, plays)) == episodes
    assert two.deaths == 1


def test_a_player_that_stands_still_does_not_keep_a_run_from_its_count(
    players: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(players, "SILENCE_S", 0.2)
    assert asyncio.run(players.Players([Actor(), Actor(hangs=True)]).sampled()) == 1


@pytest.mark.parametrize("file", ["legos/loop/loop.py", "arenas/nim.py"])
def test_a_changed_source_is_another_version(
    file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kit, "__file__", f"{tmp_path}/legos/remote/ray/kit.py")
    (place := tmp_path / file).parent.mkdir(parents=True)
    found: set[str] = set()
    for text in ("", "one", "two"):
        place.write_text(text)
        found.add(kit_digest.__wrapped__())
    assert len(found) == 3


def test_without_ray_the_extra_is_named_before_anything_is_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in [n for n in sys.modules if n.startswith(("legos.remote.ray.", "ray."))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.chdir(tmp_path)
    assert main(["train", "--ray", "local", "--steps", "1"]) != 0
    assert f"add the extra ray ({adding('ray')})" in capsys.readouterr().err
    assert not [*tmp_path.rglob("config.toml")]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--players", "2"], "players is 2 but ray is not set"),
        (["--engines", "2"], "engines is 2 but ray is not set"),
        (["--ray", "local", "--engine", "vllm"], "ray is 'local' but engine is 'vllm'"),
        (["--ray", "local", "--deterministic"], "loop.deterministic is true but ray is 'local'"),
        (
            ["--ray", "auto", "--engines", "2", "--server", "http://localhost:1"],
            "engines is 2 but server is 'http://localhost:1'",
        ),
    ],
)
def test_settings_that_exclude_each_other_are_refused(
    options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", *options, "--dry-run"]) != 0
    assert message in " ".join(capsys.readouterr().err.split())
