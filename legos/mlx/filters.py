"""What bends next-token distributions before they are cut: penalties, bias, closed tokens.

Each function takes all D distributions of a step at once and touches only the rows that ask for it;
no row's result depends on another's. Written once over an array namespace.

D distributions, R rows of them that ask, V vocabulary.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from legos.data.message import Filters

__all__ = ["Recipe", "bent", "exponentials", "put", "take"]

PLAIN = Filters()


class Recipe(NamedTuple):
    """What one distribution is made of, beside the model's logits."""

    temperature: float = 1.0  # 0 puts everything on the most probable token
    allowed: tuple[int, ...] | NDArray[np.bool_] | None = None  # token ids, or [<= V] a mask
    filters: Filters | None = None
    counts: Mapping[int, int] | None = None  # tokens of prompt and completion -> in the completion


def bent(xp: Any, logits: Any, recipes: Sequence[Recipe]) -> Any:
    """Logits after penalties, bias, closed tokens and temperature, in this order.

    Args:
        xp: array namespace.
        logits: [D, V] float32; never written to.
        recipes: [D].

    Returns:
        [D, V]; minus infinity where a token is closed. Temperature 0 leaves a row as temperature 1
        does.
    """
    if any(recipe.filters is not None for recipe in recipes):
        logits = _biased(xp, _penalised(xp, logits, recipes), recipes)
    logits = _closed(xp, logits, recipes)
    if any(recipe.temperature not in (0.0, 1.0) for recipe in recipes):
        heat = np.array([recipe.temperature or 1.0 for recipe in recipes], np.float32)
        logits = logits / xp.array(heat)[:, None]
    return logits


def exponentials(xp: Any, values: Any, top: Any) -> Any:
    """[R, V] of the values below the largest of their row; as few new arrays as may be."""
    below = values - top
    return np.exp(below, out=below) if xp is np else xp.exp(below)


def take(xp: Any, array: Any, rows: Sequence[int]) -> Any:
    """Some rows, which are distinct and in ascending order; all of them cost nothing."""
    if len(rows) == array.shape[0]:
        return array
    return array[xp.array(np.array(rows))]


def put(xp: Any, array: Any, rows: Sequence[int], values: Any) -> Any:
    """The array with other values in some rows; the array itself stays as it is."""
    if len(rows) == array.shape[0]:
        return values
    array = xp.array(array)
    array[xp.array(np.array(rows))] = values
    return array


def _penalised(xp: Any, logits: Any, recipes: Sequence[Recipe]) -> Any:
    """Take penalties off the logits of tokens that were seen."""
    asking = [
        (row, recipe.filters or PLAIN, recipe.counts)
        for row, recipe in enumerate(recipes)
        if recipe.counts
    ]
    if not asking:
        return logits
    sizes = [len(counts) for _, _, counts in asking]

    def spread(values: Sequence[float], dtype: Any) -> NDArray[Any]:
        return np.repeat(np.array(values, dtype), sizes)

    rows = xp.array(spread([row for row, _, _ in asking], np.int32))
    seen = [np.fromiter(counts, np.int32, len(counts)) for _, _, counts in asking]
    times = [np.fromiter(counts.values(), np.float32, len(counts)) for _, _, counts in asking]
    ids, said = xp.array(np.concatenate(seen)), np.concatenate(times)
    factor = xp.array(spread([f.repetition_penalty for _, f, _ in asking], np.float32))
    presence = spread([f.presence_penalty for _, f, _ in asking], np.float32)
    frequency = spread([f.frequency_penalty for _, f, _ in asking], np.float32)
    old = logits[rows, ids]
    new = xp.where(old > 0, old / factor, old * factor)
    logits = xp.array(logits)
    logits[rows, ids] = new - xp.array(presence * (said > 0) + frequency * said)
    return logits


def _biased(xp: Any, logits: Any, recipes: Sequence[Recipe]) -> Any:
    """Add what a request adds to the logits of some tokens; of each token once."""
    found = [
        (row, token, bias)
        for row, recipe in enumerate(recipes)
        if recipe.filters is not None
        for token, bias in recipe.filters.logit_bias
    ]
    if not found:
        return logits
    rows, ids, biases = (np.array(column) for column in zip(*found, strict=True))
    places = xp.array(rows), xp.array(ids)
    added = logits[places] + xp.array(biases.astype(np.float32))
    logits = xp.array(logits)
    logits[places] = added
    return logits


def _closed(xp: Any, logits: Any, recipes: Sequence[Recipe]) -> Any:
    """Minus infinity for tokens that are not allowed."""
    rows = [row for row, recipe in enumerate(recipes) if recipe.allowed is not None]
    if not rows:
        return logits
    opened = np.zeros((len(rows), logits.shape[1]), np.bool_)
    places: list[int] = []
    tokens: list[int] = []
    for place, row in enumerate(rows):
        allowed = recipes[row].allowed
        if isinstance(allowed, tuple):
            places += [place] * len(allowed)
            tokens += allowed
        elif allowed is not None:
            opened[place, : len(allowed)] = allowed[: opened.shape[1]]
    opened[places, tokens] = True
    some = take(xp, logits, rows)
    return put(xp, logits, rows, xp.where(xp.array(opened), some, -np.inf))
