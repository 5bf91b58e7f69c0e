"""Commands, and what they print."""

import json
from typing import Any

import pytest
from short_runs import Told

from legos.cli.process import main


@pytest.fixture
def told(capsys: pytest.CaptureFixture[str]) -> Told:
    """Runs a command with ``--json``; returns what it printed."""

    def tell(*arguments: str) -> dict[str, Any]:
        capsys.readouterr()
        assert main([*arguments, "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    return tell
