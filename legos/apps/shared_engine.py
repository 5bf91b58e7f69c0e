"""The engine of a trainer for HTTP clients, which may ask it but not replace trained adapters."""

from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from legos.errors import AdapterError
from legos.protocols import Deliver, Engine
from legos.records.names import POLICY, adapter_name, evaluated_name
from legos.records.request import Generated, Request, Result
from legos.weights.adapter import Adapter, AdapterInfo

__all__ = ["SharedEngine"]


class SharedEngine:
    """Passes on everything except changes of the run's adapters, and counts their tokens.

    Attributes:
        tokens_generated: tokens of the run's adapters in requests that have ended.
    """

    def __init__(self, engine: Engine, *, trained: Collection[str] = (POLICY,)) -> None:
        """Share an engine.

        Args:
            engine: the engine of the trainer.
            trained: names of the policies that only the run may replace, as it may their evaluated
                copies.
        """
        self._engine = engine
        self._trained = {*trained, *map(evaluated_name, trained)}
        self._counting: dict[Deliver, Deliver] = {}  # one for each receiver: the engine compares
        self.tokens_generated = 0

    def submit(self, requests: Sequence[tuple[int, Request]], deliver: Deliver) -> None:
        """Queue requests."""
        trained = [(n, r) for n, r in requests if adapter_name(r.adapter) in self._trained]
        others = [(n, r) for n, r in requests if adapter_name(r.adapter) not in self._trained]
        if trained:
            self._engine.submit(trained, self._counted(deliver))
        if others:
            self._engine.submit(others, deliver)

    def cancel(self, numbers: Sequence[int], deliver: Deliver) -> None:
        """End requests early."""
        for receiver in (self._counted(deliver), deliver):
            self._engine.cancel(numbers, receiver)

    def load_adapter(self, adapter: Adapter) -> "Future[AdapterInfo]":
        """Load another adapter; the future raises ``AdapterError`` for the run's names."""
        if adapter.name in self._trained:
            return self._refused(adapter.name)
        return self._engine.load_adapter(adapter)

    def drop_adapter(self, name: str) -> "Future[None]":
        """Drop another adapter; the future raises ``AdapterError`` for the run's names."""
        if name in self._trained:
            return self._refused(name)
        return self._engine.drop_adapter(name)

    def versions(self) -> Mapping[str, int]:
        """Live adapters: name -> policy version."""
        return self._engine.versions()

    def adapters(self) -> Mapping[str, AdapterInfo]:
        """Live adapters with their digests."""
        return self._engine.adapters()

    def stats(self) -> Mapping[str, float]:
        """The engine's numbers."""
        return self._engine.stats()

    def score(
        self,
        prompts: Sequence[tuple[tuple[int, ...], Sequence[tuple[int, ...]]]],
        *,
        end_ids: Sequence[int],
        adapter: str = POLICY,
        by_token: bool = False,
    ) -> "Future[list[list[float]]]":
        """Log-probability of each continuation as the whole answer to its prompt."""
        return self._engine.score(prompts, end_ids=end_ids, adapter=adapter, by_token=by_token)

    def _refused(self, name: str) -> "Future[Any]":
        future: Future[Any] = Future()
        future.set_exception(
            AdapterError(
                f"adapter {name!r} is being trained here and only its trainer replaces it; load "
                "yours under another name"
            )
        )
        return future

    def _counted(self, deliver: Deliver) -> Deliver:
        if deliver not in self._counting:

            def counted(results: Sequence[tuple[int, Result]]) -> None:
                ended = (result for _, result in results if isinstance(result, Generated))
                self.tokens_generated += sum(len(result.token_ids) for result in ended)
                deliver(results)

            self._counting[deliver] = counted
        return self._counting[deliver]
