"""The state that all endpoints share: the client, model names, limits and the shutdown."""

import asyncio
import math
import time
from collections.abc import Awaitable, Collection, Coroutine, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import KW_ONLY, dataclass, field
from functools import cache
from typing import Any, TypeVar

from starlette.types import Receive

from legos.chat.lengths import PER_TOKEN, exceeds
from legos.chat.tokenizer import ChatTokenizer
from legos.chat.tools import PLAIN_TOOLS, ToolFormat
from legos.clients.engine import EngineClient
from legos.protocols import Engine
from legos.records.names import BASE, POLICY
from legos.server.matches import MatchQueue, SeatKeys
from legos.server.options import ServerOptions
from legos.server.problems import LONGEST_NAME, GoneError, Problem, first_error
from legos.server.prometheus import Metrics
from legos.timeouts import expire

LONG = 4096  # characters; longer texts are tokenized on a thread
T = TypeVar("T")


@dataclass(eq=False)
class Service:
    """The state of one application, which runs on one event loop.

    Attributes:
        metrics: counters and histograms for Prometheus.
        started: start time, in seconds since 1970.
        draining: True once the server rejects new requests.
        token_text: returns the text of a token.
    """

    source: EngineClient  # client that answers the requests
    engine: Engine  # engine that the source sends requests to; holds the adapters
    tokenizer: ChatTokenizer
    _: KW_ONLY
    model: str  # name of the base model
    context: int  # maximum length of prompt plus completion, in tokens
    fingerprint: str = ""  # of the base model's files; empty: not known
    tools: ToolFormat = PLAIN_TOOLS  # format in which the model writes tool calls
    lora_scale: float | None = None  # LoRA's multiplier for an adapter that does not state one
    options: ServerOptions = field(default_factory=ServerOptions)
    seats: SeatKeys = field(default_factory=SeatKeys)  # keys of seats of running plays
    matches: MatchQueue | None = None  # plays that programs can start; None: there are none
    seats_only: bool = False  # True: only requests with such a key are answered
    reserved: Collection[str] = ()  # adapters that no request may load or drop

    def __post_init__(self) -> None:
        """Start without requests."""
        self.metrics = Metrics(self.engine)
        self.started = int(time.time())
        self.draining = False
        self.token_text = cache(self.tokenizer.token_text)
        self._running = 0
        self._place_s = 0.0  # seconds that a completion holds its place, a moving average
        self._requests = 0  # that are not answered completely
        self._deadlines: set[asyncio.Timeout] = set()
        self._idle = asyncio.Event()
        self._idle.set()

    def adapter_of(self, model: str | None, adapter: str | None) -> str:
        """The adapter that a request is answered with.

        Args:
            model: "base", an adapter's name, NAME@VERSION, or the base model's name, which an
                adapter may have too and then takes; None selects the policy, or the base model if
                no policy is loaded.
            adapter: the same forms; it takes precedence over ``model``.

        Raises:
            Problem: 404 for an unknown name; the message lists the names that exist.
        """
        versions = self.engine.versions()
        asked = adapter if adapter is not None else model
        if asked is None:
            return POLICY if POLICY in versions else BASE
        if asked == BASE or (asked == self.model and asked not in versions):
            return BASE
        name, _, version = asked.partition("@")
        if name not in versions or (version and not version.isdecimal()):
            live = ", ".join([self.model, *sorted(versions)])
            raise Problem(
                404,
                f"model {asked[:LONGEST_NAME]!r} does not exist here; there are: {live}",
                code="model_not_found",
                param="model" if adapter is None else "adapter",
            )
        return asked

    async def check_texts(self, texts: Sequence[str], *, param: str) -> None:
        """Reject texts of which one cannot fit into the context, before all of it is tokenized.

        Args:
            texts: texts that a prompt holds in full, but for white space.
            param: request field that holds the texts, for the error.

        Raises:
            Problem: 400, with the length of the context.
        """
        long = [text for text in texts if len(text) > PER_TOKEN * self.context]
        for text in long:
            if await asyncio.to_thread(exceeds, text, self.tokenizer, self.context):
                raise self._too_long(f"more than {self.context}", param)

    def _too_long(self, length: str, param: str) -> Problem:
        return Problem(
            400,
            f"the prompt has {length} tokens, and prompt and answer together have at most "
            f"{self.context} (the model's context); shorten it",
            code="context_length_exceeded",
            param=param,
        )

    def check_prompts(self, prompts: Sequence[Sequence[int]], *, param: str) -> None:
        """Reject prompts that leave no room in the context for an answer.

        Args:
            prompts: token ids of each prompt.
            param: request field that holds the prompts, for the error.

        Raises:
            Problem: 400, with the length of the longest prompt and the context length.
        """
        longest = max(map(len, prompts))
        if longest >= self.context:
            raise self._too_long(str(longest), param)

    def check_size(self, count: int) -> None:
        """Reject a request for more completions than may run and wait together.

        Raises:
            Problem: 400; the client must split the request.
        """
        most = self.options.max_running + self.options.max_queue
        if count > most:
            raise Problem(
                400,
                f"the request asks for {count} completions (prompts times n); at most {most} are "
                "admitted at once, send it in parts",
                param="n",
            )

    @contextmanager
    def admitted(self, count: int) -> Generator[None]:
        """Count this many completions as running within the block.

        Raises:
            Problem: 429, if more completions than allowed would run and wait; 400, as
                ``check_size``.
        """
        self.check_size(count)
        options = self.options
        most = options.max_running + options.max_queue
        if self._running + count > most:
            self.metrics.refused.labels("queue").inc()
            waiting = max(self._running - options.max_running, 0)
            raise Problem(
                429,
                f"{self._running} completions are requested already, {waiting} of them wait, and "
                f"{count} more would exceed the {options.max_running} that may run and the "
                f"{options.max_queue} that may wait; ask again later",
                code="queue_full",
                headers={"retry-after": str(math.ceil(max(1.0, self._place_s * count / most)))},
            )
        self._running += count
        self.metrics.running.set(self._running)
        started = time.monotonic()
        try:
            yield
        finally:
            self._place_s += 0.1 * (time.monotonic() - started - self._place_s)
            self._running -= count
            self.metrics.running.set(self._running)

    async def attend(self, receive: Receive, work: Awaitable[T], *, wait_s: float = 0.0) -> T:
        """Run the work of a request until it ends, the client disconnects, or time runs out.

        Args:
            receive: ASGI receive function of the request, whose body has been read.
            work: cancelled if the client disconnects, time runs out, or the server shuts down.
            wait_s: seconds that the work may wait before its time begins.

        Raises:
            GoneError: the client disconnected.
            Problem: 504 after a timeout; 503 if the server shuts down.
        """
        deadline = asyncio.timeout(wait_s + self.options.request_timeout_s)
        try:
            async with deadline:
                self._deadlines.add(deadline)
                try:
                    return await while_connected(receive, work)
                finally:
                    self._deadlines.discard(deadline)
        except TimeoutError as error:
            if not deadline.expired():
                raise
            if self.draining:
                raise Problem(503, "the server ends", headers={"retry-after": "5"}) from error
            self.metrics.refused.labels("time").inc()
            raise Problem(
                504,
                f"the answer took longer than {self.options.request_timeout_s:g} s; ask for fewer "
                "tokens",
                headers={"x-should-retry": "false"},
            ) from error

    @contextmanager
    def answering(self) -> Generator[None]:
        """Within the block, which receives and answers a request, ``drain`` waits for it."""
        self._requests += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._requests -= 1
            if not self._requests:
                self._idle.set()

    async def drain(self, seconds: float) -> int:
        """Reject new requests, wait this long for running ones, then end the rest.

        Returns:
            Number of requests that were ended.
        """
        self.draining = True
        with suppress(TimeoutError):
            await asyncio.wait_for(self._idle.wait(), seconds)
        ended = len(self._deadlines)
        expire(self._deadlines)
        with suppress(TimeoutError):  # the ended requests answer 503, unless they hang
            await asyncio.wait_for(self._idle.wait(), 1.0)
        return ended


