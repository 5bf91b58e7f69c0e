"""Batches of requests: what they have in common is sent once, and what does not fit is refused."""

import msgspec
import pytest
from msgspec.structs import replace

from legos.clients.wire import RequestBatch, batch_of
from legos.errors import RequestError
from legos.records.request import Request

MOVE = Request(prompt_ids=(1, 2), max_tokens=1, choice_texts=("a", "b"), seed=5)


def test_requests_with_other_choices_travel_together_and_equal_choices_are_sent_once() -> None:
    requests = [MOVE, replace(MOVE, choice_texts=("c",)), replace(MOVE, prompt_ids=(3,), seed=6)]
    batch = batch_of(msgspec.msgpack.encode(RequestBatch.of(requests)))
    assert [kind.choice_texts for kind in batch.kinds] == [("a", "b"), ("c",)]
    assert batch.rows == ((0, (1, 2), 5), (1, (1, 2), 5), (0, (3,), 6))


@pytest.mark.parametrize("kinds", [[], [0, 1], [-1], [1]])
def test_a_batch_whose_kinds_do_not_fit_is_refused(kinds: list[int]) -> None:
    body = {"kinds": RequestBatch.of([MOVE]).kinds, "rows": [(kind, (1,), 0) for kind in kinds]}
    with pytest.raises(RequestError, match="do not fit 1 kinds"):
        batch_of(msgspec.msgpack.encode(body))
