"""Drawing: the distribution that is made is the one that is drawn from, in every namespace."""

import math
from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from made_distributions import logprobs_of

from legos.losses.positions import IMPOSSIBLE
from legos.mlx.generate.sampling.draw import (
    HOST_VOCABULARY,
    SamplingParams,
    distributions,
    draw,
    namespace,
)
from legos.mlx.generate.sampling.tables import draw_from_table, table

WAYS = pytest.mark.parametrize("way", ["table", "host", "device"])
LOGITS = np.log(np.array([[0.5, 0.2, 0.2, 0.1], [0.1, 0.2, 0.3, 0.4]], np.float32)) + 2.0
QUANTILE = {1: 10.83, 2: 13.82, 3: 16.27}  # 0.999 quantiles of chi-square


def make(way: str, logits: Any, parameters: Sequence[SamplingParams]) -> Any:
    """What one of the three ways draws from."""
    xp = mx if way == "device" else np
    made = distributions(xp, xp.array(logits), parameters)
    return table(made) if way == "table" else made


def sample(way: str, made: Any, **places: Any) -> tuple[list[int], list[float]]:
    if way == "table":
        tokens, logprobs = draw_from_table(made, **places)
    else:
        tokens, logprobs = draw(mx if way == "device" else np, made, **places)
    return tokens.tolist(), logprobs.tolist()


def logprobs(way: str, made: Any) -> np.ndarray:
    if way == "table":
        return made.logprobs
    return np.array(logprobs_of(mx if way == "device" else np, made))


def test_large_vocabularies_are_drawn_from_where_the_model_is() -> None:
    assert namespace(HOST_VOCABULARY) is np
    before = mx.default_device()
    try:
        mx.set_default_device(mx.Device(mx.DeviceType.cpu))
        assert namespace(HOST_VOCABULARY + 1) is np
        if mx.is_available(mx.Device(mx.DeviceType.gpu)):
            mx.set_default_device(mx.Device(mx.DeviceType.gpu))
            assert namespace(HOST_VOCABULARY + 1) is mx
    finally:
        mx.set_default_device(before)


@WAYS
def test_log_probabilities_by_hand(way: str) -> None:
    made = make(way, LOGITS, [SamplingParams(), SamplingParams(0.5, (1, 3))])
    assert np.exp(logprobs(way, made)[0]) == pytest.approx([0.5, 0.2, 0.2, 0.1])
    assert np.exp(logprobs(way, made)[1]) == pytest.approx([0.0, 0.04 / 0.2, 0.0, 0.16 / 0.2])
    greedy = logprobs(way, make(way, LOGITS, [SamplingParams(0.0), SamplingParams(0.0, (0, 1))]))
    assert np.exp(greedy).tolist() == [[1.0, 0.0, 0.0, 0.0], [0.0, 1.0, 0.0, 0.0]]
    assert greedy.max(axis=1).tolist() == [0.0, 0.0]


@WAYS
@pytest.mark.parametrize(
    ("temperature", "allowed", "expected"),
    [
        (1.0, None, [0.5, 0.2, 0.2, 0.1]),
        (0.5, None, [0.25 / 0.34, 0.04 / 0.34, 0.04 / 0.34, 0.01 / 0.34]),
        (1.0, (1, 3), [0.0, 2 / 3, 0.0, 1 / 3]),
        (1.0, (0, 3), [5 / 6, 0.0, 0.0, 1 / 6]),
    ],
)
def test_frequencies_agree_with_probabilities(
    way: str, temperature: float, allowed: tuple[int, ...] | None, expected: list[float]
) -> None:
    made = make(way, LOGITS, [SamplingParams(temperature, allowed)] * 2)
    count = 20_000
    for seeds, positions in (
        (range(count), [0] * count),  # many requests, their first tokens
        ([7] * count, range(count)),  # one request, all its tokens
    ):
        tokens, logprobs = sample(
            way,
            made,
            which=np.zeros(count, np.intp),
            seeds=list(seeds),
            positions=list(positions),
        )
        counts = np.bincount(tokens, minlength=4)
        for token, probability in enumerate(expected):
            if not probability:
                assert counts[token] == 0
        possible = np.array(expected) > 0
        means = count * np.array(expected)[possible]
        chi_square = ((counts[possible] - means) ** 2 / means).sum()
        assert chi_square < QUANTILE[possible.sum() - 1]
        drawn = {t: math.exp(p) for t, p in zip(tokens, logprobs, strict=True)}
        assert drawn == pytest.approx({t: expected[t] for t in drawn}, rel=1e-5)


