"""The client of an engine in this process: messages to completions."""

import asyncio
from collections import Counter, deque
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing, suppress
from functools import cache, lru_cache, partial
from itertools import islice
from typing import Any

import msgspec
from msgspec.structs import replace

from legos.chat.calls import begins_thinking, read_reply, reply_decoder
from legos.chat.lengths import check_length, is_long
from legos.chat.parts import CLOSE, OPEN
from legos.chat.stops import cut_at_stop, stop_test
from legos.chat.tokenizer import ChatTokenizer
from legos.chat.tools import PLAIN_TOOLS, ToolFormat
from legos.clients.answer_tree import restricted_scores
from legos.clients.callback import Callback
from legos.clients.constraints import Constraints
from legos.clients.progress_queue import ProgressQueue
from legos.errors import RequestError
from legos.play.endpoint import EndpointHost
from legos.protocols import Engine
from legos.records.choices import ChoiceNode
from legos.records.message import (
    Completion,
    Continuation,
    Draws,
    Prompt,
    Questions,
    Sampling,
    ToolCall,
    messages_or_ids,
)
from legos.records.names import POLICY, adapter_name
from legos.records.request import Generated, Grammar, PlainRequest, Progress, Request, Result

_SHORT = 32  # tokens; longer completions rarely repeat, and caching them takes memory
_GATHERED = 64  # requests
_QUIET_S = 0.001  # time without another request after which a burst is complete
_RESOLVED = 16_384  # tokens; to decode more takes longer than about 5 milliseconds
_Pair = tuple[Request, Sampling]


