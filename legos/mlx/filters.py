"""What bends next-token distributions: penalties, bias, closed tokens, and the three cuts.

Each function takes all D distributions of a step at once and touches only the rows that ask for it;
no row's result depends on another's. Written once over an array namespace.

D distributions, R rows of them that ask, V vocabulary, K most probable tokens that are sorted.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from legos.data.message import Filters

__all__ = ["Recipe", "bent", "cut", "exponentials", "put", "take"]

SORTED_FIRST = 1024  # most probable tokens sorted before a whole vocabulary is
PLAIN = Filters()
NO_SHARE = 2.0  # a share that every distribution stays below


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


def cut(xp: Any, scaled: Any, weights: Any, recipes: Sequence[Recipe]) -> Any:
    """Weights with 0 for every token that top-k, then top-p, then min-p leave out.

    Equally probable tokens are kept by ascending id. The most probable one is always kept.

    Args:
        xp: array namespace.
        scaled: [D, V] logits from ``bent``.
        weights: [D, V] their exponentials, the largest of each row 1.
        recipes: [D].
    """
    asking = [
        (row, recipe.filters)
        for row, recipe in enumerate(recipes)
        if recipe.filters is not None and recipe.temperature
    ]
    sorting = [(row, filters) for row, filters in asking if _sorts(filters, scaled.shape[1])]
    result = weights
    if sorting:
        rows = [row for row, _ in sorting]
        some = take(xp, weights, rows)
        likely = _most_probable(xp, take(xp, scaled, rows), some, [f for _, f in sorting])
        result = put(xp, result, rows, xp.where(likely, some, 0.0))
    shares = [(row, filters.min_p) for row, filters in asking if filters.min_p > 0.0]
    if shares:
        rows = [row for row, _ in shares]
        some = take(xp, result, rows)
        least = xp.array(np.array([share for _, share in shares], np.float32))[:, None]
        result = put(xp, result, rows, xp.where(some >= least, some, 0.0))
    return result


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


def _sorts(filters: Filters, num_vocabulary: int) -> bool:
    return filters.top_p < 1.0 or 0 < filters.top_k < num_vocabulary


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


def _most_probable(xp: Any, scaled: Any, weights: Any, filters: Sequence[Filters]) -> Any:
    """[R, V] True for the tokens that top-k and then top-p keep.

    As few values as may do are sorted; where they hold too small a share, more are.
    """
    size = scaled.shape[1]
    ks = [f.top_k if 0 < f.top_k < size else size for f in filters]
    shares = [f.top_p if f.top_p < 1.0 else NO_SHARE for f in filters]
    limits = xp.array(np.array(ks, np.int32))[:, None]
    share = xp.array(np.array(shares, np.float32))[:, None]
    top = xp.max(scaled, axis=1, keepdims=True)
    whole = xp.sum(weights, axis=1, keepdims=True)
    first = max(k for k in (1, *ks) if k < size or k == 1)
    if any(k == size for k in ks):
        first = max(first, SORTED_FIRST)
    while True:
        first = min(first, size)
        values = _descending(xp, scaled, first)
        within = xp.arange(first)[None, :] < limits
        held = xp.where(within, xp.exp(values - top), 0.0)
        sums = xp.cumsum(held, axis=1)
        whole_k = xp.where(limits == size, whole, sums[:, -1:])
        number = xp.sum(within & (sums - held < share * whole_k), axis=1, keepdims=True)
        number = xp.maximum(number, 1)
        if first == size or not bool(((number == first) & (limits > first)).any()):
            break
        first *= 8
    last = xp.take_along_axis(values, number - 1, axis=1)
    reached = scaled >= last
    if not bool((xp.sum(reached, axis=1, keepdims=True) > number).any()):
        return reached
    room = number - xp.sum(values > last, axis=1, keepdims=True)
    equal = scaled == last
    return (scaled > last) | (equal & (xp.cumsum(equal.astype(xp.int32), axis=1) <= room))


def _descending(xp: Any, values: Any, count: int) -> Any:
    """[R, K] the largest values of each row, largest first."""
    size = values.shape[1]
    if count < size:
        values = xp.partition(values, size - count, axis=1)[:, size - count :]
    return xp.sort(values, axis=1)[:, ::-1]