async def encode_texts(
    service: Service, texts: Sequence[str], *, specials: bool
) -> list[tuple[int, ...]]:
    """The token ids of each text; long texts are tokenized on a thread."""
    encode = service.tokenizer.encode_each
    if sum(map(len, texts)) > LONG:
        return await asyncio.to_thread(encode, texts, specials=specials)
    return encode(texts, specials=specials)


async def together(work: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """Await several coroutines concurrently; if one fails, the others are cancelled."""
    if len(work) == 1:
        return [await work[0]]
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one) for one in work]
    return [task.result() for task in tasks]


async def while_connected(receive: Receive, work: Awaitable[T]) -> T:
    """Await the work of a request, which is cancelled if its client disconnects.

    Args:
        receive: ASGI receive function of the request, whose body has been read.
        work: the work.

    Raises:
        GoneError: the client disconnected.
    """
    try:
        async with asyncio.TaskGroup() as group:
            watcher = group.create_task(_watch(receive))
            result = await work
            watcher.cancel()
    except BaseExceptionGroup as group:
        raise first_error(group) from None
    else:
        return result


async def _watch(receive: Receive) -> None:
    """Wait until the client disconnects, then raise ``GoneError``."""
    message: Mapping[str, Any] = {}
    while message.get("type") != "http.disconnect":
        message = await receive()
    raise GoneError
