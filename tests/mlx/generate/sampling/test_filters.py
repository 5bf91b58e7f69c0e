"""Filters: penalties, bias, masks and cuts against a slow reference, and against mlx-lm's own."""

import math
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from made_distributions import logprobs_of
from mlx_lm.sample_utils import apply_min_p, apply_top_k, apply_top_p, make_repetition_penalty
from numpy.typing import NDArray

from legos.mlx.generate.sampling.cuts import cut
from legos.mlx.generate.sampling.draw import (
    SamplingParams,
    alternatives,
    distributions,
    draw,
    raw_table,
)
from legos.mlx.generate.sampling.filters import Seen
from legos.mlx.generate.sampling.tables import draw_from_table, table
from legos.records.message import Filters

NAMESPACES = pytest.mark.parametrize("xp", [np, mx], ids=["host", "device"])
VOCABULARY = 12
ONE = np.ones((1, 1), np.float32)


def reference(
    logits: NDArray[np.float32],
    params: SamplingParams,
    expect: Callable[[bool], object] = lambda _: None,
) -> NDArray[np.float64]:
    """[V] log-probabilities of one distribution, one token at a time, in float64.

    It is told with ``expect`` whether rounding may decide what is kept.
    """
    filters = params.filters or Filters()
    values = [float(value) for value in logits]
    seen = params.seen or Seen(())
    for token, times in zip(seen.ids.tolist(), seen.times.tolist(), strict=True):
        penalty = filters.repetition_penalty
        values[token] = values[token] / penalty if values[token] > 0 else values[token] * penalty
        values[token] -= filters.frequency_penalty * times
        values[token] -= filters.presence_penalty if times else 0.0
    for token, bias in filters.logit_bias:
        values[token] += bias
    if params.allowed is not None:
        legal = params.allowed
        ids = set(legal) if isinstance(legal, tuple) else set(np.flatnonzero(legal).tolist())
        values = [value if t in ids else -math.inf for t, value in enumerate(values)]
    order = sorted(range(len(values)), key=lambda token: (-values[token], token))
    if params.temperature == 0.0:
        kept = order[:1]
    else:
        values = [value / params.temperature for value in values]
        kept = order[: filters.top_k] if filters.top_k else order
        weights = [math.exp(values[token] - values[order[0]]) for token in kept]
        held, number = 0.0, 0
        while number < len(kept) and (number == 0 or held < filters.top_p * sum(weights)):
            held += weights[number]
            number += 1
        number = len(kept) if filters.top_p == 1.0 else number
        near = abs(held - filters.top_p * sum(weights)) < 1e-5
        near |= abs(held - weights[number - 1] - filters.top_p * sum(weights)) < 1e-5
        expect(filters.top_p == 1.0 or not near)
        near = [abs(weight - filters.min_p) < 1e-5 for weight in weights]
        expect(not any(near) or not 0.0 < filters.min_p < 1.0)
        pairs = zip(kept[:number], weights[:number], strict=True)
        kept = [token for token, weight in pairs if weight >= filters.min_p]
    total = math.fsum(math.exp(values[token] - values[order[0]]) for token in kept)
    result = np.full(len(values), -math.inf)
    for token in kept:
        result[token] = values[token] - values[order[0]] - math.log(total)
    return result


tokens_ = st.integers(0, VOCABULARY - 1)
filters_ = st.builds(
    Filters,
    repetition_penalty=st.sampled_from([1.0, 0.7, 1.3]),
    presence_penalty=st.sampled_from([0.0, 0.4, -0.5]),
    frequency_penalty=st.sampled_from([0.0, 0.3]),
    logit_bias=st.lists(
        st.tuples(tokens_, st.integers(-576, 576).map(lambda n: n / 64)),
        max_size=3,
        unique_by=lambda p: p[0],
    ).map(tuple),
    top_k=st.sampled_from([0, 1, 3, VOCABULARY - 1, VOCABULARY, 50]),
    top_p=st.sampled_from([1.0, 0.3, 0.7, 0.95, 1e-6]),
    min_p=st.sampled_from([0.0, 0.05, 0.5, 1.0]),
)
# Quarters, so that many logits are equal.
rows_ = st.lists(st.integers(-16, 16), min_size=VOCABULARY, max_size=VOCABULARY).map(
    lambda row: np.array(row, np.float32) / 4
)


