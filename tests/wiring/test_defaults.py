"""What a dry run shows of settings that are none."""

from pathlib import Path
from typing import Any

import pytest

from arenas.countdown import Countdown
from legos.config.resolve import read_config, resolve
from legos.wiring.defaults import computed


@pytest.mark.parametrize(
    ("overrides", "texts"),
    [
        (
            {},
            {
                "training.loss": "ppo, ",
                "training.clip_range": "0.2, the value of the loss's paper",
                "training.clip_range_high": "0.2, the same as clip_range",
                "play.group_size": "1, the arena's own number",
                "play.credit": "dr_grpo, the arena's own",
                "generation.max_tokens": "the arena's own limit (in games, the longest move)",
            },
        ),
        (
            {"training.loss": "gspo", "arena": "countdown"},
            {
                "training.clip_range": "0.0003, ",
                "training.clip_range_high": "0.0004, ",
                "play.group_size": f"{Countdown.group_size}, the arena's own number",
                "generation.max_tokens": f"{Countdown.max_tokens}, the arena's own limit",
            },
        ),
        ({"training.clip_range": 0.1}, {"training.clip_range_high": "0.1, the same"}),
    ],
)
def test_the_values_that_hold_are_shown_with_their_reasons(
    overrides: dict[str, Any], texts: dict[str, str], tmp_path: Path
) -> None:
    resolved = resolve(overrides=overrides)
    found = computed(resolved.config)
    for name, text in texts.items():
        assert found[name].startswith(text)
    assert not {*overrides} & {*found}
    printed = tmp_path / "printed.toml"
    printed.write_text(resolved.toml(found))
    assert read_config(printed) == resolved.config
    assert found["play.group_size"] in printed.read_text()
    assert "default: " not in resolved.toml()
