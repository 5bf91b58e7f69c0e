"""Adapters in a shared folder: one whole copy for all servers, removed when nobody reads it."""

import asyncio
import os
import stat
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest
from published import caught_up, publishers, small_adapter
from scripted_server import HttpAnswer, HttpAsked, ScriptedServer, serving

from legos.errors import CheckpointError, ConfigError, EngineError
from legos.remote.publish import broadcast
from legos.remote.publish.broadcast import Broadcaster
from legos.remote.publish.carriers import SLOTS, Carrier
from legos.weights.adapter import Adapter
from legos.weights.folder import read_adapter


class FolderServer(ScriptedServer):
    """A server that reads adapters below a folder; it may see new ones late, or not answer."""

    def __init__(self, folder: Path, *, blind: int = 0) -> None:
        super().__init__(self.load)
        self.folder, self.blind = folder, blind
        self.runs = threading.Event()
        self.runs.set()
        self.loaded: list[int] = []

    async def load(self, asked: HttpAsked) -> HttpAnswer:
        await asyncio.to_thread(self.runs.wait)
        place = self.folder / asked.body["path"]
        if self.blind:
            self.blind -= 1
            return HttpAnswer({"error": {"message": "there is no such adapter folder"}}, 404)
        info = read_adapter(place).info
        self.loaded.append(info.version)
        return HttpAnswer({"version": info.version, "digest": info.digest})


def copies(parent: Path) -> Sequence[str]:
    """The adapters that stand in the folder of the only publisher."""
    (own,) = parent.iterdir()
    return sorted(place.name.partition("-")[2] for place in own.iterdir())


def test_one_copy_serves_all_and_the_newest_stay(tmp_path: Path) -> None:
    servers = [FolderServer(tmp_path) for _ in range(3)]
    carrier = Carrier(tmp_path)

    async def story(urls: list[str]) -> None:
        readers = publishers(urls, carrier)
        broadcaster = Broadcaster(zip(urls, readers, strict=True))
        written: set[str] = set()
        try:
            for version in range(6):
                await broadcaster.publish(small_adapter(version))
                written |= set(copies(tmp_path))
            assert written == {f"policy@{version}" for version in range(6)}
            assert copies(tmp_path) == ["policy@3", "policy@4", "policy@5"][-SLOTS:]
            await broadcaster.reload(0)
            assert servers[0].loaded[-1] == 5
        finally:
            await broadcaster.aclose()

    with ExitStack() as stack:
        asyncio.run(story([stack.enter_context(serving(server)) for server in servers]))
    assert [server.loaded for server in servers[1:]] == [list(range(6))] * 2
    assert all(set(asked.body) == {"path"} for asked in servers[1].asked)
    (own,) = tmp_path.iterdir()
    umask = os.umask(0)
    os.umask(umask)
    assert stat.S_IMODE(own.stat().st_mode) == 0o777 & ~umask  # other users' servers read it
    carrier.close()
    assert list(tmp_path.iterdir()) == []


def test_what_a_stopped_server_may_be_reading_stays(tmp_path: Path) -> None:
    servers = [FolderServer(tmp_path) for _ in range(2)]
    carrier = Carrier(tmp_path)

    async def story(urls: list[str]) -> None:
        broadcaster = Broadcaster(zip(urls, publishers(urls, carrier), strict=True))
        try:
            await broadcaster.publish(small_adapter(0))
            servers[1].runs.clear()
            for version in range(1, 8):
                await broadcaster.publish(small_adapter(version))
            assert copies(tmp_path) == ["policy@1", "policy@5", "policy@6", "policy@7"]
            servers[1].runs.set()
            await caught_up(broadcaster, 1, "policy@7")
            assert copies(tmp_path) == ["policy@5", "policy@6", "policy@7"]
        finally:
            servers[1].runs.set()
            await broadcaster.aclose()

    with ExitStack() as stack:
        asyncio.run(story([stack.enter_context(serving(server)) for server in servers]))
    assert servers[1].loaded == [0, 1, 7]


def test_a_folder_that_appears_late_is_asked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broadcast, "AGAIN_S", 0.01)
    servers = [FolderServer(tmp_path), FolderServer(tmp_path)]

    async def story(urls: list[str]) -> None:
        carrier = Carrier(tmp_path)
        broadcaster = Broadcaster(zip(urls, publishers(urls, carrier), strict=True))
        try:
            await broadcaster.publish(small_adapter(0))
            servers[1].blind = 3
            await broadcaster.publish(small_adapter(1))
            await caught_up(broadcaster, 1, "policy@1")
        finally:
            await broadcaster.aclose()
        servers[1].blind = 1 << 30
        never = Broadcaster(zip(urls, publishers(urls, carrier), strict=True))
        try:
            with pytest.raises(EngineError, match=r"--adapter-folder must be the adapter_folder"):
                await never.publish(small_adapter(2))
        finally:
            await never.aclose()

    with ExitStack() as stack:
        asyncio.run(story([stack.enter_context(serving(server)) for server in servers]))
    assert servers[1].loaded == [0, 1]


def test_a_folder_where_nothing_can_be_written(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="which is no folder; create it"):
        Carrier(tmp_path / "absent")
    carrier = Carrier(tmp_path)
    (own,) = tmp_path.iterdir()

    async def write(given: Adapter) -> None:
        async with carrier.carried(given):
            pass

    own.rmdir()
    own.write_text("in the way")
    with pytest.raises(CheckpointError, match=own.name):
        asyncio.run(write(small_adapter(0)))
    own.unlink()
    asyncio.run(write(small_adapter(0)))
    assert copies(tmp_path) == ["policy@0"]
