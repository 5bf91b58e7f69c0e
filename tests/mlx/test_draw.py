"""Drawing: the distribution that is made is the one that is drawn from, in every namespace."""

import math

import mlx.core as mx
import numpy as np
import pytest

from legos.losses.places import IMPOSSIBLE
from legos.mlx.draw import HOST_VOCABULARY, distributions, draw, namespace

NAMESPACES = pytest.mark.parametrize("xp", [np, mx], ids=["host", "device"])
LOGITS = np.log(np.array([[0.5, 0.2, 0.2, 0.1], [0.1, 0.2, 0.3, 0.4]], np.float32)) + 2.0
QUANTILE = {1: 10.83, 2: 13.82, 3: 16.27}  # 0.999 quantiles of chi-square


def logits_of(xp: object) -> object:
    return LOGITS if xp is np else mx.array(LOGITS)


def test_small_vocabularies_are_drawn_from_on_the_host() -> None:
    assert namespace(HOST_VOCABULARY) is np
    assert namespace(HOST_VOCABULARY + 1) is mx


@NAMESPACES
def test_log_probabilities_by_hand(xp: object) -> None:
    rows = logits_of(xp)
    logprobs = np.array(distributions(xp, rows, [1.0, 0.5], [None, (1, 3)])[0])
    assert np.exp(logprobs[0]) == pytest.approx([0.5, 0.2, 0.2, 0.1])
    assert np.exp(logprobs[1]) == pytest.approx([0.0, 0.04 / 0.2, 0.0, 0.16 / 0.2])
    greedy = np.array(distributions(xp, rows, [0.0, 0.0], [None, (0, 1)])[0])
    assert np.exp(greedy).tolist() == [[1.0, 0.0, 0.0, 0.0], [0.0, 1.0, 0.0, 0.0]]
    assert greedy.max(axis=1).tolist() == [0.0, 0.0]


@NAMESPACES
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
    xp: object, temperature: float, allowed: tuple[int, ...] | None, expected: list[float]
) -> None:
    made = distributions(xp, logits_of(xp), [temperature] * 2, [allowed] * 2)
    count = 20_000
    for seeds, positions in (
        (range(count), [0] * count),  # many requests, their first tokens
        ([7] * count, range(count)),  # one request, all its tokens
    ):
        tokens, logprobs = draw(
            xp,
            *made,
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


@NAMESPACES
def test_each_draw_is_from_its_own_distribution(xp: object) -> None:
    made = distributions(xp, logits_of(xp), [1.0, 1.0], [(0,), (3,)])
    which = np.array([0, 1, 1, 0])
    tokens, _ = draw(xp, *made, which=which, seeds=[1, 2, 3, 4], positions=[0, 5, 6, 9])
    assert tokens == [0, 3, 3, 0]


@NAMESPACES
def test_a_draw_depends_on_seed_and_position_alone(xp: object) -> None:
    made = distributions(xp, logits_of(xp), [1.0, 1.0], [None, None])
    which = np.zeros(300, np.intp)
    together, _ = draw(xp, *made, which=which, seeds=list(range(300)), positions=[3] * 300)
    alone = [
        draw(xp, *made, which=np.zeros(1, np.intp), seeds=[s], positions=[3])[0][0]
        for s in range(300)
    ]
    assert together == alone
    elsewhere, _ = draw(xp, *made, which=which, seeds=list(range(300)), positions=[4] * 300)
    assert elsewhere != together


@NAMESPACES
@pytest.mark.parametrize("last", [3, 5, 9])
@pytest.mark.parametrize(("number", "expected"), [(0.0, 0), (1 - 2.0**-24, 1)])
def test_what_cannot_be_is_never_drawn(
    xp: object, last: int, number: float, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even by the smallest and the largest number, at either end of the vocabulary."""
    monkeypatch.setattr(
        "legos.mlx.draw.uniforms", lambda seeds, _: np.full(len(seeds), number, np.float32)
    )
    possible = [2, last]
    logits = np.full((100, 10), IMPOSSIBLE, np.float32)
    logits[:, possible] = np.random.default_rng(last).normal(size=(100, 2))
    made = distributions(xp, logits if xp is np else mx.array(logits), [1.0] * 100, [None] * 100)
    tokens, _ = draw(xp, *made, which=np.arange(100), seeds=[0] * 100, positions=[0] * 100)
    assert set(tokens) == {possible[expected]}


def test_host_and_device_draw_the_same() -> None:
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(5, 200)).astype(np.float32)
    which = rng.integers(5, size=400)
    settings = [1.0, 0.5, 0.0, 2.0, 1.0], [None, None, None, None, (3, 9, 100)]
    drawn = []
    for xp, rows in ((np, logits), (mx, mx.array(logits))):
        made = distributions(xp, rows, *settings)
        drawn.append(draw(xp, *made, which=which, seeds=list(range(400)), positions=[1] * 400))
    same = np.mean([a == b for a, b in zip(drawn[0][0], drawn[1][0], strict=True)])
    assert same > 0.99  # but for sums that round differently
    assert drawn[0][1] == pytest.approx(drawn[1][1], abs=1e-5) or same < 1.0
