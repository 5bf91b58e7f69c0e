"""Numbers that an arena gives: they are finite and bounded before anything computes with them."""

import math
import operator
from numbers import Number
from typing import Any

from legos.errors import ArenaError, RewardError, text_of

MAX_REWARD = 1e6  # of a reward, a part of it or a weight; float32 still tells 0.1 apart there
MAX_METRIC = 1e100  # the sum over any number of plays is finite
SHOWN = 80  # maximum number of characters of a value in a message

reward_range = f"expected a finite number from {-MAX_REWARD:g} to {MAX_REWARD:g}"


def brief(value: object) -> str:
    """A value for a message, cut if it is long."""
    text = text_of(value, repr)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


def shown(value: object) -> str:
    """A value and its type for a message, such as ``3, an int``; None without its type."""
    text = brief(value)
    kind = type(value).__name__
    article = "an" if kind[0] in "aeiou" else "a"
    return text if value is None else f"{text}, {article} {kind}"


def number(value: Any) -> float:
    """Convert a number, also a NumPy number or array, to a float; NaN for other values."""
    if type(value) is float:
        return value
    try:
        return math.nan if isinstance(value, str | bytes) else float(value)
    except OverflowError:
        return math.inf
    except (TypeError, ValueError):
        return math.nan


def plain_value(value: Any) -> str | int | float:
    """Convert a value of NumPy, or of a class derived from str, to what JSON and MessagePack write.

    Raises:
        TypeError, ValueError: it is neither a text nor a number.
    """
    if isinstance(value, str):
        return str.__str__(value)
    try:
        return operator.index(value)
    except TypeError:  # also of an array with a float
        return float(value)


def bounded(value: Any, what: str, most: float, least: float | None = None) -> float:
    """Convert a value to a float from ``least`` (None: -``most``) to ``most``.

    Raises:
        ValueError: it is no number, or out of range; the message begins with ``what``.
    """
    found, least = number(value), -most if least is None else least
    if not least <= found <= most:
        raise ValueError(f"{what} is not a finite number from {least:g} to {most:g}")
    return found


def checked_reward(reward: Any, what: str, *, of: str = "", hint: str = "") -> float:
    """A reward, or a part of one, as a Python float.

    Args:
        reward: what an arena returned.
        what: who gives it to whom, for the message.
        of: which part of the reward it is.
        hint: what else is expected.

    Raises:
        RewardError: it is None, or a number that is not finite or beyond ``MAX_REWARD``, which
            fails one play.
        ArenaError: it is no number, which ends the run.
    """
    found = number(reward)
    if abs(found) <= MAX_REWARD:
        return found
    counts = reward is None or isinstance(reward, Number) or not math.isnan(found)
    refusal = RewardError if counts else ArenaError
    raise refusal(f"{what} {shown(reward)}{of}; {reward_range}{hint}")