class EngineClient:
    """A client of an engine in this process.

    Requests made within one turn of the event loop reach the engine as one submission, so that
    plays that wake together are batched together; results that it delivers at once wake the loop
    once.

    Attributes:
        tokens: name of each adapter -> tokens sampled for it, in requests that have ended.
    """

    def __init__(
        self,
        engine: Engine,
        tokenizer: ChatTokenizer,
        *,
        tool_format: Callable[[], ToolFormat] = lambda: PLAIN_TOOLS,
        endpoints: Callable[[], EndpointHost] | None = None,
        context: int | None = None,
        use_threads: bool = False,
    ) -> None:
        """Make a client.

        Args:
            engine: the engine that answers.
            tokenizer: the tokenizer of its model.
            tool_format: returns the format of the model's tool calls; called once, if needed.
            endpoints: returns what serves seats of this client over HTTP (``Table.endpoint``).
            context: that of the model, which a long text is checked for first; None: it is not.
            use_threads: for servers: make grammars, large trees and scored tokens on threads, and
                submit a burst of requests together, in an order that may vary.
        """
        self.engine = engine
        self.tokenizer = tokenizer
        self._tool_format = cache(tool_format)
        self.endpoints = endpoints
        self._context = context
        self._tools = lru_cache(maxsize=64)(msgspec.json.decode)
        self._use_threads = use_threads
        self._constraints = Constraints(tokenizer, use_threads=use_threads)
        self._stops = lru_cache(maxsize=256)(partial(stop_test, tokenizer.decode))
        self._short_text = lru_cache(maxsize=65536)(tokenizer.decode)
        self._ends = lru_cache(maxsize=256)(self._make_ends)
        self.tokens: Counter[str] = Counter()
        self._adapters: dict[int, str] = {}  # of requests that the engine has
        self._next = 0
        self._outbox: list[tuple[int, Request]] = []
        self._waiting: dict[int, asyncio.Future[Generated] | Callback] = {}
        self._results: deque[tuple[int, Result]] = deque()  # delivered and not passed on yet
        self._news: dict[int, ProgressQueue] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._receive = self._deliver  # one object: the engine compares receivers

    async def complete(
        self, prompt: Prompt, sampling: Sampling, *, adapter: str = POLICY
    ) -> Completion:
        """Sample one completion of chat messages, token ids or a continued conversation.

        Raises:
            RequestError: the request cannot be served.
            EngineError: the engine died or was closed.
        """
        request = await self._prepared(prompt, sampling, adapter, stream=False)
        made = await self.generate([request])
        return self._completion(request, made[0], sampling)

    async def generate(self, requests: Sequence[Request]) -> list[Generated]:
        """Sample the tokens of requests; if one fails, the others are cancelled.

        Raises:
            RequestError: a request cannot be served.
            EngineError: the engine died or was closed.
        """
        asked = [self._ask(request) for request in requests]
        try:
            return await asyncio.gather(*(answer for _, answer in asked))
        except BaseException:
            for number, _ in asked:
                self.cancel(number)
            raise

    async def resolved(self, plain: PlainRequest) -> Request:
        """A request that came from another process, as the engine receives it.

        Raises:
            RequestError: what constrains it cannot be read.
        """
        tree, grammar = await self._constraints.of(plain.choice_texts, plain.json_schema)
        return Request(
            **msgspec.structs.asdict(plain),
            choices=tree,
            grammar=grammar,
            stops=self._stops(plain.stop) if plain.stop else None,
        )

    def prepare(self, prompt: Prompt, sampling: Sampling, *, adapter: str = POLICY) -> _Pair | None:
        """Prepare a question that can be asked many times, with a seed each.

        Returns:
            An argument for ``begin``; None: it would block the event loop, so ask ``complete``.

        Raises:
            RequestError: the request cannot be served.
        """
        legal = self._constraints.known(sampling.choices, sampling.json_schema)
        if legal is None or is_long(prompt):
            return None
        return self._request(prompt, sampling, adapter, *legal, stream=False), sampling

    def begin(
        self, prepared: _Pair, seed: int, done: Callable[[Completion | Exception], Any]
    ) -> int:
        """Start a completion; ``done`` gets it, or the error, in the event loop.

        Returns:
            A number for ``cancel``.
        """
        request, sampling = prepared
        request = replace(request, seed=seed)
        completion = partial(self._completion, request, sampling=sampling)
        return self._enqueue(request, Callback(completion, done))

    def cancel(self, number: int) -> None:
        """End a completion whose caller no longer waits; its ``done`` is not called."""
        if self._waiting.pop(number, None) is not None:
            self.engine.cancel([number], self._receive)

    async def stream(
        self, prompt: Prompt, sampling: Sampling, *, adapter: str = POLICY
    ) -> AsyncGenerator[Progress | Completion]:
        """Sample one completion and report its tokens as they are sampled.

        A slow consumer gets several tokens at once. ``aclose``, or cancelling it, ends the request.

        Yields:
            ``Progress`` for new tokens, once or more, and then the whole ``Completion``.

        Raises:
            RequestError: the request cannot be served.
            EngineError: the engine died or was closed.
        """
        request = await self._prepared(prompt, sampling, adapter, stream=True)
        number, future = self._ask(request)
        news = self._news[number] = ProgressQueue(future)
        try:
            async with aclosing(news.read()) as parts:
                async for part in parts:
                    yield part
            yield self._completion(request, future.result(), sampling)
        finally:
            self._news.pop(number, None)
            if not future.done():
                self.cancel(number)

    async def score(
        self, prompts: Questions, *, adapter: str = POLICY, restricted: bool = False
    ) -> list[list[float]]:
        """Log-probability (nats, temperature 1) of each choice after its messages; see ``Scorer``.

        Raises:
            RequestError: a prompt or choice cannot be scored.
        """

        def rows_of() -> list[tuple[tuple[int, ...], list[tuple[int, ...]]]]:
            texts = [choice for _, choices in prompts for choice in choices]
            ids = iter(self.tokenizer.encode_each(texts))
            return [
                (self.tokenizer.render(tuple(messages)), list(islice(ids, len(choices))))
                for messages, choices in prompts
            ]

        rows = await asyncio.to_thread(rows_of) if self._use_threads else rows_of()
        score, ends = partial(self.engine.score, adapter=adapter), self.tokenizer.end_ids
        free = await asyncio.wrap_future(score(rows, end_ids=ends))
        return await restricted_scores(rows, free, ends, score) if restricted else free

    async def _prepared(
        self, prompt: Prompt, sampling: Sampling, adapter: str, *, stream: bool
    ) -> Request:
        """The request as the engine receives it; what takes long is made on a thread."""
        legal = await self._constraints.of(sampling.choices, sampling.json_schema)
        make = partial(self._request, prompt, sampling, adapter, *legal, stream=stream)
        return await asyncio.to_thread(make) if is_long(prompt) else make()

    def _request(
        self,
        prompt: Prompt,
        sampling: Sampling,
        adapter: str,
        tree: ChoiceNode | None,
        grammar: Grammar | None,
        *,
        stream: bool,
    ) -> Request:
        """The request as the engine receives it."""
        limit = sampling.max_tokens or (tree.depth if tree is not None else None)
        if limit is None:
            raise RequestError("max_tokens is None and there are no choices; give a number")
        return Request(
            prompt_ids=self.prompt_ids(prompt, sampling),
            max_tokens=limit,
            end_ids=self._ends(sampling.stop_ids, sampling.ignore_end),
            choices=tree,
            choice_texts=sampling.choices,
            stops=self._stops(sampling.stop) if sampling.stop else None,
            stop=sampling.stop,
            adapter=adapter,
            grammar=grammar,
            json_schema=sampling.json_schema,
            stream=stream,
            **{name: getattr(sampling, name) for name in Draws.__struct_fields__},
        )

    def _completion(self, request: Request, generated: Generated, sampling: Sampling) -> Completion:
        """The completion of a request."""
        token_ids = generated.token_ids
        decode = self._short_text if len(token_ids) <= _SHORT else self.tokenizer.decode
        text = cut_at_stop(decode(token_ids), sampling.stop)
        untagged = OPEN not in text and CLOSE not in text and text not in sampling.choices
        if untagged and begins_thinking(self.tokenizer, request.prompt_ids, sampling):
            text = OPEN + text  # thinking that was never closed is no answer
        calls: tuple[ToolCall, ...] = ()
        if sampling.tools is not None:
            text, calls = self._read_calls(request, generated, sampling) or (text, ())
        return Completion(  # each field by name: `asdict` would take as long as all the rest
            token_ids=token_ids,
            logprobs=generated.logprobs,
            versions=generated.versions,
            raw_logprobs=generated.raw_logprobs,
            alternatives=generated.alternatives,
            legal=generated.legal,
            finish_reason=generated.finish_reason,
            text=text,
            prompt_ids=request.prompt_ids,
            restricted=sampling.restrict,
            temperature=sampling.temperature,
            adapter=request.adapter,
            filtered=request.filters is not None or request.grammar is not None,
            tool_calls=calls,
        )

    def _ask(self, request: Request) -> tuple[int, "asyncio.Future[Generated]"]:
        """Queue a request; returns its number and the future of its answer."""
        future: asyncio.Future[Generated] = asyncio.get_running_loop().create_future()
        return self._enqueue(request, future), future

    def _enqueue(self, request: Request, answer: "asyncio.Future[Generated] | Callback") -> int:
        """Queue a request for the submission of this turn of the loop; returns its number."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._loop, self._outbox, self._waiting, self._news = loop, [], {}, {}
            self._adapters, self._results = {}, deque()
        if not self._outbox:
            loop.call_soon(self._gather if self._use_threads else self._flush)
        self._next += 1
        self._waiting[self._next] = answer
        self._outbox.append((self._next, request))
        return self._next

    def _gather(self, before: int = 0, quiet_turns: int = 0) -> None:
        """Submit when no request has come for a while, or as soon as there are many.

        A server reads the requests of a burst in several turns. Rows that start in one forward pass
        also end together, and make room for the next ones together.
        """
        now, loop = len(self._outbox), asyncio.get_running_loop()
        if before != now < _GATHERED:
            loop.call_later(_QUIET_S, self._gather, now)
        elif now < _GATHERED and quiet_turns < 2:  # for what was read just before the timer
            loop.call_soon(self._gather, now, quiet_turns + 1)
        else:
            self._flush()

    def _flush(self) -> None:
        """Submit the requests of this turn of the loop whose callers still wait."""
        outbox, self._outbox = self._outbox, []
        waited: list[tuple[int, Request]] = []
        for item in outbox:
            answer = self._waiting.get(item[0])
            if answer is not None and not answer.done():
                waited.append(item)
                self._adapters[item[0]] = adapter_name(item[1].adapter)
            else:
                self._waiting.pop(item[0], None)
        try:
            if waited:
                self.engine.submit(waited, self._receive)
        except Exception as error:  # raised where the request was made
            self._deliver([(number, error) for number, _ in waited])

    def _deliver(self, results: Sequence[tuple[int, Result]]) -> None:
        """Receive results on the engine's thread."""
        if self._loop is not None:
            self._results += results
            with suppress(RuntimeError):  # the loop is closed, so no request waits
                self._loop.call_soon_threadsafe(self._resolve)

    def _resolve(self) -> None:
        """Pass results on; after long ones, the loop does other work before it passes on more."""
        tokens = 0
        while self._results:
            number, result = self._results.popleft()
            if isinstance(result, Progress):
                if number in self._news:
                    self._news[number].put(result)
                continue
            adapter = self._adapters.pop(number, "")
            if isinstance(result, Generated):
                self.tokens[adapter] += len(result.token_ids)
            answer = self._waiting.pop(number, None)
            if answer is None or answer.done():
                continue
            if isinstance(result, Exception):
                answer.set_exception(result)
                continue
            answer.set_result(result)
            tokens += len(result.token_ids)
            if tokens > _RESOLVED:
                self._deliver(())
                break

    def prompt_ids(self, prompt: Prompt, sampling: Sampling) -> tuple[int, ...]:
        """The token ids of a prompt."""
        if self._context is not None:
            check_length(prompt, self.tokenizer, self._context)
        tools = self._tools(sampling.tools) if sampling.tools else ()
        if isinstance(prompt, Continuation):
            return self.tokenizer.render(prompt, tools)
        messages, ids = messages_or_ids(prompt)
        return ids or self.tokenizer.render(messages, tools)

    def _read_calls(
        self, request: Request, generated: Generated, sampling: Sampling
    ) -> tuple[str, tuple[ToolCall, ...]] | None:
        """The text of a reply without its tool calls, and the calls; None if it has no call."""
        form, tokenizer = self._tool_format(), self.tokenizer
        return read_reply(
            cut_at_stop(reply_decoder(tokenizer, form)(generated.token_ids), sampling.stop),
            self._tools(sampling.tools or "[]"),
            form,
            thinking=begins_thinking(tokenizer, request.prompt_ids, sampling),
            cut=generated.finish_reason != "stop",
            seed=sampling.seed,
        )

    def _make_ends(self, stop_ids: tuple[int, ...], ignore_end: bool) -> tuple[int, ...]:
        return tuple(sorted({*(() if ignore_end else self.tokenizer.end_ids), *stop_ids}))
