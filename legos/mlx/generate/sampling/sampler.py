"""The sampler: one draw for each sequence of each row; equal distributions are made once.

Where few tokens can be drawn, because the vocabulary is small or a request has choices, it caches
distributions of last tokens, under the epoch of the weights, so that a repeated prompt is not
computed again.

``draw`` starts the draws, and ``read`` waits for them. On a device the tokens are lazy between the
two, so that a next step can be built from them.

A sequence whose grammar fails, or whose row has NaN logits, fails alone: its ``failure`` is set,
its token is -1, and its ``add`` raises the failure.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from legos.errors import LegosError, RequestError
from legos.mlx.generate.sampling.draw import (
    HOST_VOCABULARY,
    SamplingParams,
    alternatives,
    distributions,
    draw,
    namespace,
    raw_table,
)
from legos.mlx.generate.sampling.filters import take
from legos.mlx.generate.sampling.tables import (
    CumulativeTable,
    KnownRows,
    allows_few,
    draw_from_table,
    table,
    table_of_few,
)
from legos.mlx.generate.sequences import UNPROCESSED, SequenceState

NOT_NUMBERS = "the model's logits are not numbers; its weights or adapter are bad"
RowKey = tuple[int, tuple[int, ...]]
"""The epoch of the weights, and the tokens so far."""
Row = tuple[RowKey | None, list[SequenceState], int]
"""What a row is, the sequences that share it, and the index of its logits.

None where it is not to be remembered: a row that goes on may have been begun under other weights,
and has their keys and values in its cache then.
"""
Drawn = tuple[list[int], list[float]]
"""Token ids and their log-probabilities, sequences of the first row first.

