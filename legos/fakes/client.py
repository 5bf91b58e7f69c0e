"""A client that answers from a script, for plays without a model."""

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from legos.chat.calls import read_reply
from legos.chat.continuation import extended
from legos.errors import RequestError
from legos.records.choices import choice_tree, walked
from legos.records.message import (
    Completion,
    Continuation,
    Message,
    Prompt,
    Sampling,
    messages_or_ids,
)
from legos.records.names import POLICY

END = 0  # the token that ends every scripted answer
LOGPROB = -1.0  # log-probability of every token, nats


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One request that the client received."""

    messages: tuple[Message, ...]
    sampling: Sampling
    adapter: str

    @property
    def prompt(self) -> str:
        """The text of the last message."""
        return self.messages[-1].content


class ScriptedClient:
    """Answers from a list, in order, or from a function of the request.

    A token is a character's code point, and 0 ends an answer; every token has the same made-up
    log-probability, so its plays can be trained on. Tools are called with JSON between
    ``<tool_call>`` and ``</tool_call>``.

    Attributes:
        asked: every request so far, in order.
        version: policy version of the tokens; may be set at any time.
    """

    def __init__(
        self,
        answers: Sequence[str] | Callable[[Asked], str],
        *,
        trainable: bool = True,
    ) -> None:
        """Make a client.

        Args:
            answers: the answers, or a function that makes one; its exceptions reach the caller.
            trainable: False: completions have no token ids, like those of an outside endpoint.
        """
        self._answers = answers if callable(answers) else iter(answers)
        self._trainable = trainable
        self.version = 0
        self.asked: list[Asked] = []

    async def complete(
        self,
        prompt: Prompt,
        sampling: Sampling,
        *,
        adapter: str = POLICY,
    ) -> Completion:
        """Answer after one turn of the event loop.

        Raises:
            RequestError: the script has ended, or its answer is not one of the allowed choices.
        """
        messages, prompt_ids = _read(prompt)
        asked = Asked(messages=messages, sampling=sampling, adapter=adapter)
        self.asked.append(asked)
        text = self._answer(asked)
        await asyncio.sleep(0)
        if not self._trainable:
            return Completion(text=text, adapter=adapter)
        tools: list[Any] = json.loads(sampling.tools or "[]")
        whole = (*map(ord, text), END)
        token_ids = whole[: sampling.max_tokens]
        text, cut = text[: sampling.max_tokens], len(token_ids) < len(whole)
        read = read_reply(text, tools, cut=cut, seed=sampling.seed) if tools else None
        said, calls = read or (text, ())
        legal: tuple[tuple[int, ...], ...] = ()
        if sampling.choices:
            choices = [(*map(ord, choice), END) for choice in sampling.choices]
            legal, _ = walked(choice_tree(choices, end_ids=()), token_ids)
        return Completion(
            prompt_ids=prompt_ids,
            token_ids=token_ids,
            logprobs=(LOGPROB,) * len(token_ids),
            versions=(self.version,) * len(token_ids),
            text=said,
            finish_reason="length" if cut else "stop",
            legal=legal,
            restricted=sampling.restrict,
            temperature=sampling.temperature,
            adapter=adapter,
            tool_calls=calls,
        )

    def _answer(self, asked: Asked) -> str:
        if callable(self._answers):
            text = self._answers(asked)
        else:
            text = next(self._answers, None)
            if text is None:
                raise RequestError(
                    f"the script ended after {len(self.asked) - 1} answers; "
                    f"nothing is left to say to {asked.prompt!r}"
                )
        if asked.sampling.restrict and text not in asked.sampling.choices:
            raise RequestError(
                f"the script says {text!r}, but only {asked.sampling.choices} can be sampled"
            )
        return text


def _read(prompt: Prompt) -> tuple[tuple[Message, ...], tuple[int, ...]]:
    """Messages and token ids of a prompt."""
    if isinstance(prompt, Continuation):
        return prompt.messages, extended(prompt.last, (END, *_prompt_ids(prompt.new)))
    messages, ids = messages_or_ids(prompt)
    if ids:
        return tuple(Message("user", chr(token)) for token in ids), ids
    return messages, _prompt_ids(messages)


def _prompt_ids(messages: Sequence[Message]) -> tuple[int, ...]:
    """The characters of all messages; every assistant's message ends with the end token."""
    ids: list[int] = []
    for message in messages:
        ids += map(ord, message.content)
        if message.role == "assistant":
            ids.append(END)
    return tuple(ids) or (END,)
