"""The settings of the objective: what they imply, what they refuse, what the trainer gets."""

from pathlib import Path
from typing import Any

import pytest

from legos.config.resolve import resolve
from legos.config.schema import PlayConfig, RunConfig, TrainingConfig
from legos.errors import ConfigError
from legos.loop.select import Selection
from legos.losses.objective import Objective
from legos.losses.policy import LOSSES


def objective(**settings: Any) -> Objective:
    return TrainingConfig(**settings).objective(0, 10)


@pytest.mark.parametrize("loss", list(LOSSES))
def test_a_loss_brings_its_papers_range(loss: Any) -> None:
    found = objective(loss=loss)
    assert found.loss == loss
    assert found.clip_range == (LOSSES[loss].clip_range or (0.0, 0.0))
    assert TrainingConfig().replace(loss=loss).policy_loss == loss


def test_the_old_names_stand() -> None:
    assert objective().loss == "ppo"
    assert objective(importance_sampling="token").loss == "ppo"
    assert objective(importance_sampling="sequence").loss == "gspo"
    sequences = TrainingConfig(importance_sampling="sequence")
    assert sequences.skip_threshold == 0.9
    assert TrainingConfig(loss="gmpo").skip_threshold == 0.3


def test_a_loss_and_another_ratio_contradict_each_other() -> None:
    with pytest.raises(ConfigError, match=r"loss is 'ppo'.*importance_sampling is 'sequence'"):
        TrainingConfig(loss="ppo", importance_sampling="sequence")
    assert objective(loss="gmpo", importance_sampling="sequence").loss == "gmpo"


def test_a_resolved_file_reads_back(tmp_path: Any) -> None:
    overrides = {"training.loss": "gspo", "play.credit": "turn"}
    resolved = resolve(overrides=overrides)
    path = tmp_path / "config.toml"
    path.write_text(resolved.toml())
    assert resolve(files=[path]).config == resolved.config


def test_a_reference_is_refused_where_nothing_pulls_to_it() -> None:
    for name, value in (("kl_reference", Path("runs/nim-1/adapters/v9")), ("kl_refresh_steps", 5)):
        given: Any = {name: value, "kl_coef": 0.0}
        with pytest.raises(ConfigError, match=rf"{name} is .* but kl_coef is 0.0; set it above 0"):
            TrainingConfig(**given)
    for steps in (5, None):
        config = TrainingConfig(kl_coef=0.1, kl_refresh_steps=steps)
        assert config.update(0, 10).kl_refresh_steps == steps


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"kl_coef": 0.0}, r"kl_coef is 0\.0; set it above 0"),
        ({"kl_estimator": "exact"}, "kl_estimator is 'exact'; .* single tokens: leave one"),
        ({"kl_reference": Path("v9")}, r"kl_reference is .*v9.*; .* legos export --format fused"),
        ({"kl_refresh_steps": 5}, "kl_refresh_steps is 5; .*: leave one of them out"),
    ],
)
def test_what_a_server_of_the_reference_does_not_compute_is_refused(
    given: dict[str, Any], message: str
) -> None:
    settings: dict[str, Any] = {"kl_coef": 0.1, "kl_server": ("http://far:8000",), **given}
    with pytest.raises(ConfigError, match=message):
        TrainingConfig(**settings)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("generation.temperature", 0.7, "nim is sampled at temperature 0.7, .* score tokens at 1"),
        ("loop.deterministic", True, "loop.deterministic is true but training.kl_server"),
    ],
)
def test_what_a_run_with_a_server_of_the_reference_cannot_do_is_refused(
    key: str, value: Any, message: str
) -> None:
    servers: dict[str, Any] = {
        "training.kl_server": ["http://far:8000"],
        "training.kl_coef": 0.1,
        "training.staleness_limit": 0,
    }
    assert resolve(overrides=servers).config.training.kl_server == ("http://far:8000",)
    with pytest.raises(ConfigError, match=message):
        resolve(overrides={**servers, key: value})


def test_a_reference_is_a_path_on_the_command_line(tmp_path: Path) -> None:
    given = {"training.kl_reference": "runs/nim-1/adapters/v9", "training.kl_coef": 0.1}
    resolved = resolve(overrides=given)
    assert resolved.config.training.kl_reference == Path("runs/nim-1/adapters/v9")
    (tmp_path / "config.toml").write_text(resolved.toml())
    file = tmp_path / "config.toml"
    assert resolve(files=[file]).config == resolved.config
    none = resolve(files=[file], overrides={"training.kl_reference": "none"})
    assert none.config.training.kl_reference is None


