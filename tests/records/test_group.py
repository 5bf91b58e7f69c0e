"""A batch accounts for every token."""

import pytest

from legos.errors import RecordError
from legos.fakes import make_sample
from legos.records.group import Group


@pytest.mark.parametrize(
    ("generated", "discarded"), [(3, {"failed": 1}), (2, {}), (5, {"failed": 1, "void": 2})]
)
def test_a_batch_accounts_for_every_token(generated: int, discarded: dict[str, int]) -> None:
    samples = (make_sample(), make_sample())
    Group(samples=samples, episodes=(), tokens_generated=generated, tokens_discarded=discarded)
    with pytest.raises(RecordError, match=f"{generated + 1} tokens were generated but 2 are in"):
        Group(
            samples=samples, episodes=(), tokens_generated=generated + 1, tokens_discarded=discarded
        )
