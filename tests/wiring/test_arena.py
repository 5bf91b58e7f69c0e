"""Arenas from settings: what is asked for is what is played, or is refused by name."""

from pathlib import Path

import pytest

from legos.config.schema import PlayConfig
from legos.credit import RAECredit
from legos.errors import ConfigError
from legos.wiring.arena import make_arena

OWN = """
from legos import Arena, RAECredit

class Own(Arena):
    def __init__(self, client=None, *, credit_assigner=None, temperature=1.0, seed=0):
        mine = RAECredit()
        super().__init__(client, credit_assigner=mine, temperature=temperature, seed=seed)
"""


def test_a_credit_rule_that_the_arena_does_not_take_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    file.write_text(OWN)
    name = f"{file}:Own"
    assert isinstance(make_arena(name, None).credit_assigner, RAECredit)
    with pytest.raises(ConfigError, match=r"play\.credit is 'grpo' but arena .* rule RAECredit"):
        make_arena(name, None, play=PlayConfig(credit="grpo"))
    assert isinstance(
        make_arena("nim", None, play=PlayConfig(credit="rae")).credit_assigner, RAECredit
    )