@st.composite
def recipes_(draw: Any) -> SamplingParams:
    filters = draw(st.none() | filters_)
    prompt, completion = draw(st.lists(tokens_, max_size=5)), draw(st.lists(tokens_, max_size=5))
    seen = Seen(prompt, completion) if filters else None
    allowed = draw(st.none() | st.sets(tokens_, min_size=1).map(lambda ids: tuple(sorted(ids))))
    if allowed is not None and draw(st.booleans()):
        allowed = np.isin(np.arange(VOCABULARY), allowed)
    return SamplingParams(draw(st.sampled_from([1.0, 0.0, 0.5, 1.7])), allowed, filters, seen)


def made(
    xp: Any, logits: NDArray[np.float32], parameters: list[SamplingParams]
) -> NDArray[np.float32]:
    rows = mx.array(logits) if xp is mx else logits
    return np.array(logprobs_of(xp, distributions(xp, rows, parameters)))


@NAMESPACES
@given(batch=st.lists(st.tuples(rows_, recipes_()), min_size=1, max_size=4))
def test_a_batch_is_what_the_reference_makes_of_each_row(
    xp: Any, batch: list[tuple[NDArray[np.float32], SamplingParams]]
) -> None:
    expected = [reference(row, params, assume) for row, params in batch]
    logits = np.stack([row for row, _ in batch])
    before = logits.copy()
    found = made(xp, logits, [params for _, params in batch])
    assert (logits == before).all()
    for row, right in zip(found, expected, strict=True):
        assert (np.isfinite(row) == np.isfinite(right)).all()
        possible = np.isfinite(right)
        assert row[possible] == pytest.approx(right[possible], abs=2e-5)


@NAMESPACES
@given(batch=st.lists(st.tuples(rows_, recipes_()), min_size=2, max_size=5))
def test_a_row_is_the_same_whoever_is_beside_it(
    xp: Any, batch: list[tuple[NDArray[np.float32], SamplingParams]]
) -> None:
    logits, parameters = (
        np.stack([row for row, _ in batch]),
        [params for _, params in batch],
    )
    together = made(xp, logits, parameters)
    for row, params, found in zip(logits, parameters, together, strict=True):
        assert (made(xp, row[None], [params])[0] == found).all()


def wide(seed: int, rows: int = 4, vocabulary: int = 5000, spread: float = 3.0) -> Any:
    rng = np.random.default_rng(seed)
    return (spread * rng.standard_normal((rows, vocabulary))).astype(np.float32)


@NAMESPACES
@pytest.mark.parametrize("spread", [3.0, 0.1], ids=["few hold most", "many hold most"])
def test_large_vocabularies_are_cut_as_the_reference_cuts(xp: Any, spread: float) -> None:
    """Whether a small part of the vocabulary holds the share, or almost all of it."""
    logits = wide(1, rows=6, spread=spread)
    parameters = [
        SamplingParams(1.0, None, Filters(top_p=0.9)),
        SamplingParams(0.7, None, Filters(top_k=40)),
        SamplingParams(),
        SamplingParams(1.0, None, Filters(top_k=2000, top_p=0.99)),
        SamplingParams(0.0, None, Filters(top_p=0.5)),
        SamplingParams(1.3, None, Filters(min_p=0.02, top_p=0.999)),
    ]
    found = made(xp, logits, parameters)
    for row, params, values in zip(logits, parameters, found, strict=True):
        right = reference(row, params)
        assert (np.isfinite(values) == np.isfinite(right)).all()
        assert values[np.isfinite(right)] == pytest.approx(right[np.isfinite(right)], abs=3e-5)
    number = np.isfinite(found[0]).sum()
    assert number > 4000 if spread < 1.0 else number < 1000


def sorted_cut(values: Any, weights: Any, filters: Filters) -> NDArray[np.float32]:
    """The weights that are left, by the definition: all tokens are sorted."""
    size = len(values)
    order = np.lexsort((np.arange(size), -values))
    number = filters.top_k if 0 < filters.top_k < size else size
    sums = np.cumsum(weights[order][:number], dtype=np.float64)
    if filters.top_p < 1.0:
        number = int(np.searchsorted(sums, filters.top_p * sums[-1])) + 1
    left = np.zeros_like(weights)
    left[order[:number]] = weights[order[:number]]
    left[left < filters.min_p] = 0.0
    return left


