"""The metrics of a step by arena."""

from msgspec.structs import replace

from legos.fakes.records import make_sample
from legos.loop.by_arena import play_metrics
from legos.records.group import Group
from legos.records.sample import Sample


def said(policy: str, rollout: str, tokens: int) -> Sample:
    positions = range(1, 1 + tokens)
    sample = make_sample(range(9), positions=positions, advantages=1.0, rollout=rollout)
    return replace(sample, policy=policy)


def test_tokens_of_a_seat_are_those_of_one_policy() -> None:
    samples = said("solver", "a", 2), said("solver", "a", 4), said("critic", "b", 1)
    group = Group(samples=samples, tokens_generated=7, arena="refine")
    found = play_metrics([group, group], mixed=False)
    assert found["batches/refine/rollouts"] == 4
    assert found["batches/refine/seat_tokens/solver"] == 6
    assert found["batches/refine/seat_tokens/critic"] == 1
