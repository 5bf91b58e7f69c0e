"""What bends next-token distributions before they are cut: penalties, bias, closed tokens.

Each function takes all D distributions of a step at once and touches only the rows that ask for it;
no row's result depends on another's. Written once over an array namespace.

D distributions, R rows of them that ask, V vocabulary.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from legos.data.message import Filters

__all__ = ["Recipe", "Seen", "bent", "exponentials", "put", "take"]

PLAIN = Filters()


class Seen:
    """The tokens that a request holds already, each once, S of them."""

    def __init__(self, prompt: Sequence[int], completion: Sequence[int] = ()) -> None:
        self._places = {token: place for place, token in enumerate(dict.fromkeys(prompt))}
        size = len(self._places)
        self._ids = np.zeros(2 * size + 16, np.int32)
        self._times = np.zeros(2 * size + 16, np.float32)
        self._ids[:size] = list(self._places)
        for token in completion:
            self.add(token)

    def __len__(self) -> int:
        return len(self._places)

    @property
    def ids(self) -> NDArray[np.int32]:
        """[S] token ids."""
        return self._ids[: len(self)]

    @property
    def times(self) -> NDArray[np.float32]:
        """[S] how often the completion holds each."""
        return self._times[: len(self)]

    def add(self, token: int) -> None:
        """The completion goes on."""
        place = self._places.setdefault(token, len(self._places))
        if place == len(self._ids):
            self._ids = np.concatenate([self._ids, np.zeros_like(self._ids)])
            self._times = np.concatenate([self._times, np.zeros_like(self._times)])
        self._ids[place] = token
        self._times[place] += 1


class Recipe(NamedTuple):
    """What one distribution is made of, beside the model's logits."""

    temperature: float = 1.0  # 0 puts everything on the most probable token
    allowed: tuple[int, ...] | NDArray[np.bool_] | None = None  # token ids, or [<= V] a mask
    filters: Filters | None = None
    seen: Seen | None = None  # what penalties are for


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
    given = logits
    if any(recipe.seen or (recipe.filters and recipe.filters.logit_bias) for recipe in recipes):
        logits = xp.array(logits)
        _penalise(xp, logits, recipes)
        _bias(xp, logits, recipes)
    logits = _closed(xp, logits, recipes)
    if any(recipe.temperature not in (0.0, 1.0) for recipe in recipes):
        heat = np.array([recipe.temperature or 1.0 for recipe in recipes], np.float32)[:, None]
        if xp is np and logits is not given:
            return np.divide(logits, heat, out=logits)
        logits = logits / xp.array(heat)
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


def _penalise(xp: Any, logits: Any, recipes: Sequence[Recipe]) -> None:
    """Take penalties off the logits of tokens that were seen, in place."""
    asking = [
        (row, recipe.filters or PLAIN, recipe.seen)
        for row, recipe in enumerate(recipes)
        if recipe.seen
    ]
    taken = [
        np.float32(f.presence_penalty) * (seen.times > 0)
        + np.float32(f.frequency_penalty) * seen.times
        for _, f, seen in asking
    ]
    if xp is np:
        for (row, filters, seen), less in zip(asking, taken, strict=True):
            values = logits[row]
            values[seen.ids] = _less(np, values[seen.ids], filters.repetition_penalty, less)
    elif asking:
        sizes = [len(seen) for _, _, seen in asking]
        factors = [f.repetition_penalty for _, f, _ in asking]
        rows = xp.array(np.repeat([row for row, _, _ in asking], sizes))
        ids = xp.array(np.concatenate([seen.ids for _, _, seen in asking]))
        factor = xp.array(np.repeat(np.array(factors, np.float32), sizes))
        logits[rows, ids] = _less(xp, logits[rows, ids], factor, xp.array(np.concatenate(taken)))


def _less(xp: Any, old: Any, factor: Any, taken: Any) -> Any:
    return xp.where(old > 0, old / factor, old * factor) - taken


def _bias(xp: Any, logits: Any, recipes: Sequence[Recipe]) -> None:
    """Add what a request adds to the logits of some tokens, of each token once, in place."""
    found = [
        (row, token, bias)
        for row, recipe in enumerate(recipes)
        if recipe.filters is not None
        for token, bias in recipe.filters.logit_bias
    ]
    if found:
        rows, ids, biases = (np.array(column) for column in zip(*found, strict=True))
        places = xp.array(rows), xp.array(ids)
        logits[places] = logits[places] + xp.array(biases.astype(np.float32))


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