Where a sequence failed they are -1 and NaN, and ``SequenceState.add`` raises the reason.
"""
Key = tuple[Any, tuple[Any, ...]]
"""A row (its tokens, or the index of its logits) and a setting of its sequences."""


class Draws(NamedTuple):
    """One draw for each of N sequences, from D distributions; on a device still lazy."""

    sequences: list[SequenceState]  # [N]
    which: NDArray[np.intp]  # [N] distribution of each sequence
    tokens: Any  # [N] token ids; on the host where an array of NumPy
    logprobs: Any  # [N] nats
    failures: dict[int, LegosError]  # errors of the distributions that could not be made
    logits: Any = None  # [D, V]; None where only the draws are recorded

    def keep(self, numbers: Sequence[int]) -> "Draws":
        """The draws of some sequences, where each has its own distribution; still lazy."""
        index = mx.array(list(numbers))
        kept = self._replace(
            sequences=[self.sequences[number] for number in numbers],
            which=np.arange(len(numbers)),
            tokens=self.tokens[index],
            logprobs=self.logprobs[index],
        )
        mx.async_eval(kept.tokens, kept.logprobs)
        return kept


class Sampler:
    """Samples next tokens.

    Attributes:
        draws: number of tokens sampled so far.
        known: cached distributions of last tokens.
        on_device: whether the device samples, so that draws stay lazy until they are read.
    """

    def __init__(self, num_vocabulary: int, *, xp: Any = None) -> None:
        """Make a sampler for a vocabulary size; ``xp`` overrides the fastest array namespace."""
        self._xp = xp or namespace(num_vocabulary)
        self.on_device: bool = self._xp is mx
        self._tabled = self._xp is np and num_vocabulary <= HOST_VOCABULARY
        self.known = KnownRows()
        self.draws = 0

    def knows(self, tokens: RowKey, sequences: Sequence[SequenceState]) -> bool:
        """Whether all sequences of a row can be sampled from cached distributions."""
        known, last = self.known, None
        if not len(known):
            return False
        for sequence in sequences:
            if sequence.setting != last:
                last = sequence.setting
                if not self._may_be_known(sequence) or (tokens, last) not in known:
                    return False
            if sequence.request.raw_logprobs or sequence.request.num_alternatives:
                return False
        return True

    def _may_be_known(self, sequence: SequenceState) -> bool:
        """Whether distributions of such a sequence are cached: a bias would make keys large."""
        request = sequence.request
        plain = request.filters is None or not request.filters.logit_bias
        return plain and request.grammar is None and (self._tabled or sequence.allowed is not None)

    def draw_known(self, rows: Sequence[Row]) -> Drawn:
        """One token for each sequence of rows for which ``knows`` is True."""
        places = _places(rows, [tokens for tokens, _, _ in rows])
        made = self.known.table(list(places.firsts))
        tokens, logprobs = draw_from_table(made, **places.draws())
        return self.read(Draws(places.sequences, places.which, tokens, logprobs, {}))

    def draw(self, rows: Sequence[Row], logits: mx.array, *, unread: int = 0) -> Draws:
        """Start to sample one token for each sequence.

        Args:
            rows: at least one row; their indices point into ``logits``.
            logits: [B, V] of any float type.
            unread: number of tokens of each sequence that were sampled and are not read yet.
        """
        places = _places(rows, [index for _, _, index in rows])
        parameters, failures = _parameters_of([sequence for _, sequence in places.firsts.values()])
        values = np.asarray(logits.astype(mx.float32)) if self._xp is np else logits
        indices = [index for index, _ in places.firsts]
        same = indices == list(range(values.shape[0]))
        some = values if same else values[self._xp.array(np.array(indices))]
        tokens, logprobs = self._drawn(some, parameters, places, unread)
        draws = Draws(places.sequences, places.which, tokens, logprobs, failures)
        if any(sequence.needs_host for sequence in places.sequences):
            draws = draws._replace(logits=some)
        return draws

    def read(self, draws: Draws) -> Drawn:
        """Wait for draws; record what the sequences request, and mark those that failed."""
        if not isinstance(draws.logprobs, np.ndarray):
            mx.eval(draws.tokens, draws.logprobs)  # one wait for the device instead of two
        drawn = draws.tokens.tolist(), draws.logprobs.tolist()
        self._record_raw(draws, drawn)
        self._record_alternatives(draws)
        return self._finish(draws, drawn)

    def _drawn(
        self, logits: Any, parameters: Sequence[SamplingParams], places: "_Places", unread: int
    ) -> tuple[Any, Any]:
        """[N] token ids and log-probabilities, of [D, V] logits.

        On a device they are lazy where no distribution allows few tokens.
        """
        few = np.array([not self._tabled and allows_few(params) for params in parameters])
        if few.all() or not few.any():
            draw_part = self._drawn_of_few if few.any() else self._drawn_of_all
            return draw_part(logits, parameters, places, unread)
        found: list[tuple[NDArray[np.intp], tuple[Any, Any]]] = []
        for chosen, draw_part in ((~few, self._drawn_of_all), (few, self._drawn_of_few)):
            rows = np.flatnonzero(chosen).tolist()
            part, draws = places.part(chosen)
            some = take(self._xp, logits, rows), [parameters[row] for row in rows]
            found.append((draws, draw_part(*some, part, unread)))
        count = len(places.sequences)
        tokens, logprobs = np.zeros(count, np.int64), np.zeros(count, np.float32)
        for draws, drawn in found:  # waits for the device, which has all of its work now
            tokens[draws], logprobs[draws] = map(np.array, drawn)
        return tokens, logprobs

    def _drawn_of_few(
        self, logits: Any, parameters: Sequence[SamplingParams], places: "_Places", unread: int
    ) -> tuple[Any, Any]:
        return self._drawn_from(table_of_few(self._xp, logits, parameters), places, unread)

    def _drawn_of_all(
        self, logits: Any, parameters: Sequence[SamplingParams], places: "_Places", unread: int
    ) -> tuple[Any, Any]:
        made = distributions(self._xp, logits, parameters)
        if self._tabled:
            return self._drawn_from(table(made), places, unread)
        tokens, logprobs = draw(self._xp, made, **places.draws(unread))
        if self.on_device:
            mx.async_eval(tokens, logprobs)
        return tokens, logprobs

    def _drawn_from(self, made: CumulativeTable, places: "_Places", unread: int) -> tuple[Any, Any]:
        self._remember(places, made)
        return draw_from_table(made, **places.draws(unread))

    def _remember(self, places: "_Places", made: CumulativeTable) -> None:
        sound = ~np.isnan(made.logprobs.max(axis=1))
        for number, ((_, setting), (row, sequence)) in enumerate(places.firsts.items()):
            if row is None or not sound[number]:
                continue
            if sequence.last_draw and self._may_be_known(sequence):
                few = len(sequence.allowed or ())
                size = made.steps.shape[1] if made.ids is None else few
                self.known.add((row, setting), made.row(number, size), len(row[1]) + few)

    def _record_raw(self, draws: Draws, drawn: Drawn) -> None:
        """Record the model's own log-probabilities for the sequences that request them."""
        asking = [n for n, m in enumerate(draws.sequences) if m.request.raw_logprobs]
        found = {n: drawn[1][n] for n in asking if draws.sequences[n].setting == UNPROCESSED}
        others = [number for number in asking if number not in found]
        if others:
            rows, place = np.unique(draws.which[others], return_inverse=True)
            chosen = self._xp.array([drawn[0][number] for number in others])
            raw = raw_table(self._xp, draws.logits, rows.tolist())
            found |= zip(others, raw[self._xp.array(place), chosen].tolist(), strict=True)
        for number in asking:
            draws.sequences[number].raw_logprobs.append(found[number])

    def _record_alternatives(self, draws: Draws) -> None:
        """Record the most probable tokens for the sequences that request alternatives."""
        asking = [n for n, one in enumerate(draws.sequences) if one.request.num_alternatives]
        if not asking:
            return
        count = max(draws.sequences[number].request.num_alternatives for number in asking)
        rows, place = np.unique(draws.which[asking], return_inverse=True)
        logprobs = raw_table(self._xp, draws.logits, rows.tolist())
        found = alternatives(np.asarray(logprobs), count)
        for number, row in zip(asking, place, strict=True):
            sequence = draws.sequences[number]
            sequence.alternatives.append(found[row][: sequence.request.num_alternatives])

    def _finish(self, draws: Draws, drawn: Drawn) -> Drawn:
        """Count the draws, and mark the sequences that failed."""
        tokens, logprobs = drawn
        self.draws += len(tokens)
        if draws.failures or not all(map(math.isfinite, logprobs)):
            for number, (sequence, which) in enumerate(
                zip(draws.sequences, draws.which.tolist(), strict=True)
            ):
                failure = draws.failures.get(which)
                if failure is None and not math.isfinite(logprobs[number]):
                    failure = RequestError(NOT_NUMBERS)
                if failure is not None:
                    sequence.failure = failure
                    tokens[number], logprobs[number] = -1, math.nan
                    self.draws -= 1
        return tokens, logprobs


