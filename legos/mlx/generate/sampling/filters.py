"""Changes of the logits before truncation: penalties, logit bias and masks.

Each function takes all D distributions of a step and changes only the rows that need it; no row's
result depends on another row. All are written over an array namespace.

D distributions, R of their rows, V vocabulary.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from legos.records.message import Filters

PLAIN = Filters()


class Seen:
    """The S distinct tokens of a request's prompt and completion so far."""

    def __init__(self, prompt: Sequence[int], completion: Sequence[int] = ()) -> None:
        self._times = dict.fromkeys(prompt, 0)
        for token in completion:
            self.add(token)

    def __len__(self) -> int:
        return len(self._times)

    @property
    def ids(self) -> NDArray[np.int32]:
        """[S] token ids."""
        return np.fromiter(self._times, np.int32, len(self))

    @property
    def times(self) -> NDArray[np.float32]:
        """[S] how often each occurs in the completion."""
        return np.fromiter(self._times.values(), np.float32, len(self))

    def add(self, token: int) -> None:
        """Count one more token of the completion."""
        self._times[token] = self._times.get(token, 0) + 1


class SamplingParams(NamedTuple):
    """The sampling settings of one distribution."""

    temperature: float = 1.0  # 0 gives the most probable token probability 1
    allowed: tuple[int, ...] | NDArray[np.bool_] | None = None  # token ids, or mask [<= V]
    filters: Filters | None = None
    seen: Seen | None = None  # the tokens that penalties apply to


def processed(xp: Any, logits: Any, parameters: Sequence[SamplingParams]) -> Any:
    """Apply penalties, logit bias and masks, in this order.

    Args:
        xp: array namespace.
        logits: [D, V]; never changed in place.
        parameters: [D] sampling settings.

    Returns:
        [D, V] logits; minus infinity where a token is masked.
    """
    if any(params.seen or (params.filters and params.filters.logit_bias) for params in parameters):
        logits = xp.array(logits, xp.float32)
        _penalise(xp, logits, parameters)
        _bias(xp, logits, parameters)
    return _closed(xp, logits, parameters)


def take(xp: Any, array: Any, rows: Sequence[int]) -> Any:
    """Select distinct rows in ascending order; to select all rows costs nothing."""
    if len(rows) == array.shape[0]:
        return array
    return array[xp.array(np.array(rows))]


def put(xp: Any, array: Any, rows: Sequence[int], values: Any) -> Any:
    """A copy of the array with other values in some rows."""
    if len(rows) == array.shape[0]:
        return values
    array = xp.array(array)
    array[xp.array(np.array(rows))] = values
    return array


def _penalise(xp: Any, logits: Any, parameters: Sequence[SamplingParams]) -> None:
    """Apply the penalties to the logits of seen tokens, in place."""
    asking = [
        (row, params.filters or PLAIN, params.seen)
        for row, params in enumerate(parameters)
        if params.seen
    ]
    taken = [
        np.float32(f.presence_penalty) * (seen.times > 0)
        + np.float32(f.frequency_penalty) * seen.times
        for _, f, seen in asking
    ]
    if asking:
        sizes = [len(seen) for _, _, seen in asking]
        factors = [f.repetition_penalty for _, f, _ in asking]
        rows = xp.array(np.repeat([row for row, _, _ in asking], sizes))
        ids = xp.array(np.concatenate([seen.ids for _, _, seen in asking]))
        factor = xp.array(np.repeat(np.array(factors, np.float32), sizes))
        old = logits[rows, ids]
        less = xp.array(np.concatenate(taken))
        logits[rows, ids] = xp.where(old > 0, old / factor, old * factor) - less


def _bias(xp: Any, logits: Any, parameters: Sequence[SamplingParams]) -> None:
    """Add each request's logit bias, in place; a request names each token once."""
    found = [
        (row, token, bias)
        for row, params in enumerate(parameters)
        if params.filters is not None
        for token, bias in params.filters.logit_bias
    ]
    if found:
        rows, ids, biases = (np.array(column) for column in zip(*found, strict=True))
        places = xp.array(rows), xp.array(ids)
        logits[places] = logits[places] + xp.array(biases.astype(np.float32))


def _closed(xp: Any, logits: Any, parameters: Sequence[SamplingParams]) -> Any:
    """Set the logits of tokens that are not allowed to minus infinity."""
    rows = [row for row, params in enumerate(parameters) if params.allowed is not None]
    if not rows:
        return logits
    opened = np.zeros((len(rows), logits.shape[1]), np.bool_)
    places: list[int] = []
    tokens: list[int] = []
    for place, row in enumerate(rows):
        allowed = parameters[row].allowed
        if isinstance(allowed, tuple):
            places += [place] * len(allowed)
            tokens += allowed
        elif allowed is not None:
            opened[place, : len(allowed)] = allowed[: opened.shape[1]]
    opened[places, tokens] = True
    some = take(xp, logits, rows)
    return put(xp, logits, rows, xp.where(xp.array(opened), some, -np.inf))
