"""Objectives have the ranges of their losses; schedules are lines."""

from legos.losses.objective import Objective


def test_a_range_that_nobody_gives_is_that_of_the_loss() -> None:
    assert Objective().clip_range == (0.2, 0.2)
    assert Objective(loss="gspo").clip_range == (3e-4, 4e-4)
    assert Objective(loss="cispo", clip_high=3.0).clip_range == (1.0, 3.0)
    assert Objective(loss="dppo_kl", clip_low=0.1).clip_range == (0.1, 0.05)
    assert Objective(loss="sapo").clip_range == (0.0, 0.0)
