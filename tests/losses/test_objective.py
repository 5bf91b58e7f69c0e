"""Objectives have the ranges of their losses; schedules are lines."""

import pytest

from legos.config.schedule import linear
from legos.losses.objective import Objective


def test_a_range_that_nobody_gives_is_that_of_the_loss() -> None:
    assert Objective().clip_range == (0.2, 0.2)
    assert Objective(loss="gspo").clip_range == (3e-4, 4e-4)
    assert Objective(loss="cispo", clip_high=3.0).clip_range == (1.0, 3.0)
    assert Objective(loss="dppo_kl", clip_low=0.1).clip_range == (0.1, 0.05)
    assert Objective(loss="sapo").clip_range == (0.0, 0.0)


@pytest.mark.parametrize(
    ("step", "expected"), [(-1, 2.0), (0, 2.0), (1, 1.75), (2, 1.5), (4, 1.0), (9, 1.0)]
)
def test_a_schedule_is_a_line_between_its_ends(step: int, expected: float) -> None:
    assert linear(2.0, 1.0, step=step, num_steps=4) == expected


def test_a_schedule_without_steps_is_at_its_end() -> None:
    assert linear(2.0, 1.0, step=0, num_steps=0) == 1.0
