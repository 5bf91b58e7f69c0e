"""The engines of a Ray cluster as one engine: it divides requests, and survives their deaths.

Equal prompts that are submitted together go to one engine, which computes them once; apart from
that, each request goes to the engine with the fewest requests. The requests of an engine that dies
are sent again: to the others, or to itself once Ray has started it again.

One process, the trainer's, owns the engines: it publishes adapters through Ray's object store,
where each node reads them without a copy, and gives the live ones to an engine that comes back.
"""

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from itertools import count
from typing import Any, NamedTuple, TypeVar

import numpy as np

from legos.errors import AdapterError, EngineError
from legos.protocols import Deliver
from legos.records.names import LAG, POLICY
from legos.records.request import Progress, Request, Result
from legos.remote.ray.channel import Channel
from legos.remote.ray.engine_actor import Report
from legos.remote.ray.frames import RequestFrame, Results, pack_requests, unpack_results
from legos.remote.ray.lags import Lags
from legos.remote.ray.library import RayActorError, RayTaskError, cause_of, ray
from legos.remote.ray.links import Link, LinkEvents
from legos.weights.adapter import Adapter, AdapterInfo

__all__ = ["RayEngine"]

PUBLISH_S = 30.0  # how long one publication waits for a slow engine; later ones do not
AGAIN_S = 0.5  # pause between two checks whether it is lost
REPORT_S = 5.0  # how long the counts of an engine are waited for
T = TypeVar("T")
_Prompt = tuple[int, ...]
_EngineLink = Link[RequestFrame, Results]


class _Waiting(NamedTuple):
    """A request without its result."""

    number: int  # the caller's
    request: Request
    deliver: Deliver
    link: _EngineLink | None  # None: no engine answers, so that it waits for one that comes back


