"""Requests of engines that are measured: many at once, each with its number as its seed."""

from collections.abc import Sequence

from legos.records.request import Request
from legos.wiring.device import Row

__all__ = ["numbered_requests"]


def numbered_requests(
    prompts: Sequence[Row], max_tokens: int, *adapters: str, stream: bool = True
) -> list[Request]:
    """Requests with their numbers as seeds and the adapters by turns.

    Args:
        prompts: token ids of each prompt.
        max_tokens: length of each answer.
        adapters: names of adapters.
        stream: whether the first one is streamed.
    """
    return [
        Request(
            prompt_ids=prompt,
            max_tokens=max_tokens,
            seed=number,
            adapter=adapters[number % len(adapters)],
            stream=stream and number == 0,
        )
        for number, prompt in enumerate(prompts)
    ]
