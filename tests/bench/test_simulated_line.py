"""The simulated line is as fast as the part of it that limits, which a formula gives."""

import pytest

from legos.bench.simulated_line import Design, simulate


def test_engines_that_limit_are_busy_and_give_their_rate() -> None:
    design = Design(engines=4, groups_per_step=8, trainer_tokens_per_s=1e9)
    found = simulate(design, steps=6, warm=3)
    assert found.engines_busy == pytest.approx(1.0, abs=0.02)
    rate = design.engines * design.rows / design.answer_s(design.tokens)
    assert found.samples_per_s == pytest.approx(rate, rel=0.05)


def test_a_trainer_that_limits_is_busy_and_plays_wait_for_it() -> None:
    design = Design(engines=64, groups_per_step=8, trainer_tokens_per_s=2e3)
    found = simulate(design, steps=6, warm=3)
    assert found.trainer_busy == pytest.approx(1.0, abs=0.02)
    assert found.waiting_samples == design.staleness_limit * design.samples
    assert found.staleness_max == design.staleness_limit
    assert found.discarded == 0.0
