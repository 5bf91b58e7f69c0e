"""A client that says a known answer, with the probability that the policy gives it."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from legos.clients.engine import EngineClient
from legos.clients.requests import split_adapter
from legos.errors import RequestError
from legos.records.message import Completion, Message, Prompt, Sampling
from legos.records.names import BASE, POLICY

__all__ = ["RecitedClient"]


@dataclass(frozen=True, slots=True)
class RecitedClient:
    """Says one answer to one prompt, whatever is asked: the seat of an imitated turn.

    The tokens have the log-probabilities (nats, temperature 1) that the policy gives them, as if it
    had sampled them. From another client than an engine's the answer is plain text, which is not
    trained on.
    """

    client: object  # client of the policy
    prompt: Sequence[Message] | Sequence[int]  # chat messages or token ids
    answer: str | Sequence[int]  # a text, which the model's end of turn follows, or token ids

    async def complete(
        self, prompt: Prompt, sampling: Sampling, *, adapter: str = POLICY
    ) -> Completion:
        """The answer; ``prompt`` and ``sampling`` are not read.

        Raises:
            RequestError: the engine refuses the tokens.
            EngineError: the engine died or was closed.
        """
        client, answer = self.client, self.answer
        if not isinstance(client, EngineClient):
            return Completion(text=str(answer), adapter=adapter)
        tokenizer = client.tokenizer
        prompt_ids = client.prompt_ids(self.prompt, Sampling())
        if isinstance(answer, str):
            token_ids, text = (*tokenizer.encode(answer), *tokenizer.end_ids[:1]), answer
        else:
            token_ids, text = tuple(answer), tokenizer.decode(answer)
        name, asked = split_adapter(adapter)

        rows = [(prompt_ids, (token_ids,))]
        while True:
            version = client.engine.versions().get(name, 0) if asked is None else asked
            pinned = adapter if name == BASE else f"{name}@{version}"
            try:  # a score ends with the version that it has begun with
                scores = client.engine.score(rows, end_ids=(), adapter=pinned, by_token=True)
                [logprobs] = await asyncio.wrap_future(scores)
                break
            except RequestError:
                if asked is not None or client.engine.versions().get(name, 0) == version:
                    raise
        return Completion(
            text=text,
            prompt_ids=prompt_ids,
            token_ids=token_ids,
            logprobs=tuple(logprobs),
            versions=(version,) * len(token_ids),
            adapter=adapter,
        )
