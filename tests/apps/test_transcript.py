"""Plays as text for a terminal."""

from typing import Any

from made_records import make_episode, make_turn
from msgspec.structs import replace

from legos.apps.transcript import ending, example, turns_of
from legos.run.episodes import stored_episode

HOSTILE = "\x1b]0;taken\x07\x1b[2J\x9b31m\rfirst\tline\nsecond\x7f\u202e"
CONTROLS = set("\x1b\x07\x9b\r\x7f\u202e")


def test_no_control_character_of_a_model_reaches_the_terminal() -> None:
    completion = replace(make_turn().completion, text=HOSTILE)
    turn = replace(make_turn(), completion=completion)
    episode = make_episode({"player": 1.0}, turns={"player": [turn]})
    episode = replace(episode, notes=(HOSTILE,))
    stored = stored_episode(episode)
    shown = [*turns_of(stored), ending(stored), example(episode)]
    assert all(CONTROLS.isdisjoint(text) for text in shown)
    assert r"\x1b[2J\x9b31m\rfirst" in shown[0]
    assert "first\tline\nsecond" in shown[0]


def test_an_example_is_an_answer_of_any_length_but_no_move_of_a_list() -> None:
    turn = make_turn(token_ids=(49, 53))

    def shown(**changes: Any) -> str:
        changed = replace(turn, **changes)
        return example(make_episode({"player": 1.0}, turns={"player": [changed]}))

    assert shown() == "? -> 15  (reward +1)"
    assert shown(choices=("15", "16")) == ""
    assert shown(choices=("1", "2")) == shown()
    assert shown(reward=0.5) == "? -> 15  (reward +1.5)"
