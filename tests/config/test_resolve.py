"""Layers of settings: which wins, where each value came from, and how bad ones are refused."""

import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from legos.config.resolve import knobs, read_config, resolve
from legos.config.schema import RunConfig
from legos.errors import ConfigError


def write(folder: Path, text: str, name: str = "run.toml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_nothing_given_is_the_defaults() -> None:
    resolved = resolve()
    assert resolved.config == RunConfig()
    assert set(resolved.sources.values()) == {"default"}
    assert set(resolved.sources) == set(knobs()) - {"play.options"}


def test_each_layer_wins_over_the_one_before(tmp_path: Path) -> None:
    first = write(tmp_path, "[training]\nkl_coef = 0.3\nlora_rank = 4\nlora_layers = 2\n", "a.toml")
    second = write(tmp_path, "[training]\nlora_rank = 5\nlora_layers = 3\n", "b.toml")
    resolved = resolve(
        files=[first, second],
        overrides={"training.lora_layers": 6},
        recommend=lambda _arena, _model: {"training.kl_coef": 0.2, "training.ema_kl_coef": 0.2},
    )
    training = resolved.config.training
    expected = {
        "training.clip_skip_threshold": (0.3, "default"),
        "training.learning_rate": (3e-3, "model builtin"),
        "training.ema_kl_coef": (0.2, "arena nim"),
        "training.kl_coef": (0.3, f"file {first}"),
        "training.lora_rank": (5, f"file {second}"),
        "training.lora_layers": (6, "command line"),
    }
    for name, (value, source) in expected.items():
        assert getattr(training, name.partition(".")[2]) == value
        assert resolved.sources[name] == source


def test_the_arena_asked_for_advice_is_the_one_chosen_last(tmp_path: Path) -> None:
    asked: list[tuple[str, str]] = []

    def recommend(arena: str, model: str) -> dict[str, object]:
        asked.append((arena, model))
        return {}

    path = write(tmp_path, 'arena = "kuhn"\nmodel = "some/model"\n')
    resolve(files=[path], recommend=recommend)
    resolve(files=[path], overrides={"arena": "goofspiel"}, recommend=recommend)
    assert asked == [("kuhn", "some/model"), ("goofspiel", "some/model")]


def test_deterministic_implies_no_lag_and_says_so() -> None:
    resolved = resolve(
        overrides={"loop.deterministic": True},
        recommend=lambda _arena, _model: {"training.staleness_limit": 2},
    )
    assert resolved.config.training.staleness_limit == 0
    assert resolved.config.loop.step_concurrency == 1
    assert resolved.sources["training.staleness_limit"] == "loop.deterministic"


def test_deterministic_with_lag_is_refused_naming_both_and_their_sources(tmp_path: Path) -> None:
    path = write(tmp_path, "training.staleness_limit = 2\n")
    with pytest.raises(ConfigError) as caught:
        resolve(files=[path], overrides={"loop.deterministic": True})
    assert "loop.deterministic: command line" in str(caught.value)
    assert f"training.staleness_limit: file {path}" in str(caught.value)
    assert "out:" not in str(caught.value)  # of "leave one of them out"


def test_written_toml_reads_back_and_names_sources(tmp_path: Path) -> None:
    resolved = resolve(
        overrides={
            "training.clip_range": None,
            "training.learning_rate": 3e-5,
            "out": tmp_path / 'a "quoted" name',
            "play.options": {"largest": 9, "words": ["a\n", "b"], "odd.key": {"x": 1.5}},
        },
        recommend=lambda _arena, _model: {"training.entropy_coef": 0.5},
    )
    text = resolved.toml()
    assert "\nlearning_rate = 3e-05  # command line\n" in text
    assert "\n#: entropy_coef = 0.5  # arena nim\n" in text
    assert '\nclip_range = "none"  # command line\n' in text
    assert read_config(write(tmp_path, text)) == resolved.config


def recommend(arena: str, _model: str) -> dict[str, object]:
    return {"training.entropy_coef": 0.5, "loop.steps": 500} if arena == "nim" else {}


def test_a_runs_file_gives_another_run_only_what_was_chosen(tmp_path: Path) -> None:
    given = {"training.clip_range": 0.3, "loop.deterministic": True, "out": tmp_path / "run"}
    saved = write(tmp_path, resolve(overrides=given, recommend=recommend).toml())
    resolved = resolve(files=[saved], overrides={"arena": "kuhn"}, recommend=recommend)
    fresh = resolve(overrides={**given, "out": None, "arena": "kuhn"}, recommend=recommend)
    assert resolved.config == fresh.config
    from_file = {name for name, source in resolved.sources.items() if source == f"file {saved}"}
    assert from_file == {"training.clip_range", "loop.deterministic"}


def test_a_resumed_runs_file_gives_every_value(tmp_path: Path) -> None:
    before = resolve(overrides={"training.clip_range": 0.3}, recommend=recommend)
    saved = write(tmp_path, before.toml())

    def changed(_arena: str, _model: str) -> dict[str, object]:
        return {"training.entropy_coef": 0.1, "loop.steps": 3, "play.group_size": 7}

    assert resolve(run=saved, recommend=changed).config == before.config


def test_a_resumed_run_can_become_deterministic(tmp_path: Path) -> None:
    saved = write(tmp_path, resolve(recommend=recommend).toml())
    resolved = resolve(run=saved, overrides={"loop.deterministic": True})
    assert resolved.config.training.staleness_limit == 0
    assert resolved.config.loop.step_concurrency == 1
    assert resolved.sources["loop.step_concurrency"] == "loop.deterministic"
    chosen = write(tmp_path, resolve(overrides={"training.staleness_limit": 2}).toml())
    with pytest.raises(ConfigError, match=r"staleness_limit is 2.*staleness_limit: file"):
        resolve(run=chosen, overrides={"loop.deterministic": True})


def test_large_models_get_no_advice_meant_for_the_built_in_one() -> None:
    resolved = resolve(overrides={"model": "some/model"}, recommend=lambda _arena, _model: {})
    changed = {name for name, source in resolved.sources.items() if source != "default"}
    assert changed == {"model", "training.staleness_limit"}


@pytest.mark.parametrize(
    ("given", "limit", "source"),
    [
        ({"model": "some/model"}, 0, "one device"),
        ({"model": "some/model", "training.staleness_limit": 2}, 2, "command line"),
        ({}, 1, "model builtin"),
        ({"model": "some/model", "server": ("http://localhost:1",)}, 3, "default"),
        ({"model": "some/model", "engine": "vllm"}, 3, "default"),
        ({"model": "some/model", "ray": "local"}, 3, "default"),
    ],
)
def test_play_and_training_take_turns_where_one_device_does_both(
    given: Mapping[str, object], limit: int, source: str
) -> None:
    resolved = resolve(overrides=given, recommend=lambda _arena, _model: {})
    assert resolved.config.training.staleness_limit == limit
    assert resolved.sources["training.staleness_limit"] == source


def test_a_path_may_begin_at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    path = write(tmp_path, 'adapter_folder = "~/a"\nserver = ["http://a"]\n')
    config = resolve(files=[path], overrides={"out": Path("~/run")}).config
    assert (config.adapter_folder, config.out) == (tmp_path / "a", tmp_path / "run")


def test_none_can_be_written_where_a_setting_admits_it(tmp_path: Path) -> None:
    config = read_config(write(tmp_path, '[training]\nclip_range = "none"\n'))
    assert config.training.clip_range is None
    with pytest.raises(ConfigError, match="kl_coef is 'none'; expected a valid number"):
        read_config(write(tmp_path, '[training]\nkl_coef = "none"\n'))


@pytest.mark.parametrize(
    ("text", "named", "hint"),
    [
        ("[training]\nlearning_rat = 1\n", "training.learning_rat", "'training.learning_rate'"),
        ("learning_rate = 1\n", "learning_rate", "'training.learning_rate'"),
        ("[trainng]\nkl_coef = 1\n", "trainng", "'training'"),
        ("[play.settings]\nx = 1\n", "play.settings", "'"),
    ],
)
def test_unknown_key_names_file_key_and_the_nearest(
    tmp_path: Path, text: str, named: str, hint: str
) -> None:
    path = write(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        read_config(path)
    message = str(caught.value)
    assert message.startswith(f"{named} (file {path}) is not a setting; did you mean {hint}")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[loop]\nsteps = 'many'\n", "loop.steps is 'many'; expected a valid integer"),
        ("[loop]\nsteps = 0\n", "loop.steps is 0; expected greater than or equal to 1"),
        ("[loop]\nsteps = true\n", "loop.steps is True; expected a valid integer"),
        ("[loop]\ndeterministic = 1\n", "loop.deterministic is 1; expected a valid boolean"),
        ("seed = -1\n", "seed is -1; expected greater than or equal to 0"),
        ("out = 3\n", 'out is 3; expected a path, or "none"'),
        ("players = true\n", "players is True; expected a valid integer"),
        ("[generation]\ntemperature = 1e-4\n", "temperature is 0.0001; expected greater than or"),
        ("loop = 3\n", "loop (file {path}) is 3; expected a table"),
    ],
)
def test_wrong_value_names_key_value_expectation_and_file(
    tmp_path: Path, text: str, message: str
) -> None:
    path = write(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        read_config(path)
    assert message.format(path=path) in str(caught.value)
    assert f"(file {path})" in str(caught.value)
    assert "pydantic" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ('server = ["http://a", 3]', "server.1"),
        ('[play.opponents]\nself = "x"', "play.opponents.self"),
        ('[mix."a.py:A"]\nshare = 1\nopponents = {self = "x"}', "mix.a.py:A.opponents.self"),
    ],
)
def test_a_wrong_part_of_a_value_names_the_file_of_the_value(
    tmp_path: Path, text: str, key: str
) -> None:
    path = write(tmp_path, text)
    with pytest.raises(ConfigError, match=re.escape(f"{key} is ")) as caught:
        read_config(path)
    assert str(caught.value).endswith(f"(file {path})")


