"""Objectives refuse what makes no sense; schedules are lines."""

import pytest

from legos.errors import ConfigError
from legos.losses.objective import Objective
from legos.losses.schedule import linear


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"clip_low": -0.1}, r"clip_low -0\.1"),
        ({"clip_high": -0.1}, r"clip_high -0\.1"),
        ({"dual_clip": 1.0}, r"dual_clip is 1\.0; expected more than 1"),
        ({"max_grad_norm": 0.0}, r"max_grad_norm is 0\.0"),
    ],
)
def test_values_out_of_range(fields: dict[str, float], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Objective(**fields)  # pyright: ignore[reportArgumentType]


def test_the_dual_clip_can_be_off() -> None:
    assert Objective(dual_clip=None).dual_clip is None


@pytest.mark.parametrize(
    ("step", "expected"), [(-1, 2.0), (0, 2.0), (1, 1.75), (2, 1.5), (4, 1.0), (9, 1.0)]
)
def test_a_schedule_is_a_line_between_its_ends(step: int, expected: float) -> None:
    assert linear(2.0, 1.0, step=step, num_steps=4) == expected


def test_a_schedule_without_steps_is_at_its_end() -> None:
    assert linear(2.0, 1.0, step=0, num_steps=0) == 1.0
