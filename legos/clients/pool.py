"""One client for the servers of a policy: it balances their load and counts sampled tokens."""

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, TypeVar

from legos.clients.busy import BusyClock
from legos.data.message import Completion, Message, Prompt, Sampling
from legos.data.names import POLICY, adapter_name
from legos.errors import EndpointError, EngineError
from legos.protocols import Client, Scorer

__all__ = ["ClientPool", "ServerClient"]

T = TypeVar("T")


class ServerClient(Client, Scorer, Protocol):
    """A client of one server; ``legos.clients.openai.OpenAIClient`` is one."""

    async def aclose(self) -> None:
        """Close this event loop's connections."""
        ...


class ClientPool:
    """Servers that hold the same adapters; a request goes to the one with the fewest requests.

    A server that fails a request after the retries of its client is left out until no other one
    is left.

    Attributes:
        tokens: adapter name -> number of tokens received. A server does not report the tokens of
            a cancelled request, so they are not counted.
    """

    def __init__(self, clients: Sequence[ServerClient]) -> None:
        """Make a pool.

        Args:
            clients: a client of each server, at least one.
        """
        self._waiting: dict[ServerClient, int] = dict.fromkeys(clients, 0)
        self._failed: dict[ServerClient, EndpointError] = {}
        self._clock = BusyClock()
        self.tokens: Counter[str] = Counter()

    @property
    def seconds(self) -> float:
        """Seconds in which at least one request was waiting for its answer."""
        return self._clock.seconds

    async def complete(
        self, prompt: Prompt, sampling: Sampling, *, adapter: str = POLICY
    ) -> Completion:
        """Sample one completion on the server with the fewest waiting requests.

        Raises:
            RequestError: the server refuses the request.
            EngineError: no server answers.
        """
        completion = await self._ask(
            lambda client: client.complete(prompt, sampling, adapter=adapter)
        )
        self.tokens[adapter_name(adapter)] += len(completion.token_ids)
        return completion

    async def score(
        self, prompts: Sequence[tuple[Sequence[Message], Sequence[str]]], *, adapter: str = POLICY
    ) -> Sequence[Sequence[float]]:
        """Log-probability (nats, temperature 1) of each choice as the complete answer.

        Raises:
            RequestError: the server refuses the request.
            EngineError: no server answers.
        """
        return await self._ask(lambda client: client.score(prompts, adapter=adapter))

    async def aclose(self) -> None:
        """Close this event loop's connections."""
        for client in self._waiting:
            await client.aclose()

    async def _ask(self, request: Callable[[ServerClient], Awaitable[T]]) -> T:
        """Send a request to the least busy server, and to another one where it fails."""
        while True:
            client = self._least_busy()
            self._waiting[client] += 1
            try:
                with self._clock.request():
                    return await request(client)
            except EndpointError as error:
                self._failed[client] = error
            finally:
                self._waiting[client] -= 1

    def _least_busy(self) -> ServerClient:
        usable = [client for client in self._waiting if client not in self._failed]
        if not usable:
            failures, self._failed = list(self._failed.values()), {}  # a later request tries again
            raise EngineError("; ".join(map(str, failures))) from failures[-1]
        return min(usable, key=self._waiting.__getitem__)
