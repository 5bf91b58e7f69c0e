"""One model with the adapters of the shown runs, each loaded when it is first asked."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from legos.clients.engine import EngineClient
from legos.errors import CheckpointError
from legos.games.scored import legal_shares
from legos.page.run_view import RunView
from legos.page.shown import ShownRuns
from legos.records.message import Completion, Message, Sampling, Thinking
from legos.records.names import BASE
from legos.run.find import adapter_of, split_place
from legos.server.problems import Problem
from legos.weights.folder import read_adapter

_MOST_LIVE = 8  # adapters in the engine; of more, those that were asked longest ago are dropped


class Checkpoints:
    """Answers for checkpoints: ``base``, and the adapters of runs as ``RUN``, ``RUN@STEP``, ...

    Attributes:
        model: the base model.
    """

    def __init__(
        self, model: str, client: Callable[[Thinking], EngineClient], runs: ShownRuns
    ) -> None:
        """Take what makes clients of one engine of the model by what prompts ask, and the runs."""
        self.model = model
        self._client, self._runs = cache(client), runs
        self._clients = {BASE: self._client("default")}  # of the names that were asked
        # Names that the engine was given, and whether they have arrived; the newest asked is last.
        self._live: dict[str, bool] = {}
        self._users: Counter[str] = Counter()
        self._loading = asyncio.Lock()

    async def complete(
        self, who: str, messages: Sequence[Message], sampling: Sampling
    ) -> Completion:
        """An answer of a checkpoint.

        Raises:
            Problem: there is no such checkpoint.
            AdapterError: it was trained on another model, or is damaged.
            RequestError: it cannot be asked this.
        """
        async with self._adapter(who) as name:
            return await self._clients[name].complete(messages, sampling, adapter=name)

    async def shares(
        self, who: str, messages: Sequence[Message], moves: Sequence[str], *, restricted: bool
    ) -> tuple[dict[str, float], float]:
        """The probabilities of moves, as ``legal_shares``; errors as for ``complete``."""
        async with self._adapter(who) as name:
            asked = [(messages, moves)]
            [scores] = await self._clients[name].score(asked, adapter=name, restricted=restricted)
            return legal_shares(moves, scores)

    @asynccontextmanager
    async def _adapter(self, who: str) -> AsyncGenerator[str]:
        """Within the block, a checkpoint is live under the name."""
        if who == BASE:
            yield BASE
            return
        async with self._loading:
            name = await self._load(*await asyncio.to_thread(self._place, who))
        self._users[name] += 1
        try:
            yield name
        finally:
            self._users[name] -= 1

    async def _load(self, folder: Path, written_at: int) -> str:
        """Make an adapter live; returns its name in the engine."""
        name = f"page-{hash((folder, written_at)):x}"
        engine = self._clients[BASE].engine
        if not self._live.pop(name, False):
            adapter = await asyncio.to_thread(read_adapter, folder)
            adapter.check_base(self.model)
            thinking = adapter.thinking or "default"
            self._clients[name] = await asyncio.to_thread(self._client, thinking)
            self._live[name] = False  # it may arrive although nobody waits for it any more
            await asyncio.wrap_future(engine.load_adapter(replace(adapter, name=name)))
        self._live[name] = True
        unused = [each for each in self._live if not self._users[each] and each != name]
        for each in unused[: max(0, len(self._live) - _MOST_LIVE)]:
            del self._live[each], self._clients[each]
            engine.drop_adapter(each)  # not awaited: it may not have arrived, and is then not live
        return name

    def _place(self, who: str) -> tuple[Path, int]:
        """The folder of a checkpoint of a shown run, and when it was written, in ns."""
        run, at = (who, None) if who in self._runs.all() else split_place(who)
        try:
            folder = adapter_of(self._runs.get(run).folder, at)
            return folder, folder.stat().st_mtime_ns
        except (CheckpointError, OSError) as error:
            raise Problem(404, str(error)) from error


def checkpoints_of(run: RunView) -> dict[str, Any]:
    """The adapters that a run keeps, with the steps after which they were written."""
    with run.lock:
        run.read()
        tables = run.metrics, run.evaluations
        steps = {version: step for t in tables for step, version in t.points("policy_version")}
        return {
            "run": run.name,
            "folder": str(run.folder.path),
            "model": run.config.model if run.config else None,
            "checkpoints": [
                {"name": f"{run.name}@v{version}", "step": steps.get(version, version)}
                for version in run.folder.adapter_versions
            ],
        }