class RayEngine:
    """Implements ``LocalEngine`` on engines of a Ray cluster."""

    def __init__(self, actors: Mapping[str, Any], *, owner: bool) -> None:
        """Connect to engines.

        Args:
            actors: name -> Ray actor of ``EngineActor``.
            owner: whether this process publishes adapters, opens the engines and ends them.
        """
        self.names = tuple(actors)
        self._owner = owner
        self._lock = threading.RLock()
        self._numbers = count()
        self._waiting: dict[int, _Waiting] = {}
        self._live: dict[str, tuple[AdapterInfo, Any]] = {}  # and where the object store has it
        # Engines that have not acknowledged: their answer, and the version that it acknowledges.
        self._behind: dict[_EngineLink, tuple[Any, str, int]] = {}
        self._lags = Lags(self.names)
        self._reports: dict[str, Report] = {}  # by life, so that those of dead processes count
        self._closed: EngineError | None = None
        self._calls = ThreadPoolExecutor(max_workers=1, thread_name_prefix="legos-ray-calls")
        if owner:
            for answer in [actor.open.remote() for actor in actors.values()]:
                _got(answer)
        with self._lock:  # a link that is lost at once waits for its name
            events = LinkEvents(self._hear, self._lost, self._back, self._dead)
            self._links = [Link(a, "an engine", _new_channel, events) for a in actors.values()]
            self._name_of = dict(zip(self._links, self.names, strict=True))

    def submit(self, requests: Sequence[tuple[int, Request]], deliver: Deliver) -> None:
        """Send requests; see ``Engine``.

        Raises:
            EngineError: it is closed, or every engine has died for good.
        """
        with self._lock:
            self._check_open()
            self._send(
                (next(self._numbers), _Waiting(number, request, deliver, None))
                for number, request in requests
            )

    def cancel(self, numbers: Sequence[int], deliver: Deliver) -> None:
        """End requests early; see ``Engine``."""
        wanted = set(numbers)
        with self._lock:
            for own, waiting in self._waiting.items():
                if waiting.number in wanted and waiting.deliver is deliver and waiting.link:
                    waiting.link.send(((), [own]))

    def load_adapter(self, adapter: Adapter) -> "Future[AdapterInfo]":
        """Load an adapter into all engines; see ``Engine``.

        An engine that is down gets it when it comes back. One that is slow is waited for once, and
        skips versions until it has caught up.
        """
        return self._call(lambda: self._load(adapter))

    def drop_adapter(self, name: str) -> "Future[None]":
        """Drop an adapter everywhere; see ``Engine``."""
        return self._call(lambda: self._drop(name))

    def versions(self) -> Mapping[str, int]:
        """Live adapters: name -> policy version."""
        return {name: info.version for name, info in self.adapters().items()}

    def adapters(self) -> Mapping[str, AdapterInfo]:
        """Live adapters: name -> version and digest."""
        return {name: info for name, (info, _) in dict(self._live).items()}

    def stats(self) -> Mapping[str, float]:
        """Counts of all engines when an adapter was last published, what waits now, and lags.

        In the process that publishes, ``lag_versions/ENGINE`` is by how many versions each is
        behind.

        Raises:
            EngineError: it is closed.
        """
        self._check_open()
        reports = dict(self._reports).values()
        return {
            "waiting": len(self._waiting),
            "engines": len(self._links),
            "engines_down": sum(not link.up for link in self._links),
            "engines_behind": len(self._behind),
            **({f"{LAG}{name}": n for name, n in self._lags.now().items()} if self._owner else {}),
            "tokens_generated_total": sum(sum(counts.values()) for _, counts, _ in reports),
            "worked_seconds_total": sum(worked for _, _, worked in reports)
            / max(1, len(self._links)),
        }

    def tokens_generated(self, adapter: str) -> "Future[int]":
        """Number of tokens sampled for a name in all engines.

        Of a process that has died, those until its last report; each publication asks for one.
        """

        def counted() -> int:
            self._ask_reports()
            return sum(counts.get(adapter, 0) for _, counts, _ in self._reports.values())

        return self._call(counted)

    def score(
        self,
        prompts: Sequence[tuple[_Prompt, Sequence[_Prompt]]],
        *,
        end_ids: Sequence[int],
        adapter: str = POLICY,
        by_token: bool = False,
    ) -> "Future[list[list[float]]]":
        """Log-probability of each continuation as the complete answer to its prompt, nats."""
        asked = prompts, end_ids, adapter, by_token
        return self._call(lambda: self._first(lambda actor: actor.score.remote(*asked)))

    def close(self) -> None:
        """Give every waiting request an ``EngineError``; the owner ends the engines."""
        if self._closed is not None:
            return
        closed = EngineError("the engine was closed")
        self._refuse_all(closed)
        self._calls.shutdown(cancel_futures=True)
        for link in self._links:
            link.close()
            if self._owner and ray.is_initialized():
                ray.kill(link.actor)

    def _send(self, waiting: Any) -> None:
        """Choose an engine for each request, and send them."""
        up = [link for link in self._links if link.up]
        parts: dict[_EngineLink, list[tuple[int, Request]]] = {link: [] for link in up}
        places: dict[_Prompt, _EngineLink] = {}
        for own, each in waiting:
            link = places.get(each.request.prompt_ids)
            if link is None and up:
                link = places[each.request.prompt_ids] = min(up, key=lambda one: one.load)
            self._waiting[own] = each._replace(link=link)
            if link is not None:
                link.load += 1
                parts[link].append((own, each.request))
        for link, part in parts.items():
            if part:
                link.send((part, ()))

    def _hear(self, results: Results) -> None:
        """Pass results on, on the thread of a link."""
        heard: dict[Deliver, list[tuple[int, Result]]] = {}
        with self._lock:
            for own, result in results:
                waiting = self._waiting.get(own)
                if waiting is None:
                    continue  # delivered, or sent elsewhere and delivered there
                if not isinstance(result, Progress):
                    del self._waiting[own]
                    if waiting.link is not None:
                        waiting.link.load -= 1
                heard.setdefault(waiting.deliver, []).append((waiting.number, result))
        for deliver, delivered in heard.items():
            deliver(delivered)

    def _lost(self, link: _EngineLink, _: Exception) -> None:
        """Send the requests of an engine that has died to the others."""
        with self._lock:
            link.load = 0
            self._behind.pop(link, None)
            self._lags.lost(self._name_of[link])
            self._send([item for item in self._waiting.items() if item[1].link is link])

    def _back(self, link: _EngineLink) -> None:
        """Give an engine that has come back the live adapters, and what waits for an engine."""
        loaded: list[Any] | None = [] if not self._owner else None
        while True:
            with self._lock:
                live = [reference for _, reference in self._live.values()] if self._owner else []
                if loaded == live:  # nothing was published meanwhile
                    link.up = True
                    self._lags.loaded_all(self._name_of[link])
                    self._send([item for item in self._waiting.items() if item[1].link is None])
                    return
            ray.get(link.actor.load.remote(*live))
            ray.get(link.actor.open.remote())
            loaded = live

    def _dead(self, link: _EngineLink, error: EngineError) -> None:
        with self._lock:
            self._links.remove(link)
        if not self._links:
            self._refuse_all(error)

    def _refuse_all(self, error: EngineError) -> None:
        with self._lock:
            self._closed = self._closed or error
            waiting, self._waiting = self._waiting, {}
        for each in waiting.values():
            each.deliver([(each.number, error)])

    def _load(self, adapter: Adapter) -> AdapterInfo:
        arrays = {name: np.asarray(array, np.float32) for name, array in adapter.arrays.items()}
        reference = ray.put(replace(adapter, arrays=arrays))
        former = self._live.get(adapter.name)
        with self._lock:
            self._live[adapter.name] = (adapter.info, reference)
            number = self._lags.publish(adapter.name)
            links = [link for link in self._links if link.up]
        self._catch_up()
        asked = {
            link.actor.load.remote(reference): link for link in links if link not in self._behind
        }
        ready, late = self._ready_or_lost(asked)
        self._behind.update({asked[each]: (each, adapter.name, number) for each in late})
        for answer in ready:
            try:
                (info,), report = _got(answer)
                self._reports[report[0]] = report
                self._lags.loaded(self._name_of[asked[answer]], adapter.name, number)
            except RayActorError:
                continue  # it has died; it gets the adapter when it comes back
            except AdapterError:
                with self._lock:
                    self._live.pop(adapter.name)
                    self._lags.withdraw(adapter.name)
                    if former is not None:
                        self._live[adapter.name] = former
                raise
            if info != adapter.info:
                raise EngineError(f"published {adapter.info} but {info} is live")
        return adapter.info

    def _ready_or_lost(self, asked: Mapping[Any, _EngineLink]) -> tuple[list[Any], list[Any]]:
        """The answers that come in time, and the others; a lost engine is not waited for."""
        until = time.monotonic() + PUBLISH_S
        ready, late = _ready(asked, AGAIN_S)
        while any(asked[each].up for each in late) and time.monotonic() < until:
            more, late = _ready(late, AGAIN_S)
            ready += more
        return ready, late

    def _catch_up(self) -> None:
        """Take engines that have acknowledged meanwhile off the list of slow ones."""
        done, _ = _ready([answer for answer, _, _ in self._behind.values()], 0.0)
        for link, (answer, name, number) in [*self._behind.items()]:
            if answer in done:
                del self._behind[link]
                if link.up:
                    self._lags.loaded(self._name_of[link], name, number)

    def _drop(self, name: str) -> None:
        with self._lock:
            if name not in self._live:
                raise AdapterError(f"adapter {name!r} is not live in the Ray engines")
            del self._live[name]
            self._lags.drop(name)
            links = [link for link in self._links if link.up and link not in self._behind]
        for answer in [link.actor.drop.remote(name) for link in links]:
            try:
                _got(answer)
            except RayActorError:
                continue  # it has died, and comes back without it

    def _ask_reports(self) -> None:
        links = [link for link in self._links if link.up and link not in self._behind]
        asked = [link.actor.report.remote() for link in links]
        ready, _ = _ready(asked, REPORT_S)
        for answer in ready:
            try:
                report: Report = _got(answer)
            except RayActorError:
                continue  # its last report stands
            self._reports[report[0]] = report

    def _first(self, ask: Callable[[Any], Any]) -> Any:
        """The answer of the first engine that gives one.

        Raises:
            EngineError: none does.
        """
        failure: Exception | None = None
        for link in sorted(self._links, key=lambda link: (not link.up, link.load)):
            try:
                return _got(ask(link.actor))
            except RayActorError as error:
                failure = error
        raise EngineError(f"no engine of the Ray cluster answers: {failure}") from failure

    def _call(self, work: Callable[[], T]) -> "Future[T]":
        """Do something on the thread of calls, which keeps their order."""
        if self._closed is None:
            return self._calls.submit(work)
        refused: Future[T] = Future()
        refused.set_exception(self._closed)
        return refused

    def _check_open(self) -> None:
        if self._closed is not None:
            raise self._closed


def _new_channel() -> Channel[RequestFrame, Results]:
    return Channel(pack_requests, unpack_results, beats=False)


def _ready(answers: Iterable[Any], seconds: float) -> tuple[list[Any], list[Any]]:
    """The answers that come in time, and the others."""
    asked = list(answers)
    return ray.wait(asked, num_returns=len(asked), timeout=seconds) if asked else ([], [])


def _got(answer: Any) -> Any:
    """The value of an answer; raises the error that was raised on the other node."""
    try:
        return ray.get(answer)
    except RayTaskError as error:
        raise cause_of(error) from None
