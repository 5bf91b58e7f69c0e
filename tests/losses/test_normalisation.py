"""The weights of samples in the loss, by each rule."""

from typing import Any

import pytest

from legos.fakes import make_sample
from legos.losses.normalisation import normalisation_weights
from legos.records.sample import Sample

LENGTHS = {"a": (3, 1), "b": (2,), "c": (4, 4, 4)}  # rollout -> chosen tokens of its samples
GROUPS = {"a": "x", "b": "x", "c": "y"}


def named_samples() -> list[Sample]:
    return [
        make_sample(
            range(length + 1), positions=range(1, length + 1), rollout=name, group=GROUPS[name]
        )
        for name, lengths in LENGTHS.items()
        for length in lengths
    ]


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("token", [1 / 18] * 6),
        ("sample", [1 / 12, 1 / 12, 1 / 6, 1 / 36, 1 / 36, 1 / 36]),
        ("constant", [1 / (3 * 256)] * 6),
        ("prompt", [1 / 12, 1 / 12, 1 / 12, 1 / 24, 1 / 24, 1 / 24]),
    ],
)
def test_weights_by_hand(mode: Any, expected: list[float]) -> None:
    weights = normalisation_weights(named_samples(), mode)
    assert weights == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("mode", ["token", "sample", "prompt"])
def test_weights_of_all_tokens_sum_to_one(mode: Any) -> None:
    samples = named_samples()
    weights = normalisation_weights(samples, mode)
    total = sum(w * len(s.positions) for w, s in zip(weights, samples, strict=True))
    assert total == pytest.approx(1.0, abs=1e-12)


def test_a_sample_without_a_rollout_is_one_of_its_own() -> None:
    samples = [
        make_sample((1, 2, 3), positions=(1, 2)),
        make_sample((1, 2), rollout="0"),  # a name that looks like the number of another sample
    ]
    assert normalisation_weights(samples, "sample") == [1 / 4, 1 / 2]
    assert normalisation_weights(samples, "constant") == [1 / 512, 1 / 512]


def test_no_samples_have_no_weights() -> None:
    assert normalisation_weights([], "token") == []
