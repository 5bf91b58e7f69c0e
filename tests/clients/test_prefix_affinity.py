"""Prompts return to the server that has computed their beginning."""

from hypothesis import given
from hypothesis import strategies as st

from legos.clients import prefix_affinity
from legos.clients.prefix_affinity import BLOCK, PrefixAffinity

RULES = tuple(range(2 * BLOCK))


def test_a_conversation_returns_and_shared_rules_alone_do_not_bind() -> None:
    homes = PrefixAffinity()
    first = (*RULES, *range(500, 500 + 3 * BLOCK))
    homes.settle("policy", first, 1)
    assert homes.find("policy", (*first, *range(900, 900 + BLOCK))) == 1
    assert homes.find("policy", first) == 1
    assert homes.find("rival", first) is None
    assert homes.find("policy", (*RULES, *range(700, 700 + 3 * BLOCK))) is None
    assert homes.find("policy", (*RULES, *range(700, 700 + BLOCK))) == 1
    homes.settle("policy", first, 0)
    assert homes.find("policy", first) == 0


def test_the_oldest_are_forgotten() -> None:
    homes = PrefixAffinity()
    blocks = prefix_affinity.MOST_BLOCKS
    for number in range(blocks // 2 + 1):
        homes.settle("policy", (number,) * 2 * BLOCK, 0)
    assert homes.find("policy", (0,) * 2 * BLOCK) is None
    assert homes.find("policy", (blocks // 2,) * 2 * BLOCK) == 0


@given(st.lists(st.integers(0, 3), max_size=4 * BLOCK), st.integers(0, 5))
def test_a_prompt_finds_itself_where_it_has_blocks(ids: list[int], server: int) -> None:
    homes = PrefixAffinity()
    homes.settle("policy", ids, server)
    known = len(ids) // BLOCK * BLOCK
    expected = server if known and 2 * known >= len(ids) else None
    assert homes.find("policy", ids) == expected
