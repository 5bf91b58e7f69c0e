"""Legal answers as a tree of tokens."""

import gc
import random
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from legos.errors import RequestError
from legos.records.choices import ChoiceNode, choice_tree, tree_bytes, walked

ENDS = (90, 91)


def answers(node: ChoiceNode, ends: tuple[int, ...]) -> set[tuple[int, ...]]:
    """Every whole answer below a node, walked through its legal tokens alone."""
    found: set[tuple[int, ...]] = (
        {()} if node.whole and (not node.children or set(ends) <= set(node.legal)) else set()
    )
    for token in node.legal:
        if token in node.children:
            found |= {(token, *rest) for rest in answers(node.children[token], ends)}
    return found


def test_one_answer_that_begins_another_can_be_ended() -> None:
    root = choice_tree([(1,), (1, 2), (3,)], end_ids=ENDS)
    assert root.legal == (1, 3)
    assert not root.whole
    one = root.children[1]
    assert one.whole
    assert not one.closed
    assert one.legal == (2, 90, 91)
    assert one.children[2].closed
    assert root.children[3].closed
    assert root.children[3].legal == ()
    assert (root.depth, one.depth, root.children[3].depth) == (2, 1, 0)
    assert (root.largest, one.largest, root.children[3].largest) == (91, 91, -1)


def test_an_answer_is_followed_until_a_choice_is_complete_or_left() -> None:
    root = choice_tree([(1,), (1, 2), (3,)], end_ids=ENDS)
    assert walked(root, (1, 2, 7)) == (((1, 3), (2, 90, 91), ()), 2)
    assert walked(root, (1, 90, 7)) == (((1, 3), (2, 90, 91), ()), None)
    assert walked(root, (3,)) == (((1, 3),), 1)
    assert walked(root, (5, 1)) == (((1, 3), ()), None)
    assert walked(root, ()) == ((), None)


def test_an_end_token_inside_an_answer_is_legal_once() -> None:
    root = choice_tree([(1,), (1, 90)], end_ids=ENDS)
    assert root.children[1].legal == (90, 91)


def test_no_choice_and_empty_choices_are_refused() -> None:
    for choices in ([], [()], [(1,), ()]):
        with pytest.raises(RequestError, match="at least one, none of them empty"):
            choice_tree(choices, end_ids=ENDS)


@given(
    st.sets(st.lists(st.integers(0, 5), min_size=1, max_size=4).map(tuple), min_size=1, max_size=8)
)
def test_the_tree_leads_to_every_answer_and_no_other(choices: set[tuple[int, ...]]) -> None:
    assert answers(choice_tree(choices, end_ids=ENDS), ENDS) == choices


def test_order_and_repetition_do_not_matter() -> None:
    one = choice_tree([(2, 1), (1, 3), (1, 3)], end_ids=ENDS)
    other = choice_tree([(1, 3), (2, 1)], end_ids=ENDS)
    assert one.legal == other.legal == (1, 2)
    assert answers(one, ENDS) == answers(other, ENDS)


def test_an_answer_may_have_thousands_of_tokens() -> None:
    long = tuple(range(5000))
    root = choice_tree([long, (*long[:4000], -1), (7,)], end_ids=ENDS)
    assert (root.depth, root.legal) == (5000, (0, 7))
    node = root
    for token in long[:4000]:
        node = node.children[token]
    assert node.legal == (-1, 4000)


@pytest.mark.slow
@pytest.mark.parametrize("shape", ["one long answer", "many short answers"])
def test_the_memory_of_a_tree_is_measured(shape: str) -> None:
    rng = random.Random(0)
    answers = [tuple(rng.randrange(1000, 9000) for _ in range(8)) for _ in range(200)]
    if shape == "one long answer":
        answers = [tuple(token for answer in answers for token in answer)]
    gc.collect()
    tracemalloc.start()
    try:
        tree = choice_tree(answers, end_ids=(2,))
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert tree_bytes(tree) == pytest.approx(held, rel=0.25)
