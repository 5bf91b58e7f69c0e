"""Tables in a narrow terminal."""

import pytest

from legos.cli.output import show_table


def test_numbers_and_their_names_are_never_broken(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    row = {
        "arena": "../some/where/else/bluff.py:Bluff",
        "model": "builtin",
        "step": "500/500",
        "forked_from": "runs/nim-1@450",
        "reward_mean": -0.00293,
        "eval/optimal_move_rate": 0.9979,
        "eval/exploitability": 6.261e-05,
    }
    show_table("run", {"bluff-1": row, "nim-1": dict.fromkeys(row)})
    told = capsys.readouterr().out
    assert max(map(len, told.splitlines())) <= 80
    for word in ("-0.00293", "0.9979", "6.261e-05", "exploitability", "optimal"):
        assert word in told
