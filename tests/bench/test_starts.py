"""Starts stay as short as the documentation says, in processor time."""

import pytest
from bench.starts import STARTS, processor_ms


@pytest.mark.nightly
@pytest.mark.parametrize("command", [command for command, most in STARTS.items() if most])
def test_a_start_takes_no_more_than_it_should(command: str) -> None:
    assert processor_ms(command) <= (STARTS[command] or 0)
