"""Log-probabilities of whole answers from those of the tokens at the nodes of their prefix tree."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from itertools import chain

import numpy as np

from legos.records.choices import ChoiceNode, choice_tree
from legos.records.message import ScoredRows

_Row = tuple[int, ...]
_Step = tuple[tuple[_Row, _Row], Sequence[int]]
"""The tokens up to a node and its legal ones; the tokens that may follow."""


class AnswerTrees:
    """The paths of answers through the prefix trees of their prompts.

    An answer that is the prefix of another one is complete only with an end token behind it.

    Attributes:
        nodes: each different node: the tokens up to it, and the legal ones after them.
    """

    def __init__(self, prompts: ScoredRows, end_ids: Sequence[int]) -> None:
        self._paths: list[list[list[_Step]]] = []
        for prompt, answers in prompts:
            tree = choice_tree(answers, end_ids=end_ids)
            self._paths.append([list(_steps(prompt, one, tree, end_ids)) for one in answers])
        self.nodes = list({node for path in chain(*self._paths) for node, _ in path})

    def scores(
        self, found: Sequence[Sequence[float]], *, restricted: bool = False
    ) -> list[list[float]]:
        """The log-probability of each answer of each prompt, nats.

        Args:
            found: of each node, the log-probabilities of its legal tokens.
            restricted: whether only the legal tokens are sampled at each node.
        """
        known: dict[tuple[_Row, _Row], dict[int, float]] = {}
        for node, given in zip(self.nodes, found, strict=True):
            all_of_them = np.logaddexp.reduce(given) if restricted else 0.0
            known[node] = dict(zip(node[1], np.array(given) - all_of_them, strict=True))

        def score(path: Sequence[_Step]) -> float:
            chosen = ([known[node][token] for token in tokens] for node, tokens in path)
            return float(sum(map(np.logaddexp.reduce, chosen)))

        return [[score(path) for path in paths] for paths in self._paths]


async def restricted_scores(
    prompts: ScoredRows,
    free: list[list[float]],
    end_ids: Sequence[int],
    score: Callable[..., "Future[list[list[float]]]"],
) -> list[list[float]]:
    """Give answers the shares that they have where each token is sampled among the legal ones.

    Those of one token have these shares already. The sum of the answers of a prompt stays.

    Args:
        prompts: token ids of each prompt, and of its answers.
        free: the log-probability of each answer, where any token could be sampled.
        end_ids: end-of-text token ids.
        score: ``Engine.score``, with the adapter.
    """
    long = [n for n, (_, answers) in enumerate(prompts) if max(map(len, answers), default=0) > 1]
    trees = AnswerTrees([prompts[n] for n in long], end_ids)
    asked = [node for node in trees.nodes if len(node[1]) > 1]  # elsewhere one token is certain
    rows = [(row, [(token,) for token in legal]) for row, legal in asked]
    found = await asyncio.wrap_future(score(rows, end_ids=())) if rows else []
    known = dict(zip(asked, found, strict=True))
    shares = trees.scores([known.get(node, [0.0]) for node in trees.nodes], restricted=True)
    changed = {
        n: (np.logaddexp.reduce(free[n]) + np.array(own)).tolist()
        for n, own in zip(long, shares, strict=True)
    }
    return [changed.get(n, own) for n, own in enumerate(free)]


def _steps(prompt: _Row, answer: _Row, tree: ChoiceNode, end_ids: Sequence[int]) -> Iterator[_Step]:
    """The nodes along an answer, each with the tokens one of which goes on with it."""
    row, node = prompt, tree
    for token in answer:
        yield (row, node.legal), (token,)
        row, node = (*row, token), node.children[token]
    if node.children:  # it is also the beginning of another answer
        yield (row, node.legal), end_ids