def test_corrections_reach_the_trainer() -> None:
    found = objective(anchor="proximal", icepop=5.0)
    assert (found.anchor, found.icepop) == ("proximal", 5.0)
    assert objective().icepop is None


@pytest.mark.parametrize(
    ("given", "dtype", "anchor"),
    [
        ({}, "float32", "behaviour"),
        ({}, "float64", "behaviour"),
        ({}, "bfloat16", "proximal"),
        ({"loss": "gspo"}, "float16", "proximal"),
        ({"loss": "cispo"}, "bfloat16", "behaviour"),
        ({"anchor": "behaviour"}, "bfloat16", "behaviour"),
        ({"anchor": "proximal"}, "float32", "proximal"),
    ],
)
def test_the_type_of_the_base_sets_the_anchor(given: Any, dtype: str, anchor: str) -> None:
    found = TrainingConfig(**given).anchored(dtype).objective(0, 10)
    assert found.anchor == anchor


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"loss": "reinforce", "clip_range": 0.1}, r"clip_range is 0\.1, which loss 'reinforce'"),
        ({"loss": "sapo", "clip_range_high": 0.1}, r"clip_range_high is 0\.1, which loss 'sapo'"),
        ({"loss": "gspo", "clip_skip_threshold": 0.1}, r"clip_skip_threshold is 0\.1, which loss"),
        ({"loss": "reinforce", "clip_skip_threshold": 0.1}, r"clip_skip_threshold is 0\.1, which"),
        ({"kl_estimator": "k1"}, r"kl_estimator is 'k1'; expected 'k2', 'k3' or 'exact'"),
        ({"icepop": 1.0}, r"icepop is 1\.0; expected greater than 1, or"),
        ({"loss": "pp0"}, r"loss is 'pp0'; expected .*; did you mean 'ppo'"),
    ],
)
def test_impossible_combinations_are_refused_by_name(settings: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TrainingConfig(**settings)


def test_a_loss_replaces_that_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text(resolve(overrides={"training.loss": "gspo"}).toml())
    other = resolve(run=file, overrides={"training.loss": "cispo"}).config.training
    assert other.policy_loss == "cispo"
    both = {"training.loss": "cispo", "training.importance_sampling": "sequence"}
    with pytest.raises(ConfigError, match="leave importance_sampling out"):
        resolve(run=file, overrides=both)


def test_settings_that_only_a_coefficient_gives_a_meaning_are_told() -> None:
    assert set(TrainingConfig(kl_coef=0.1, ema_kl_coef=0.1, entropy_coef=0.1).unread) == set()
    unread = TrainingConfig(kl_coef=0.0).unread
    assert unread["kl_estimator"] == ("kl_coef", "ema_kl_coef")
    assert set(unread) == {"kl_estimator", "ema_decay"}
    assert set(TrainingConfig(kl_coef=0.1, entropy_coef=0.1).unread) == {"ema_decay"}


def test_a_zero_of_rae_is_no_reason_to_leave_a_group_out() -> None:
    with pytest.raises(ConfigError, match=r"zero_advantage is 'remove' but play\.credit is 'rae'"):
        RunConfig(play=PlayConfig(credit="rae"), training=TrainingConfig(zero_advantage="remove"))


def test_a_credit_rule_is_known_by_its_name() -> None:
    with pytest.raises(ConfigError, match=r"credit is 'hierarchial'.*did you mean 'hierarchical'"):
        PlayConfig(credit="hierarchial")
    for credit in ("rae", "reinforce_pp", "same_view", "gae"):
        assert RunConfig(play=PlayConfig(group_size=1, credit=credit)).play.credit == credit
    with pytest.raises(ConfigError, match=r"play\.group_size is 1 but play\.credit 'maxrl'"):
        RunConfig(play=PlayConfig(group_size=1, credit="maxrl"))


def test_what_is_left_out_is_a_setting() -> None:
    def select(*, num_vocabulary: int | None = None, **options: Any) -> Any:
        return TrainingConfig(**options).selection(num_vocabulary)

    assert select() == Selection()
    assert select(overlong_filter=True) == Selection(overlong=True)
    assert select(zero_advantage="remove") == Selection(zero_advantage=True)
    assert select(num_vocabulary=9) == Selection(num_vocabulary=9)
