"""Legal answers as a prefix tree of tokens: the legal next tokens and the complete answers."""

from collections.abc import Iterable, Mapping, Sequence
from sys import getsizeof

from legos.errors import RequestError

__all__ = ["ChoiceNode", "choice_tree", "tree_bytes"]


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

    def __init__(
        self, children: Mapping[int, "ChoiceNode"], legal: tuple[int, ...], *, whole: bool
    ) -> None:
        self.children = children
        self.legal = legal
        self.whole = whole
        self.depth: int = max((1 + child.depth for child in children.values()), default=0)
        below = (child.largest for child in children.values())
        self.largest: int = max((*legal, *below), default=-1)

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
    ends = tuple(end_ids)
    # The answers are sorted, so the nodes beyond the prefix that an answer shares with the one
    # before it are complete. There is no recursion, since an answer may have thousands of tokens.
    opened: list[dict[int, ChoiceNode]] = [{}]  # children of the nodes on the path to an answer
    last: tuple[int, ...] = ()
    wholes: set[int] = set()  # lengths of the prefixes of `last` that are complete answers
    for answer in (*answers, ()):
        shared = next(
            (n for n, (a, b) in enumerate(zip(last, answer, strict=False)) if a != b),
            min(len(last), len(answer)),
        )
        for depth in range(len(last), shared, -1):
            opened[depth - 1][last[depth - 1]] = _node(opened.pop(), depth in wholes, ends)
            wholes.discard(depth)
        opened += [{} for _ in answer[shared:]]
        wholes.add(len(answer))
        last = answer
    return _node(opened[0], False, ends)


def tree_bytes(root: ChoiceNode) -> int:
    """Memory of a tree, in bytes; a number counts in every node that holds it."""
    size, nodes = 0, [root]
    while nodes:
        node = nodes.pop()
        size += sum(map(getsizeof, (node, node.children, node.legal, *node.legal)))
        nodes += node.children.values()
    return size


def _node(children: Mapping[int, ChoiceNode], whole: bool, end_ids: tuple[int, ...]) -> ChoiceNode:
    legal = {*children, *end_ids} if whole and children else set(children)
    return ChoiceNode(children, tuple(sorted(legal)), whole=whole)