def misleading(size: int) -> dict[str, NDArray[np.float32]]:
    """Rows of unlike shapes, also with many equal tokens."""
    rng = np.random.default_rng(size)
    normal = rng.standard_normal(size).astype(np.float32)
    one = np.zeros(size, np.float32)
    one[7] = 30.0
    return {
        "one holds all": one,
        "sorted": np.sort(normal),
        "many equal": (np.round(2 * normal) / 2).astype(np.float32),
        "all equal": np.zeros(size, np.float32),
        "most closed": np.where(rng.random(size) < 0.9, -np.inf, normal).astype(np.float32),
        "steep": 100 * normal,
    }


@pytest.mark.parametrize("name", misleading(5000))
@pytest.mark.parametrize("size", [2049, 40_000])
@pytest.mark.parametrize(
    "filters",
    [
        *(Filters(top_p=share) for share in (0.999999, 0.99, 0.9, 0.5, 0.01)),
        *(Filters(top_k=count) for count in (1, 30, 900, 2000)),
        Filters(top_k=300, top_p=0.8),
        Filters(top_p=0.9, min_p=0.3),
    ],
    ids=repr,
)
def test_the_edge_is_where_sorting_finds_it(name: str, size: int, filters: Filters) -> None:
    """Bit for bit."""
    values = misleading(size)[name]
    weights = np.exp(values - values.max())
    expected = sorted_cut(values, weights, filters)
    # A device sums the shares of top-p in float32.
    for xp in (np, mx) if filters.top_p == 1.0 else (np,):
        found = cut(xp, xp.array(values[None]), ONE, [SamplingParams(1.0, None, filters)])
        assert (np.exp(np.array(found)[0] - values.max()) == expected).all()


def test_a_device_keeps_what_the_host_keeps_where_the_vocabulary_is_large() -> None:
    """A sum in float32 along the row would lose most of its small terms."""
    logits = 3 * np.random.default_rng(0).normal(size=(4, 60_000)).astype(np.float32)
    cuts = [SamplingParams(1.0, None, Filters(top_p=share)) for share in (0.95, 0.9, 0.8, 0.5)]
    host, device = (support(distributions(xp, xp.array(logits), cuts).logits) for xp in (np, mx))
    assert (host == device).all()


def support(values: Any) -> NDArray[np.bool_]:
    return np.isfinite(np.array(values))


@NAMESPACES
@pytest.mark.parametrize("seed", range(4))
def test_cuts_agree_with_those_of_mlx_lm(xp: Any, seed: int) -> None:
    logits = wide(seed)
    theirs = mx.array(logits) - mx.logsumexp(mx.array(logits), axis=-1, keepdims=True)
    for filters, right in (
        (Filters(top_p=0.8), apply_top_p(theirs, 0.8)),
        (Filters(min_p=0.05), apply_min_p(theirs, 0.05)),
        (Filters(top_k=17), apply_top_k(theirs, 17)),
    ):
        found = made(xp, logits, [SamplingParams(1.0, None, filters)] * 4)
        assert (support(found) == support(right)).all()
        whole = np.array(mx.logsumexp(right, axis=-1, keepdims=True))
        same = np.array(right) - whole
        assert found[support(found)] == pytest.approx(same[support(found)], abs=1e-4)


@NAMESPACES
def test_the_repetition_penalty_is_that_of_mlx_lm(xp: Any) -> None:
    logits = wide(5, rows=1)
    seen = [3, 9, 9, 4000]
    theirs = make_repetition_penalty(1.4)(mx.array(seen), mx.array(logits))
    right = theirs - mx.logsumexp(theirs, axis=-1, keepdims=True)
    params = SamplingParams(1.0, None, Filters(repetition_penalty=1.4), Seen(seen))
    assert made(xp, logits, [params])[0] == pytest.approx(np.array(right)[0], abs=1e-4)


def test_what_was_seen_grows_with_the_completion() -> None:
    prompt = [3, 9, 9, 4000]
    seen = Seen(prompt, [9])
    said = [9, *(n * n % 61 for n in range(300))]
    for token in said[1:]:
        seen.add(token)
    assert set(seen.ids.tolist()) == set(prompt) | set(said)
    assert len(seen) == len(set(seen.ids.tolist()))
    times = dict(zip(seen.ids.tolist(), seen.times.tolist(), strict=True))
    assert times == {token: said.count(token) for token in times}


