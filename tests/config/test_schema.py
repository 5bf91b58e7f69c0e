"""The schema: its defaults, what it derives from the mode, and what it refuses."""

from typing import Any

import pytest

from legos.config.resolve import knobs
from legos.config.schema import (
    GenerationConfig,
    LoopConfig,
    PlayConfig,
    RunConfig,
    TrainingConfig,
)
from legos.errors import ConfigError


def clip_range(config: TrainingConfig) -> tuple[float, float]:
    return config.objective(0, 10).clip_range


def test_defaults_are_those_documented() -> None:
    config = TrainingConfig()
    assert config.micro_batch_tokens is None  # by the device
    assert config.min_samples_per_step == 16
    assert config.importance_sampling == "token"
    assert clip_range(config) == (0.2, 0.2)
    assert config.skip_threshold == 0.3
    assert config.staleness_limit == 3
    assert config.kl_coef == 0.0
    assert (config.lora_rank, config.lora_layers, config.lora_alpha) == (8, 16, 32.0)
    assert config.loss_normalisation == "token"


def test_every_knob_has_a_description_that_ends_like_a_sentence() -> None:
    for name, field in knobs().items():
        assert field.description, name
        assert field.description.rstrip(")").endswith((".", "VALUE")), name


def test_sequence_mode_has_clip_ranges_and_a_threshold_of_its_own() -> None:
    config = TrainingConfig(importance_sampling="sequence")
    assert clip_range(config) == (3e-4, 4e-4)
    assert config.skip_threshold == 0.9


@pytest.mark.parametrize("mode", ["token", "sequence"])
def test_clip_range_given_holds_on_both_sides_until_the_upper_is_given(mode: Any) -> None:
    one = TrainingConfig(importance_sampling=mode, clip_range=0.1)
    assert clip_range(one) == (0.1, 0.1)
    two = one.replace(clip_range_high=0.28)
    assert clip_range(two) == (0.1, 0.28)


def test_clip_range_high_alone_leaves_the_lower_side() -> None:
    config = TrainingConfig(clip_range_high=0.28)
    assert clip_range(config) == (0.2, 0.28)


def test_unknown_setting_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match="learning_rte does not exist; did you mean 'learning_r"):
        TrainingConfig(learning_rte=1e-3)  # pyrefly: ignore[unexpected-keyword]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"kl_coef": -0.1}, r"kl_coef is -0\.1; expected greater than or equal to 0"),
        ({"lora_rank": 2.5}, r"lora_rank is 2\.5; expected a valid integer"),
        ({"lora_rank": True}, r"lora_rank is True; expected a valid integer"),
        ({"learning_rate": "fast"}, r"learning_rate is 'fast'; expected a valid number"),
        ({"learning_rate": float("nan")}, r"learning_rate is nan; expected a finite number"),
        ({"clip_range": 1.0}, r'clip_range is 1\.0; expected less than 1, or "none"'),
        ({"importance_sampling": "word"}, r"expected 'token' or 'sequence'"),
    ],
)
def test_bad_value_is_named_with_what_was_expected(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TrainingConfig(**values)


def test_several_bad_values_are_all_named() -> None:
    with pytest.raises(ConfigError) as caught:
        TrainingConfig(kl_coef=-1.0, lora_rank=0)
    assert len(str(caught.value).splitlines()) == 2


def test_replace_checks_again_and_leaves_the_original() -> None:
    config = TrainingConfig()
    assert config.replace(kl_coef=0.5).kl_coef == 0.5
    assert config.kl_coef == 0.0
    with pytest.raises(ConfigError, match="kl_coef is -1"):
        config.replace(kl_coef=-1)


def test_deterministic_run_allows_no_lag() -> None:
    loop = LoopConfig(deterministic=True, step_concurrency=1)
    with pytest.raises(ConfigError, match=r"loop\.deterministic.*training\.staleness_limit is 3"):
        RunConfig(loop=loop)
    RunConfig(loop=loop, training=TrainingConfig(staleness_limit=0))
    with pytest.raises(ConfigError, match=r"loop\.deterministic.*loop\.step_concurrency is 2"):
        RunConfig(loop=LoopConfig(deterministic=True), training=TrainingConfig(staleness_limit=0))


def test_passes_by_the_clock_are_refused_where_a_run_must_repeat() -> None:
    timed = TrainingConfig(decode_pause_s=0.5, staleness_limit=0)
    RunConfig(training=timed)
    loop = LoopConfig(deterministic=True, step_concurrency=1)
    with pytest.raises(
        ConfigError, match=r"decode_pause_s is 0\.5 but loop\.deterministic is true"
    ):
        RunConfig(loop=loop, training=timed)


@pytest.mark.parametrize("port", [0, 8000])
def test_requests_of_others_are_refused_where_a_run_must_repeat(port: int) -> None:
    alone = TrainingConfig(staleness_limit=0)
    loop = LoopConfig(deterministic=True, step_concurrency=1, serve_port=port)
    with pytest.raises(ConfigError, match=rf"deterministic is true but loop\.serve_port is {port}"):
        RunConfig(loop=loop, training=alone)


def test_a_group_of_one_cannot_be_compared() -> None:
    with pytest.raises(ConfigError, match=r"play\.group_size is 1 but play\.credit 'rloo'"):
        RunConfig(play=PlayConfig(group_size=1, credit="rloo"))
    RunConfig(play=PlayConfig(group_size=1, credit="rae"))


def test_a_completion_may_be_longer_than_a_micro_batch() -> None:
    RunConfig(
        generation=GenerationConfig(max_tokens=512),
        training=TrainingConfig(micro_batch_tokens=256),
    )


def test_memory_can_be_limited() -> None:
    assert TrainingConfig().memory_limit_gib is None
    assert TrainingConfig(memory_limit_gib=6.5).memory_limit_gib == 6.5
    with pytest.raises(ConfigError, match=r"memory_limit_gib is 0\.0; expected greater than 0"):
        TrainingConfig(memory_limit_gib=0.0)
