"""A client that says a known answer, with the probability that the policy gives it."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from legos.clients.engine import EngineClient
from legos.clients.requests import split_adapter
from legos.errors import RequestError
from legos.records.message import Completion, Prompt, Sampling
from legos.records.names import BASE, POLICY


@dataclass(frozen=True, slots=True)
class RecitedClient:
    """Says one answer to one prompt, whatever is asked: the seat of an imitated turn.

    The tokens have the log-probabilities (nats, temperature 1) that the policy gives them, as if it
    had sampled them. From another client than an engine's the answer is plain text, which is not
    trained on.
    """

    client: object  # client of the policy
    prompt: Sequence[Any]  # messages as OpenAI's interface has them, or token ids
    answer: Mapping[str, Any] | Sequence[int]  # an assistant's message, or token ids
    tools: Sequence[Mapping[str, Any]] = ()  # what the messages may call

    async def complete(
        self, prompt: Prompt, sampling: Sampling, *, adapter: str = POLICY
    ) -> Completion:
        """The answer; ``prompt`` and ``sampling`` are not read.

        Raises:
            RequestError: the engine refuses the tokens.
            ModelError: the model's chat template refuses the messages.
            EngineError: the engine died or was closed.
        """
        client, answer = self.client, self.answer
        if not isinstance(client, EngineClient):
            text = f"{answer['content']}" if isinstance(answer, Mapping) else f"{answer}"
            return Completion(text=text, adapter=adapter)
        tokenizer = client.tokenizer
        if isinstance(answer, Mapping):
            prompt_ids = tokenizer.render_chat(self.prompt, self.tools)
            token_ids = tokenizer.answer_ids(self.prompt, answer, self.tools)
        else:
            prompt_ids, token_ids = tuple(self.prompt), tuple(answer)
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
            text=tokenizer.decode(token_ids),
            prompt_ids=prompt_ids,
            token_ids=token_ids,
            logprobs=tuple(logprobs),
            versions=(version,) * len(token_ids),
            adapter=adapter,
        )
