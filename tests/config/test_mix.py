"""Settings of a mix: a table for each arena, one setting each with its source, and refusals."""

from pathlib import Path
from typing import Any

import pytest

from legos.arena.registry import advice
from legos.cli.process import main
from legos.config.resolve import read_config, resolve
from legos.config.schema import RunConfig
from legos.errors import ConfigError

HALVES = {"mix.nim.share": 0.5, "mix.kuhn.share": 0.5}


def test_each_arena_has_its_settings_over_those_of_play_and_generation() -> None:
    config = RunConfig.model_validate(
        {
            "mix": {
                "nim": {"share": 0.25, "group_size": 4, "options": {"largest": 9}},
                "games.py:Own": {"share": 0.75, "max_tokens": 9},
            },
            "play": {"group_size": 2, "concurrency": 64},
            "generation": {"max_tokens": 50, "temperature": 0.5},
        }
    )
    nim, own = config.arenas.values()
    assert (nim.play.group_size, own.play.group_size) == (4, 2)
    assert nim.play.options == {"largest": 9}
    assert (nim.generation.max_tokens, own.generation.max_tokens) == (50, 9)
    assert own.generation.temperature == 0.5
    assert config.title == "nim+games.py:Own"


def test_the_file_of_a_run_holds_the_mix_with_sources(tmp_path: Path) -> None:
    given = tmp_path / "given.toml"
    given.write_text(
        '[mix]\nkuhn = 0.5\n[mix."games.py:Own"]\nshare = 0.5\ncredit = "rae"\n'
        "options = {size = 3, deep = {a = 1}}\n"
    )
    resolved = resolve(files=[given], recommend=lambda name, _: {"play.tasks_per_step": len(name)})
    assert resolved.sources["mix.games.py:Own.credit"] == f"file {given}"
    assert resolved.sources["mix.kuhn.tasks_per_step"] == "arena kuhn"
    kept = tmp_path / "config.toml"
    kept.write_text(resolved.toml())
    again = resolve(run=kept).config
    assert again == resolved.config == read_config(kept)
    assert list(again.arenas) == ["kuhn", "games.py:Own"]
    own = again.arenas["games.py:Own"].play
    assert (own.tasks_per_step, own.options) == (12, {"size": 3, "deep": {"a": 1}})
    assert resolve(files=[kept]).config.arenas["kuhn"].play.tasks_per_step is None


def test_a_resumed_mix_has_what_is_asked_of_all_its_arenas(tmp_path: Path) -> None:
    """As a new one: what an arena recommended yields to it, what its own table had does not."""
    kept = tmp_path / "config.toml"
    given = {**HALVES, "mix.kuhn.group_size": 2}
    kept.write_text(resolve(overrides=given, recommend=lambda *_: {"play.group_size": 4}).toml())
    arenas = resolve(run=kept, overrides={"play.group_size": 8}).config.arenas
    assert [one.play.group_size for one in arenas.values()] == [8, 2]


def test_the_first_arena_that_recommends_a_setting_decides_but_not_of_play() -> None:
    def recommend(name: str, _: str) -> dict[str, object]:
        only = {"training.ema_decay": 0.5} if name == "kuhn" else {}
        rate = len(name) / 10
        return {"training.learning_rate": rate, "play.tasks_per_step": len(name), **only}

    resolved = resolve(overrides=HALVES, recommend=recommend)
    assert resolved.config.training.learning_rate == 0.3
    assert resolved.sources["training.ema_decay"] == "arena kuhn"
    assert [one.play.tasks_per_step for one in resolved.config.arenas.values()] == [3, 4]
    overrides = {**HALVES, "play.tasks_per_step": 5}
    resolved = resolve(overrides=overrides, recommend=recommend)
    assert [one.play.tasks_per_step for one in resolved.config.arenas.values()] == [5, 5]
    assert list(resolved.config.mix) == ["nim", "kuhn"]


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        ({**HALVES, "mix.nim.share": 0.4}, r"add up to 0\.9: nim=0\.4, kuhn=0\.5; change"),
        ({**HALVES, "mix.pig.options": {}}, r"mix\.pig\.share is missing; give it a value"),
        (
            {**HALVES, "mix.nim.share": 1.5},
            r"mix\.nim\.share is 1\.5; expected less than or equal",
        ),
        ({**HALVES, "mix.nim.group_sise": 2}, r"mix\.nim\.group_sise .* did you mean 'group_size'"),
        ({**HALVES, "arena": "pig"}, r"arena is 'pig' but mix names nim, kuhn; give one of them"),
        (
            {**HALVES, "play.options.largest": 3},
            r"play\.options names largest but mix names nim, kuhn; .*\[mix\.NAME\] options",
        ),
        (
            {**HALVES, "mix.nim.concurrency": 9},
            r"concurrency is 9, but all arenas .* set play\.concurrency",
        ),
        (
            {**HALVES, "mix.nim.group_size": 1, "mix.nim.credit": "grpo"},
            r"mix\.nim\.group_size is 1 but mix\.nim\.credit 'grpo'",
        ),
    ],
)
def test_what_does_not_fit_is_refused_by_name(overrides: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        resolve(overrides=overrides, recommend=advice)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ("--mix nim=0.5 --mix nim=0.5", "--mix names 'nim' twice"),
        ("--mix nim=0.5 --mix kun=0.5", "no arena is called 'kun'; did you mean 'kuhn'?"),
        ("--mix nim=0.5 --mix kuhn=0.5 --arena nim", "give one of them"),
    ],
)
def test_the_command_line_is_checked_before_anything_is_loaded(
    options: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", *options.split(), "--dry-run"]) == 2
    assert told in " ".join(capsys.readouterr().err.split())


def test_an_option_that_its_arena_does_not_take_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "mix.toml"
    file.write_text("[mix]\nnim = 0.5\n[mix.kuhn]\nshare = 0.5\noptions = {largest = 3}\n")
    assert main(["train", "--config", str(file), "--dry-run"]) == 2
    assert "'kuhn' takes no option 'largest'" in " ".join(capsys.readouterr().err.split())