@WAYS
def test_each_draw_is_from_its_own_distribution(way: str) -> None:
    made = make(way, LOGITS, [SamplingParams(1.0, (0,)), SamplingParams(1.0, (3,))])
    which = np.array([0, 1, 1, 0])
    tokens, _ = sample(way, made, which=which, seeds=[1, 2, 3, 4], positions=[0, 5, 6, 9])
    assert tokens == [0, 3, 3, 0]


@WAYS
def test_a_draw_depends_on_seed_and_position_alone(way: str) -> None:
    made = make(way, LOGITS, [SamplingParams(), SamplingParams()])
    which = np.zeros(300, np.intp)
    together, _ = sample(way, made, which=which, seeds=list(range(300)), positions=[3] * 300)
    alone = [
        sample(way, made, which=np.zeros(1, np.intp), seeds=[s], positions=[3])[0][0]
        for s in range(300)
    ]
    assert together == alone
    elsewhere, _ = sample(way, made, which=which, seeds=list(range(300)), positions=[4] * 300)
    assert elsewhere != together


@WAYS
@pytest.mark.parametrize("last", [3, 5, 9])
@pytest.mark.parametrize(("number", "expected"), [(0.0, 0), (1 - 2.0**-24, 1)])
def test_what_cannot_be_is_never_drawn(
    way: str, last: int, number: float, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even by the smallest and the largest number, at either end of the vocabulary."""
    monkeypatch.setattr(
        "legos.mlx.generate.sampling.draw.uniforms",
        lambda seeds, _: np.full(len(seeds), number, np.float32),
    )
    possible = [2, last]
    logits = np.full((100, 10), IMPOSSIBLE, np.float32)
    logits[:, possible] = np.random.default_rng(last).normal(size=(100, 2))
    made = make(way, logits, [SamplingParams()] * 100)
    tokens, _ = sample(way, made, which=np.arange(100), seeds=[0] * 100, positions=[0] * 100)
    assert set(tokens) == {possible[expected]}


@WAYS
def test_what_cannot_be_is_not_drawn_where_sums_round(
    way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last block holds almost everything, and its sum depends on how it is added up."""
    monkeypatch.setattr(
        "legos.mlx.generate.sampling.draw.uniforms",
        lambda seeds, _: np.full(len(seeds), 1 - 2.0**-24, np.float32),
    )
    logits = np.random.default_rng(0).normal(size=(300, 256)).astype(np.float32)
    logits[:, :128] -= 12.0
    made = make(way, logits, [SamplingParams(1.0, tuple(range(250)))] * 300)
    tokens, _ = sample(way, made, which=np.arange(300), seeds=[0] * 300, positions=[0] * 300)
    assert set(tokens) <= set(range(245, 250))


class Scans:
    """An array namespace whose sums differ by a rounding, as on a GPU."""

    def __getattr__(self, name: str) -> Any:
        return getattr(mx, name)

    def cumsum(self, weights: Any, axis: int, inclusive: bool) -> Any:
        rounded = np.where(np.arange(weights.shape[axis]) % 2, 1 - 2.0**-23, 1 + 2.0**-22)
        factors = mx.array(rounded.astype(np.float32))
        return mx.cumsum(weights, axis=axis, inclusive=inclusive) * factors


@pytest.mark.parametrize("places", [(3, 700), (3, 60), (128, 255, 256), (5, 6, 7, 1100)])
def test_what_cannot_be_is_not_drawn_where_a_scan_is_not_monotone(
    places: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = np.arange(len(places) + 1) / len(places)
    numbers = np.clip(np.concatenate([numbers - 2.0**-22, numbers, numbers + 2.0**-22]), 0, None)
    numbers = np.minimum(numbers, 1 - 2.0**-24).astype(np.float32)
    monkeypatch.setattr("legos.mlx.generate.sampling.draw.uniforms", lambda *_: numbers)
    made = make("device", np.zeros((1, 1200), np.float32), [SamplingParams(1.0, places)])
    count = len(numbers)
    tokens, logprobs = draw(
        Scans(), made, which=np.zeros(count, np.intp), seeds=[0] * count, positions=[0] * count
    )
    assert set(tokens.tolist()) == set(places)
    assert logprobs.tolist() == pytest.approx([-math.log(len(places))] * count)


def test_host_and_device_draw_the_same() -> None:
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(5, 1200)).astype(np.float32)
    which = rng.integers(5, size=400)
    parameters = [
        SamplingParams(),
        SamplingParams(0.5),
        SamplingParams(0.0),
        SamplingParams(2.0),
        SamplingParams(1.0, (3, 9, 100)),
    ]
    drawn = []
    for way in ("table", "host", "device"):
        made = make(way, logits, parameters)
        drawn.append(sample(way, made, which=which, seeds=list(range(400)), positions=[1] * 400))
    for tokens, found in drawn[1:]:
        same = np.array(tokens) == np.array(drawn[0][0])
        assert same.mean() > 0.99  # but for sums that round differently
        assert np.array(found)[same] == pytest.approx(np.array(drawn[0][1])[same], abs=1e-5)


@pytest.mark.parametrize("way", ["host", "device"])
def test_log_probabilities_are_exact_where_the_vocabulary_is_large(way: str) -> None:
    """The trainer computes them in another order; a sum along the row would be off by 3e-4."""
    logits = 4 * np.random.default_rng(0).normal(size=(2, 151_669)).astype(np.float32)
    places = {"which": np.arange(2), "seeds": [1, 2], "positions": [0, 0]}
    tokens, found = sample(way, make(way, logits, [SamplingParams()] * 2), **places)
    exact = logits.astype(np.float64)
    exact -= np.log(np.exp(exact).sum(axis=1, keepdims=True))
    assert found == pytest.approx(exact[[0, 1], tokens], abs=1e-5)


@pytest.mark.nightly
@WAYS
@pytest.mark.parametrize("vocabulary", [1, 2, 127, 128, 129, 300, 1024])
def test_the_whole_vocabulary_is_drawn_from(way: str, vocabulary: int) -> None:
    logits = np.log(1.0 + np.arange(vocabulary, dtype=np.float32))[None]
    made = make(way, logits, [SamplingParams()])
    count = 20_000
    tokens, found = sample(
        way, made, which=np.zeros(count, np.intp), seeds=list(range(count)), positions=[0] * count
    )
    chances = (1.0 + np.arange(vocabulary)) / (vocabulary * (vocabulary + 1) / 2)
    assert np.exp(found) == pytest.approx(chances[tokens], rel=1e-4)
    bins = np.arange(vocabulary) * 8 // vocabulary  # eighths of the vocabulary
    seen = np.bincount(bins[tokens], minlength=8)
    means = count * np.bincount(bins, weights=chances, minlength=8)
    there = means > 0
    assert ((seen[there] - means[there]) ** 2 / means[there]).sum() < 27.0  # 0.9996 of 7


def test_the_steps_of_a_table_end_where_the_numbers_do() -> None:
    """And so do those of the last token that can be drawn, whatever the sums round to."""
    logits = np.random.default_rng(0).normal(size=(2000, 30)).astype(np.float32)
    steps = make("table", logits, [SamplingParams(1.0, tuple(range(29)))] * 2000).steps
    assert (steps[:, -1] == 1 << 24).all()
    assert (steps[:, -2] == 1 << 24).all()
    assert (np.diff(steps, axis=1) >= 0).all()


@WAYS
@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("temperature", [1.0, 0.0])
def test_a_row_that_is_not_numbers_harms_no_other(way: str, bad: float, temperature: float) -> None:
    logits = np.stack([LOGITS[0], LOGITS[1], LOGITS[0]])
    sound = make(way, logits, [SamplingParams(temperature)] * 3)
    logits[1, 2] = bad
    made = make(way, logits, [SamplingParams(temperature)] * 3)
    places = {"which": np.array([0, 1, 2]), "seeds": [1, 2, 3], "positions": [0, 0, 0]}
    tokens, found = sample(way, made, **places)
    assert not math.isfinite(found[1])
    expected = sample(way, sound, **places)
    assert (tokens[0], tokens[2]) == (expected[0][0], expected[0][2])
    assert (found[0], found[2]) == (expected[1][0], expected[1][2])
