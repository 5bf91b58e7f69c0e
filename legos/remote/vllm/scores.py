"""Exact log-probabilities of whole answers, from one sampled token for each node of their tree."""

import asyncio
import math
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence

from legos.records.choices import ChoiceNode, choice_tree
from legos.remote.vllm.completions import Query

__all__ = ["score_prompts"]

WATCHED = 128  # token ids of one request; vLLM reports no more
_Row = tuple[int, ...]
Ask = Callable[[Query, _Row], Awaitable[Mapping[int, float]]]
"""Query and prompt -> token id -> log-probability of the watched ids as the next token."""


async def score_prompts(
    prompts: Sequence[tuple[tuple[int, ...], Sequence[tuple[int, ...]]]],
    *,
    end_ids: Sequence[int],
    adapter: str,
    ask: Ask,
) -> list[list[float]]:
    """Log-probability of each answer as the complete answer to its prompt, nats.

    An answer that is the prefix of another one is complete only with an end token behind it.

    Args:
        prompts: token ids of each prompt, and of the answers after it.
        end_ids: end-of-text token ids.
        adapter: name of the adapter that the probabilities belong to.
        ask: asks the server.
    """
    trees = [choice_tree(answers, end_ids=end_ids) for _, answers in prompts]
    nodes = {
        (row, node.legal)
        for (prompt, _), tree in zip(prompts, trees, strict=True)
        for row, node in _inner_nodes(prompt, tree)
    }
    known = await asyncio.gather(*(_next_token(*each, adapter, ask) for each in nodes))
    found = dict(zip(nodes, known, strict=True))
    return [
        [_score(prompt, answer, tree, found, end_ids) for answer in answers]
        for (prompt, answers), tree in zip(prompts, trees, strict=True)
    ]


def _inner_nodes(prompt: _Row, tree: ChoiceNode) -> Iterator[tuple[_Row, ChoiceNode]]:
    """The tokens up to each node after which an answer goes on, and the node."""
    stack = [(prompt, tree)]
    while stack:
        row, node = stack.pop()
        if node.children:
            yield row, node
        stack += [((*row, token), child) for token, child in node.children.items()]


async def _next_token(row: _Row, legal: _Row, adapter: str, ask: Ask) -> Mapping[int, float]:
    """Log-probability of each legal token after a row."""
    parts = [legal[start : start + WATCHED] for start in range(0, len(legal), WATCHED)]
    queries = [Query(adapter=adapter, max_tokens=1, watched=part) for part in parts]
    found = await asyncio.gather(*(ask(query, row) for query in queries))
    return {token: value for part in found for token, value in part.items()}


def _score(
    prompt: _Row,
    answer: _Row,
    tree: ChoiceNode,
    found: Mapping[tuple[_Row, _Row], Mapping[int, float]],
    end_ids: Sequence[int],
) -> float:
    total, row, node = 0.0, prompt, tree
    for token in answer:
        total += found[row, node.legal][token]
        row, node = (*row, token), node.children[token]
    if node.children:  # it is also the beginning of another answer
        ends = [found[row, node.legal][token] for token in end_ids]
        total += math.log(sum(map(math.exp, ends)))
    return total
