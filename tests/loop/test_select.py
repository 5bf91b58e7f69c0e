"""What is left out of a batch, by reason, and that its account still balances."""

from legos.fakes import make_sample
from legos.loop.select import Selection
from legos.records.group import Group
from legos.records.sample import Sample


def batch(*samples: Sample) -> Group:
    return Group(
        samples=samples,
        episodes=(),
        tokens_generated=sum(len(s.positions) for s in samples) + 3,
        tokens_discarded={"failed": 3},
        metrics={"reward_mean": 0.5},
    )


LIVE = make_sample((1, 2, 3), positions=(1, 2), advantages=(1.0, -1.0), group="live")
MEAN = make_sample((1, 5, 6), positions=(1, 2), advantages=0.0, group="live")
DEAD = make_sample((1, 2), advantages=0.0, group="dead")
CUT = make_sample((7, 8, 9), positions=(1, 2), group="live", advantages=-1.0, truncated=True)


def test_nothing_is_left_out_unless_asked_for() -> None:
    whole = batch(LIVE, DEAD, CUT)
    assert Selection(overlong=False, zero_advantage=False) == Selection()
    assert Selection()(whole) == (whole, {})
    for select in (
        Selection(overlong=True, zero_advantage=False),
        Selection(overlong=False, zero_advantage=True),
    ):
        assert select(batch(LIVE)) == (batch(LIVE), {})


def test_a_group_goes_as_a_whole_or_not_at_all() -> None:
    select = Selection(overlong=False, zero_advantage=True)
    left, removed = select(batch(LIVE, MEAN, DEAD, DEAD))
    assert left.samples == (LIVE, MEAN)
    assert removed == {"zero_advantage": 2}
    assert (left.tokens_generated, left.tokens_discarded) == (4, {})
    assert left.metrics == {"reward_mean": 0.5}


def test_one_token_with_an_advantage_keeps_its_group() -> None:
    late = make_sample((1, 2, 3), positions=(1, 2), advantages=(0.0, 1.0), group="late")
    assert Selection(overlong=False, zero_advantage=True)(batch(late)) == (batch(late), {})


def test_roles_of_a_task_are_groups_of_their_own() -> None:
    other = make_sample((1, 2), advantages=0.0, group="live", role="second")
    _, removed = Selection(overlong=False, zero_advantage=True)(batch(LIVE, other))
    assert removed == {"zero_advantage": 1}


def test_answers_that_were_cut_short_are_left_out() -> None:
    left, removed = Selection(overlong=True, zero_advantage=False)(batch(LIVE, CUT, DEAD))
    assert left.samples == (LIVE, DEAD)
    assert removed == {"overlong": 2}


def test_both_reasons_are_counted_apart() -> None:
    left, removed = Selection(overlong=True, zero_advantage=True)(batch(CUT, DEAD))
    assert left.samples == ()
    assert removed == {"overlong": 2, "zero_advantage": 1}
    assert left.tokens_generated == 0
