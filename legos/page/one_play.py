"""One stored play with everything that is known of it, as JSON values."""

from collections.abc import Iterator, Mapping
from itertools import count
from typing import Any, cast

from msgspec import UNSET, to_builtins

from legos.run.episodes import StoredEpisode, StoredMessage, StoredSeat, StoredTurn, in_order


def play_values(episode: StoredEpisode, numbers: Iterator[int] | None = None) -> dict[str, Any]:
    """A play with its turns, which are numbered as ``turns_of`` lists them.

    Args:
        episode: the play.
        numbers: numbers of its turns; None: from 0.
    """
    numbers, whole = numbers or count(), cast("Mapping[str, Any]", to_builtins(episode))
    return {
        **{name: value for name, value in whole.items() if name not in ("seats", "children")},
        "seed": str(episode.seed),  # a browser's numbers have 53 bits
        "play_seed": str(episode.play_seed),
        "returns": {
            seat.role: value
            for seat in episode.seats
            if (value := episode.returned(seat)) is not None
        },
        "seats": [_seat(seat) for seat in episode.seats],
        "turns": [_turn(seat, index, next(numbers)) for seat, index in in_order(episode)],
        "children": [play_values(child, numbers) for child in episode.children],
    }


def _seat(seat: StoredSeat) -> dict[str, Any]:
    """Who sat in a seat, and at which versions."""
    return {
        **{name: getattr(seat, name) for name in ("role", "seat", "policy")},
        "versions": sorted({version for turn in seat.turns for version in turn.versions}),
    }


def _turn(seat: StoredSeat, index: int, number: int) -> dict[str, Any]:
    turn = seat.turns[index]
    values: Mapping[str, Any] = to_builtins(turn)
    left_out = ("prompt_ids", "messages", "sampling")
    return {
        **{name: value for name, value in values.items() if name not in left_out},
        "id": number,
        "role": seat.role,
        "messages": [to_builtins(message) for message in _new_messages(turn, first=index == 0)],
        "trained": None if turn.trained is UNSET else to_builtins(turn.trained),
    }


def _new_messages(turn: StoredTurn, *, first: bool) -> list[StoredMessage]:
    """The messages that a seat was shown since its turn before."""
    shown = turn.messages if first else [m for m in turn.messages if m.role != "assistant"]
    return [*shown, StoredMessage(turn.asked_as, turn.asked)]
