"""Legal answers as a prefix tree of tokens: the legal next tokens and the complete answers."""

from collections.abc import Iterable, Sequence
from sys import getsizeof

from legos.errors import RequestError


class ChoiceNode:
    """A node in the prefix tree of legal answers.

    Attributes:
        children: next token id -> the node that it leads to.
        legal: the legal next token ids, sorted; if a complete answer is also the prefix of a longer
            one, the end-of-text ids are legal too.
        whole: whether the tokens so far are a complete answer.
        depth: number of further tokens of the longest answer below this node.
        largest: the largest token id below this node, or -1 if there is none.
    """

    __slots__ = ("children", "depth", "largest", "legal", "whole")

    def __init__(self) -> None:
        self.children: dict[int, ChoiceNode] = {}
        self.legal: tuple[int, ...] = ()
        self.whole = False
        self.depth, self.largest = 0, -1

    @property
    def closed(self) -> bool:
        """Whether the answer is complete and no longer one is legal, so generation can stop."""
        return not self.children


def choice_tree(choices: Iterable[Sequence[int]], *, end_ids: Sequence[int]) -> ChoiceNode:
    """Build the prefix tree of legal answers.

    Args:
        choices: the answers as token ids.
        end_ids: the model's end-of-text ids.

    Returns:
        The root of the tree.

    Raises:
        RequestError: there is no choice, or one is empty.
    """
    answers = sorted({tuple(choice) for choice in choices})
    if not answers or not all(answers):
        raise RequestError(
            f"{len(answers)} choices, one of them empty perhaps; expected at least one, none of "
            "them empty"
        )
    root = ChoiceNode()
    nodes = [root]
    for answer in answers:
        node = root
        for token in answer:
            if token not in node.children:
                node.children[token] = ChoiceNode()
                nodes.append(node.children[token])
            node = node.children[token]
        node.whole = True
    for node in reversed(nodes):  # children before their parents
        ends = end_ids if node.whole and node.children else ()
        node.legal = tuple(sorted({*node.children, *ends}))
        below = node.children.values()
        node.depth = max((1 + child.depth for child in below), default=0)
        node.largest = max((*node.legal, *(child.largest for child in below)), default=-1)
    return root


def walked(
    root: ChoiceNode, token_ids: Sequence[int]
) -> tuple[tuple[tuple[int, ...], ...], int | None]:
    """Follow an answer of C tokens from the root.

    Returns:
        [C] the token ids that are legal in the place of each token, () after the answer left all
        choices; and the number of tokens of a complete choice that no longer one begins with, or
        None.
    """
    legal: list[tuple[int, ...]] = []
    node: ChoiceNode | None = root
    end = None
    for token in token_ids:
        legal.append(node.legal if node else ())
        node = node.children.get(token) if node else None
        if node is not None and node.closed:
            end = len(legal)
    return tuple(legal), end


def tree_bytes(root: ChoiceNode) -> int:
    """Memory of a tree, in bytes; a number counts in every node that holds it."""
    size, nodes = 0, [root]
    while nodes:
        node = nodes.pop()
        size += sum(map(getsizeof, (node, node.children, node.legal, *node.legal)))
        nodes += node.children.values()
    return size