class _Places(NamedTuple):
    """The sequences to sample and their distributions; N sequences, D distributions."""

    sequences: list[SequenceState]  # [N]
    which: NDArray[np.intp]  # [N] distribution of each sequence
    firsts: dict[
        Key, tuple[RowKey | None, SequenceState]
    ]  # [D] the row and the first sequence of each

    def draws(self, unread: int = 0) -> dict[str, Any]:
        """The keyword arguments of ``draw``, after so many tokens that are not read yet."""
        return {
            "which": self.which,
            "seeds": [sequence.request.seed for sequence in self.sequences],
            "positions": [len(sequence.tokens) + unread for sequence in self.sequences],
        }

    def part(self, chosen: NDArray[np.bool_]) -> tuple["_Places", NDArray[np.intp]]:
        """The places of some distributions, and the numbers of the draws from them.

        Args:
            chosen: [D] which distributions.
        """
        draws = np.flatnonzero(chosen[self.which])
        pairs = zip(self.firsts.items(), chosen, strict=True)
        part = _Places(
            [self.sequences[number] for number in draws],
            (np.cumsum(chosen) - 1)[self.which[draws]],
            {key: first for (key, first), is_chosen in pairs if is_chosen},
        )
        return part, draws


def _places(rows: Sequence[Row], names: Sequence[Any]) -> _Places:
    """Find the distinct distributions: one for each pair of row name and setting."""
    numbers: dict[Key, int] = {}
    firsts: dict[Key, tuple[RowKey | None, SequenceState]] = {}
    which: list[int] = []
    number = -1
    for (tokens, sequences, _), name in zip(rows, names, strict=True):
        last = None
        for sequence in sequences:
            setting = sequence.setting
            if setting != last:
                last = setting
                key = (name, setting)
                number = numbers.setdefault(key, len(numbers))
                if number == len(firsts):
                    firsts[key] = (tokens, sequence)
            which.append(number)
    sequences = [sequence for _, sharing, _ in rows for sequence in sharing]
    return _Places(sequences, np.array(which), firsts)


def _parameters_of(
    sequences: Sequence[SequenceState],
) -> tuple[list[SamplingParams], dict[int, LegosError]]:
    """The settings of each distribution, and the errors of those that cannot be made."""
    parameters: list[SamplingParams] = []
    failures: dict[int, LegosError] = {}
    for number, sequence in enumerate(sequences):
        try:
            parameters.append(sequence.params())
        except LegosError as error:
            failures[number] = error
            parameters.append(SamplingParams())
    return parameters, failures
