"""Options generated from the schema: each setting has one, and values are read as in TOML."""

from typing import get_args

import pytest

from legos.cli.overrides import Loop, Training, dotted, literal
from legos.cli.process import main
from legos.config.schema import LoopConfig, TrainingConfig
from legos.errors import ConfigError


def test_every_setting_of_a_group_has_an_option() -> None:
    for annotated, group in ((Training, TrainingConfig), (Loop, LoopConfig)):
        [kind, _] = get_args(get_args(annotated)[0])
        assert set(kind.__annotations__) == set(group.model_fields)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3),
        ("-2.5", -2.5),
        ("true", True),
        ("[1, 2]", [1, 2]),
        ('"3"', "3"),
        ("plain words", "plain words"),
        ("", ""),
    ],
)
def test_literal(text: str, value: object) -> None:
    assert literal(text) == value


def test_only_what_was_given_becomes_a_setting() -> None:
    given = dotted(
        {
            "training": {"kl_coef": 0.5, "clip_range": None},
            "play": {"options": {"a": "1"}},
            "loop": None,
        },
        {"--steps": ("loop.steps", 4), "--seed": ("seed", None)},
    )
    assert given == {
        "training.kl_coef": 0.5,
        "training.clip_range": None,
        "play.options.a": 1,
        "loop.steps": 4,
    }


def test_a_setting_given_twice_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"--steps and --loop\.steps are the same setting"):
        dotted({"loop": {"steps": 3}}, {"--steps": ("loop.steps", 4)})


@pytest.mark.parametrize(
    ("command", "option", "value"),
    [
        ("play nim", "--plays", "2.7"),
        ("arenas check nim", "--seed", "1.5"),
        ("view", "--port", "none"),
        ("train", "--steps", "2.0"),
        ("train", "--players", "none"),
        ("train", "--generation.max-tokens", "1e3"),
    ],
)
def test_a_number_that_is_not_whole_is_not_rounded(
    command: str, option: str, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command.split(), option, value]) == 2
    assert f"{option}: {value!r} is not a whole number" in capsys.readouterr().err
