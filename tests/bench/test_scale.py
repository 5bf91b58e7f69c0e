"""The formulas of docs/scale.md: by hand, and against the simulated line."""

from dataclasses import replace

import pytest

from legos.apps.bench import bench
from legos.bench.arithmetic import adapter_bytes, engines_until, limits_of, publish_s, staleness
from legos.bench.ratios import RATIOS
from legos.bench.scale import ADAPTER, FEW, LAYER
from legos.bench.simulated_line import Design, simulate

SLOW_TRAINER = Design(
    engines=4,
    tokens_per_s=100.0,
    latency_s=0.5,
    groups_per_step=2,
    trainer_tokens_per_s=512,
)


def test_the_bytes_of_an_adapter_by_hand() -> None:
    assert adapter_bytes(2, [(3, 5), (5, 3)]) == 4 * 2 * (8 + 8)
    assert adapter_bytes(8, 16 * LAYER) == ADAPTER == 21_102_592  # the page's


def test_each_part_of_the_line_by_hand() -> None:
    limits = limits_of(SLOW_TRAINER, 0.25, sample_tokens=320)
    assert limits.engines == pytest.approx(4 * 8 / (0.5 + 256 / 100))
    assert limits.trainer == pytest.approx(16 / (16 * 320 / 512 + 0.02))
    assert limits.process == 4.0
    assert (limits.first, limits.samples_per_s) == ("trainer", limits.trainer)
    slow = limits_of(replace(SLOW_TRAINER, load_s=11.0), 0.25, sample_tokens=320)
    assert slow.publishing == pytest.approx(11 / 21)
    assert slow.first == "publication"


def test_the_trainers_link_is_shared_until_a_servers_own_is_slower() -> None:
    design = replace(FEW, adapter_bytes=1e9, link_bytes_per_s=1e9, load_s=0.5)
    assert publish_s(replace(design, engine_link_bytes_per_s=1e9)) == 16.5
    assert publish_s(replace(design, engine_link_bytes_per_s=1e7)) == 100.5


def test_one_copy_goes_to_a_shared_folder_and_is_read_as_fast_as_that_can_be() -> None:
    design = replace(FEW, adapter_bytes=1e9, link_bytes_per_s=1e9, load_s=0.5)
    assert publish_s(replace(design, store_bytes_per_s=8e9)) == 1 + 2 + 0.5
    assert publish_s(replace(design, store_bytes_per_s=1e12)) == 1 + 0.8 + 0.5


@pytest.mark.parametrize("store", [None, 12.5e9])
@pytest.mark.parametrize("engines", [16, 128])
def test_publishing_takes_as_long_in_the_simulation(engines: int, store: float | None) -> None:
    design = replace(FEW.scaled(engines), store_bytes_per_s=store)
    found = simulate(design, steps=4, warm=4)
    assert found.publish_s == pytest.approx(publish_s(design), rel=0.01)
    assert staleness(design, found.waiting_samples) == pytest.approx(found.staleness_mean, abs=0.5)


def test_a_design_breaks_where_its_engines_begin_to_wait() -> None:
    most = engines_until(FEW, 0.0, sample_tokens=320)
    for engines, kept in ((most, True), (most + FEW.engines, False)):
        limits = limits_of(FEW.scaled(engines), 0.0, sample_tokens=320)
        assert (limits.samples_per_s >= 0.9 * limits.engines) is kept


@pytest.mark.slow
def test_the_bench_agrees_with_its_arithmetic() -> None:
    figures = bench("scale", 10.0, quick=True)
    ratios, targets = figures["ratios"], RATIOS["scale"]
    assert set(ratios) == set(targets)
    assert 20e3 < figures["costs"]["memory_bytes"] < 80e3  # objects of Python, 320 tokens
    for name in ("arithmetic_vs_simulated", "two_engines_vs_one", "discarded_share"):
        assert targets[name].verdict(ratios[name])["met"], name
