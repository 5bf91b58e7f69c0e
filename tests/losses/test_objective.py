"""Objectives refuse what makes no sense; schedules are lines."""

import math
from typing import Any

import pytest

from legos.config.schedule import linear
from legos.errors import ConfigError
from legos.losses.objective import Objective


def test_a_range_that_nobody_gives_is_that_of_the_loss() -> None:
    assert Objective().clip_range == (0.2, 0.2)
    assert Objective(loss="gspo").clip_range == (3e-4, 4e-4)
    assert Objective(loss="cispo", clip_high=3.0).clip_range == (1.0, 3.0)
    assert Objective(loss="dppo_kl", clip_low=0.1).clip_range == (0.1, 0.05)
    assert Objective(loss="sapo").clip_range == (0.0, 0.0)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"clip_low": -0.1}, r"clip_low -0\.1"),
        ({"clip_high": -0.1}, r"clip_high -0\.1"),
        ({"clip_low": math.nan}, r"clip_low nan"),
        ({"kl_coef": -1.0}, r"kl_coef is -1\.0; expected a number >= 0"),
        ({"entropy_coef": math.nan}, r"entropy_coef is nan"),
        ({"loss": "pp0"}, r"loss is 'pp0'; expected one of 'reinforce', 'ppo'"),
        ({"anchor": "proximall"}, r"anchor is 'proximall'; expected one of 'behaviour', 'prox"),
        ({"kl_estimator": "k9"}, r"kl_estimator is 'k9'"),
    ],
)
def test_values_out_of_range(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Objective(**fields)


@pytest.mark.parametrize(
    ("step", "expected"), [(-1, 2.0), (0, 2.0), (1, 1.75), (2, 1.5), (4, 1.0), (9, 1.0)]
)
def test_a_schedule_is_a_line_between_its_ends(step: int, expected: float) -> None:
    assert linear(2.0, 1.0, step=step, num_steps=4) == expected


def test_a_schedule_without_steps_is_at_its_end() -> None:
    assert linear(2.0, 1.0, step=0, num_steps=0) == 1.0