def test_settings_that_contradict_each_other_are_named_and_no_others() -> None:
    with pytest.raises(ConfigError, match="compares the plays of a group") as caught:
        resolve(overrides={"play.group_size": 1, "play.credit": "grpo"})
    named = "[play.group_size: command line, play.credit: command line]"
    assert str(caught.value).endswith(named)


def test_bad_advice_of_an_arena_is_named_as_its() -> None:
    with pytest.raises(ConfigError, match=r"training\.kl \(arena nim\) is not a setting"):
        resolve(recommend=lambda _arena, _model: {"training.kl": 1})


def test_broken_and_missing_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read the configuration .*none\.toml"):
        read_config(tmp_path / "none.toml")
    with pytest.raises(ConfigError, match=r"run\.toml is not valid TOML: .*line 1"):
        read_config(write(tmp_path, "steps = = 3\n"))
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match=r"binary\.toml is not valid TOML"):
        read_config(tmp_path / "binary.toml")


def test_the_settings_of_the_maths_example() -> None:
    path = Path(__file__).parents[2] / "examples" / "gsm8k.toml"
    config = resolve(files=[path]).config  # as it ships
    assert (config.arena, config.device, config.play.group_size) == ("math", "mlx", 8)
    assert (config.training.clip_range, config.training.clip_range_high) == (0.2, 0.28)
    apart = {"device": "torch", "server": ("http://localhost:8000",)}
    assert resolve(files=[path], overrides=apart).config.device == "torch"
    with pytest.raises(ConfigError, match="device is torch but server is empty"):
        resolve(files=[path], overrides={"device": "torch"})
