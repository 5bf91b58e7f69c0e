"""Servers that hold the same adapters: each request goes to the least busy one that answers."""

import asyncio
import itertools
import logging
import math
import time
from collections.abc import Awaitable, Callable, Container, Iterable, Sequence
from typing import Generic, Protocol, TypeVar

from legos.errors import EndpointError, EngineError, NotFoundError, RequestError
from legos.timeouts import expire

logger = logging.getLogger(__name__)

STAY = 1.25  # how busy the server of a conversation may be, in loads of the least busy one
CHECK_S = 2.0  # a server that has answered nothing for so long is checked, and so often
MOST_EJECTIONS = 10  # of a request from servers that stopped answering; it may be the cause


class Pooled(Protocol):
    """What a pool asks of a server."""

    @property
    def name(self) -> str:
        """Its address, for the log."""

    async def healthy(self) -> bool:
        """Whether it answers a request that costs nothing, within some seconds."""


ServerT = TypeVar("ServerT", bound=Pooled)
T = TypeVar("T")


class ServerPool(Generic[ServerT]):
    """Chooses a server for each request.

    A server is down when it has failed a request after its retries, or when requests wait there,
    nothing was answered for ``CHECK_S``, and it is not healthy. Its requests go to another server,
    and it is asked nothing until it is healthy again. Where no other server is left, requests wait
    for one that is down, up to a limit. All methods belong to one event loop.

    Attributes:
        servers: all of them.
    """

    def __init__(self, servers: Sequence[ServerT], *, silent_s: float = math.inf) -> None:
        """Make a pool.

        Args:
            servers: at least one. Their requests have no effect beyond their answer, so that they
                can be cancelled and sent to another one.
            silent_s: seconds that requests wait while no server is healthy.
        """
        self.servers, self._silent_s = tuple(servers), silent_s
        self._waiting: list[set[asyncio.Timeout]] = [set() for _ in servers]  # requests at each
        self._load = [0] * len(self.servers)  # number of requests at each
        self._changes = itertools.count(1)
        self._changed = [0] * len(self.servers)  # number of the last change of each load
        self._answered = [0] * len(self.servers)
        self._down: set[int] = set()
        self._silent: set[int] = set()  # those whose requests fail, since nobody answers any more
        self._watches: dict[int, asyncio.Task[None]] = {}
        self._worked_s, self._counted = 0.0, 0.0  # and the time up to which they are counted

    @property
    def seconds(self) -> float:
        """Seconds in which a server had requests, as a mean over the servers."""
        busy = sum(map(bool, self._load))
        if not busy:
            return self._worked_s
        return self._worked_s + (time.perf_counter() - self._counted) * busy / len(self.servers)

    @property
    def computing(self) -> bool:
        """Whether a server that answers has requests."""
        return any(load for index, load in enumerate(self._load) if index not in self._down)

    async def ask(
        self,
        request: Callable[[ServerT], Awaitable[T]],
        *,
        fits: Callable[[int], bool] = lambda _: True,
        home: int | None = None,
        chosen: Callable[[int], object] = lambda _: None,
        weight: int = 1,
    ) -> T:
        """Send a request to the least busy server, and to another one where it fails.

        Args:
            request: sends it to a server.
            fits: whether the server of an index can answer it; where none can, any is asked.
            home: index of the server that has computed most of it before; it is asked unless it
                has over a quarter more requests than the least busy one, and one.
            chosen: called with the index of each server that is asked.
            weight: number of requests that it counts as, a list of them.

        Raises:
            NotFoundError: no server that answers has what it names.
            RequestError: one server after the other stopped answering while it had the request.
            EngineError: every server has failed it.
        """
        failures: dict[int, Exception] = {}
        ejections = 0
        while len(failures) < len(self.servers):
            index = self._choose(fits, failures)
            if home is not None and home not in failures and self._may_stay(home, index, fits):
                index = home
            chosen(index)
            self._watch(index)
            self._count(index, weight)
            ejected = asyncio.timeout(None)
            try:
                async with ejected:
                    self._waiting[index].add(ejected)
                    found = await request(self.servers[index])
                self._answered[index] += 1
            except (EndpointError, EngineError) as error:
                failures[index] = error
                self._note(index, "fails: " + str(error).partition("\n")[0])
            except NotFoundError as error:  # it may get an adapter later than the others
                failures[index] = error
            except TimeoutError:
                if not ejected.expired():
                    raise
                if index in self._silent:
                    failures[index] = EngineError(
                        f"{self.servers[index].name} has answered nothing for {self._silent_s:g} "
                        "s, not even whether it is healthy; start it again, and resume the run"
                    )
                    continue
                ejections += 1
                if ejections == MOST_EJECTIONS:
                    raise RequestError(
                        f"servers stopped answering {ejections} times while they had this request; "
                        f"the last one is {self.servers[index].name}"
                    ) from None
            else:
                return found
            finally:
                self._waiting[index].discard(ejected)
                self._count(index, -weight)
        raise _failure([*failures.values()])

    def close(self) -> None:
        """Check no server any more, until it is asked again."""
        for watch in self._watches.values():
            watch.cancel()
        self._watches.clear()

    def _choose(self, fits: Callable[[int], bool], failures: Container[int]) -> int:
        """The least busy of the servers that have not failed a request; those that answer first."""

        def rank(index: int) -> tuple[bool, bool, int, int]:
            down, load = index in self._down, self._load[index]
            return down, not fits(index), load, self._changed[index]

        return min((i for i in range(len(self.servers)) if i not in failures), key=rank)

    def _may_stay(self, home: int, best: int, fits: Callable[[int], bool]) -> bool:
        """Whether a server answers, and is not much busier than the best choice."""
        answers = home not in self._down and fits(home)
        return answers and self._load[home] <= STAY * self._load[best] + 1

    def _count(self, index: int, requests: int) -> None:
        """Count requests that a server has got, or has no longer (a negative number)."""
        self._worked_s, self._counted = self.seconds, time.perf_counter()
        self._load[index] += requests
        self._changed[index] = next(self._changes)

    def _watch(self, index: int) -> None:
        """Check a server as long as requests wait there, or it is down."""
        watch = self._watches.get(index)
        if watch is None or watch.done():
            self._watches[index] = asyncio.create_task(self._check(index))

    def _note(self, index: int, failure: str | None) -> None:
        """Count a server as down, for a reason, or as one that answers, and log a change."""
        if (index in self._down) is (failure is not None):
            return
        (self._down.discard if failure is None else self._down.add)(index)
        logger.warning(
            "%s %s (%d requests wait there)",
            *(self.servers[index].name, failure or "answers again", self._load[index]),
        )

    async def _check(self, index: int) -> None:
        """Eject a server that does not answer, and let it return when it does."""
        server, waiting = self.servers[index], self._waiting[index]
        clock = asyncio.get_running_loop().time
        answered_at = clock()
        while waiting or index in self._down:
            answered = self._answered[index]
            await asyncio.sleep(CHECK_S)
            if index in self._down or (waiting and self._answered[index] == answered):
                healthy = await server.healthy()
                answers = healthy or self._answered[index] > answered
                self._note(index, None if answers else "does not answer")
            if index not in self._down:
                answered_at = clock()
            others = len(self._down) < len(self.servers)
            silent = not others and clock() - answered_at > self._silent_s
            (self._silent.add if silent else self._silent.discard)(index)
            if silent or (others and index in self._down):
                expire(waiting)
                waiting.clear()


def _failure(failures: Sequence[Exception]) -> Exception:
    """The error of a request that no server has answered."""
    if missing := [error for error in failures if isinstance(error, NotFoundError)]:
        return missing[0]
    if len(failures) == 1 and isinstance(failures[0], EngineError):
        return failures[0]
    failure = EngineError("; ".join(map(str, failures)))
    failure.__cause__ = failures[-1]
    return failure


async def all_done(calls: Iterable[Awaitable[object]]) -> None:
    """Wait for all calls, also if one fails; raises the first error."""
    for result in await asyncio.gather(*calls, return_exceptions=True):
        if isinstance(result, BaseException):
            raise result
