"""Exact log-probabilities of whole answers, from one sampled token for each node of their tree."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from itertools import chain

import numpy as np

from legos.records.choices import ChoiceNode, choice_tree
from legos.records.message import ScoredRows
from legos.remote.vllm.completions import Query

__all__ = ["score_prompts"]

WATCHED = 128  # token ids of one request; vLLM reports no more
_Row = tuple[int, ...]
_Step = tuple[tuple[_Row, _Row], Sequence[int]]
"""The tokens up to a node and its legal ones; the tokens that may follow."""
Ask = Callable[[Query, _Row], Awaitable[Mapping[int, float]]]
"""Query and prompt -> token id -> log-probability of the watched ids as the next token."""


async def score_prompts(
    prompts: ScoredRows, *, end_ids: Sequence[int], adapter: str, ask: Ask
) -> list[list[float]]:
    """Log-probability of each answer as the complete answer to its prompt, nats.

    An answer that is the prefix of another one is complete only with an end token behind it.

    Args:
        prompts: token ids of each prompt, and of the answers after it.
        end_ids: end-of-text token ids.
        adapter: name of the adapter that the probabilities belong to.
        ask: asks the server.
    """
    paths: list[list[list[_Step]]] = []
    for prompt, answers in prompts:
        tree = choice_tree(answers, end_ids=end_ids)
        paths.append([list(_steps(prompt, answer, tree, end_ids)) for answer in answers])
    nodes = list({node for path in chain(*paths) for node, _ in path})
    known = await asyncio.gather(*(_next_token(*node, adapter, ask) for node in nodes))
    found = dict(zip(nodes, known, strict=True))

    def score(path: Sequence[_Step]) -> float:
        chosen = ([found[node][token] for token in tokens] for node, tokens in path)
        return float(sum(np.logaddexp.reduce(logprobs) for logprobs in chosen))

    return [[score(path) for path in of_prompt] for of_prompt in paths]


def _steps(prompt: _Row, answer: _Row, tree: ChoiceNode, end_ids: Sequence[int]) -> Iterator[_Step]:
    """The nodes along an answer, each with the tokens one of which goes on with it."""
    row, node = prompt, tree
    for token in answer:
        yield (row, node.legal), (token,)
        row, node = (*row, token), node.children[token]
    if node.children:  # it is also the beginning of another answer
        yield (row, node.legal), end_ids


async def _next_token(row: _Row, legal: _Row, adapter: str, ask: Ask) -> Mapping[int, float]:
    """Log-probability of each legal token after a row."""
    parts = [legal[start : start + WATCHED] for start in range(0, len(legal), WATCHED)]
    queries = [Query(adapter=adapter, max_tokens=1, watched=part) for part in parts]
    found = await asyncio.gather(*(ask(query, row) for query in queries))
    return {token: value for part in found for token, value in part.items()}
