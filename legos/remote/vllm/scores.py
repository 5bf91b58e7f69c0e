"""Exact log-probabilities of whole answers, from one sampled token for each node of their tree."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence

from legos.clients.answer_tree import AnswerTrees
from legos.records.message import ScoredRows
from legos.remote.vllm.completions import Query

WATCHED = 128  # token ids of one request; vLLM reports no more
_Row = tuple[int, ...]
Ask = Callable[[Query, _Row], Awaitable[Mapping[int, float]]]
"""Query and prompt -> token id -> log-probability of the watched ids as the next token."""


async def score_prompts(
    prompts: ScoredRows, *, end_ids: Sequence[int], adapter: str, ask: Ask
) -> list[list[float]]:
    """Log-probability of each answer as the complete answer to its prompt, nats.

    Args:
        prompts: token ids of each prompt, and of the answers after it.
        end_ids: end-of-text token ids.
        adapter: name of the adapter that the probabilities belong to.
        ask: asks the server.
    """
    trees = AnswerTrees(prompts, end_ids)
    return trees.scores(
        await asyncio.gather(*(_next_token(*node, adapter, ask) for node in trees.nodes))
    )


async def _next_token(row: _Row, legal: _Row, adapter: str, ask: Ask) -> list[float]:
    """Log-probability of each legal token after a row."""
    parts = [legal[start : start + WATCHED] for start in range(0, len(legal), WATCHED)]
    queries = [Query(adapter=adapter, max_tokens=1, watched=part) for part in parts]
    found = await asyncio.gather(*(ask(query, row) for query in queries))
    return [of_part[token] for part, of_part in zip(parts, found, strict=True) for token in part]
