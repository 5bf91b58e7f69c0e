"""Every setting of the step reaches the trainer as itself, and schedules are the lines they say."""

from dataclasses import replace
from typing import Any

import pytest

from legos.config.schema import TrainingConfig


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("kl_estimator", "k3"),
        ("kl_coef", 0.7),
        ("ema_kl_coef", 0.7),
    ],
)
def test_a_setting_of_the_objective_is_its_own(name: str, value: Any) -> None:
    given: Any = {name: value}
    found, default = (TrainingConfig(**fields).objective(0, 10) for fields in (given, {}))
    changed = {
        field for field in found.__slots__ if getattr(found, field) != getattr(default, field)
    }
    assert changed == {name}
    assert getattr(found, name) == value


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"kl_coef": 0.1, "kl_refresh_steps": 7}, {"kl_refresh_steps": 7}),
        ({"ema_kl_coef": 0.1, "ema_decay": 0.7}, {"ema_decay": 0.7}),
        ({"ema_decay": 0.7}, {}),  # without its divergence the EMA is the policy itself
    ],
)
def test_a_setting_of_the_update_is_its_own(given: Any, expected: dict[str, Any]) -> None:
    found, default = (TrainingConfig(**fields).update(0, 10) for fields in (given, {}))
    assert found == replace(default, **expected)


def test_the_share_of_clipped_tokens_has_a_threshold() -> None:
    config = TrainingConfig(clip_skip_threshold=0.7)
    assert config.skip_threshold == 0.7


def test_ranges_have_a_side_each() -> None:
    config = TrainingConfig(clip_range=0.1, clip_range_high=0.3)
    ppo = config.objective(0, 10)
    assert ppo.clip_range == (0.1, 0.3)


def test_the_entropy_bonus_is_a_line() -> None:
    config = TrainingConfig(entropy_coef=0.4, entropy_coef_end=0.2)
    objective = config.objective
    assert [objective(step, 8).entropy_coef for step in (0, 2, 4, 8, 9)] == pytest.approx(
        [0.4, 0.35, 0.3, 0.2, 0.2]
    )
    assert objective(9, 0).entropy_coef == 0.4  # of steps whose number is not known


def test_the_learning_rate_rises_and_falls() -> None:
    config = TrainingConfig(learning_rate=0.8, warmup_steps=4, learning_rate_end_fraction=0.5)
    update = config.update
    line = [0.8, 0.75, 0.7, 0.65, 0.6]
    warm = [0.25, 0.5, 0.75, 1.0, 1.0]  # the first step moves something
    assert [update(step, 8).learning_rate for step in range(5)] == pytest.approx(
        [share * value for share, value in zip(warm, line, strict=True)]
    )
    assert update(8, 8).learning_rate == pytest.approx(0.4)