@NAMESPACES
def test_equally_probable_tokens_are_kept_by_id(xp: Any) -> None:
    logits = np.array([[1.0, 2.0, 1.0, 1.0, 0.0, 1.0]], np.float32)
    found = made(xp, logits, [SamplingParams(1.0, None, Filters(top_k=3))])
    assert np.flatnonzero(support(found[0])).tolist() == [0, 1, 2]


@pytest.mark.parametrize("vocabulary", [2048, 5000])
def test_rows_without_cuts_are_not_sorted(vocabulary: int, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    for name in ("partition", "sort"):
        original = getattr(np, name)

        def counting(values: Any, *rest: Any, original: Any = original, **options: Any) -> Any:
            sizes.append(values.size)
            return original(values, *rest, **options)

        monkeypatch.setattr(np, name, counting)
    cheap = [
        SamplingParams(),
        SamplingParams(0.5),
        SamplingParams(0.0),
        SamplingParams(1.0, None, Filters(min_p=0.1)),
    ]
    logits = wide(0, vocabulary=vocabulary)
    distributions(np, logits, cheap)
    assert sizes == []
    distributions(np, logits, [*cheap[:3], SamplingParams(1.0, None, Filters(top_k=5))])
    assert max(sizes) == vocabulary


@NAMESPACES
@pytest.mark.parametrize("vocabulary", [12, 5000])
def test_alternatives_are_the_most_probable_tokens(xp: Any, vocabulary: int) -> None:
    """Ties at the edge of what is asked for go to the smaller id."""
    rng = np.random.default_rng(0)
    logits = (rng.integers(-4, 4, size=(5, vocabulary)) / 2).astype(np.float32)
    parameters = [
        SamplingParams(1.0, (3, 7)),
        SamplingParams(0.0),
        SamplingParams(),
        SamplingParams(0.5),
        SamplingParams(),
    ]
    logprobs = logprobs_of(xp, distributions(xp, xp.array(logits), parameters))
    whole = np.array(logprobs)
    for row, found in enumerate(alternatives(whole, 9)):
        order = sorted(range(vocabulary), key=lambda t, row=row: (-whole[row, t], t))[:9]
        right = [(t, float(whole[row, t])) for t in order if whole[row, t] > -math.inf]
        assert list(found) == right
    assert len(alternatives(whole, 9)[0]) == 2
    assert alternatives(whole, 9)[1] == ((int(logits[1].argmax()), 0.0),)


@NAMESPACES
def test_raw_log_probabilities_are_the_models_own(xp: Any) -> None:
    logits = wide(3)
    found = np.array(raw_table(xp, xp.array(logits), [0, 2]))
    exact = logits.astype(np.float64)
    right = exact - np.log(np.exp(exact).sum(axis=1, keepdims=True))
    assert found == pytest.approx(right[[0, 2]], abs=1e-5)


@pytest.mark.slow
def test_draws_come_from_the_cut_distribution() -> None:
    logits = np.log(np.array([[0.4, 0.05, 0.3, 0.05, 0.2]], np.float32))
    params = SamplingParams(1.0, None, Filters(top_p=0.85, logit_bias=((4, math.log(2.0)),)))
    share = np.array([0.4, 0.0, 0.3, 0.0, 0.4]) / 1.1
    count = 30_000
    places = {
        "which": np.zeros(count, np.intp),
        "seeds": list(range(count)),
        "positions": [3] * count,
    }
    host = distributions(np, logits, [params])
    device = distributions(mx, mx.array(logits), [params])
    for tokens, logprobs in (
        draw_from_table(table(host), **places),
        draw(np, host, **places),
        draw(mx, device, **places),
    ):
        seen = np.bincount(tokens, minlength=5)
        assert seen[1] == seen[3] == 0
        there = share > 0
        mean = count * share[there]
        assert ((seen[there] - mean) ** 2 / mean).sum() < 13.82  # 0.999 quantile, two degrees
        assert np.exp(logprobs) == pytest.approx(share[tokens], rel=1e-5)
