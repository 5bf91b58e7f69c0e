"""The check of an architecture finds numbers that are wrong without a refusal."""

import re
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import pytest
from architectures import harness
from architectures.harness import check_architecture
from architectures.table import table_row
from mlx.utils import tree_map

from legos.errors import ModelError
from legos.mlx.generate.engine import MlxEngine
from legos.mlx.generate.prefix_cache import PrefixCache
from legos.mlx.train.step_gradients import StepGradients

Patch = pytest.MonkeyPatch


@pytest.mark.slow
def test_gradients_that_differ_by_a_hundredth_are_found(monkeypatch: Patch) -> None:
    compute = StepGradients.of_step

    def of_step(*args: Any, **options: Any) -> Any:
        found = compute(*args, **options)
        return SimpleNamespace(gradients=tree_map(lambda array: 1.01 * array, found.gradients))

    monkeypatch.setattr(StepGradients, "of_step", of_step)
    report = check_architecture("llama")
    assert report.serves
    assert not report.trains
    assert report.errors[0].startswith("float32: the gradient of")


@pytest.mark.slow
def test_prefixes_of_former_weights_are_found(monkeypatch: Patch) -> None:
    find = PrefixCache.find

    def of_any_weights(cache: PrefixCache, epoch: int, tokens: tuple[int, ...]) -> Any:
        return find(cache, epoch, tokens) or find(cache, epoch - 1, tokens)

    monkeypatch.setattr(PrefixCache, "find", of_any_weights)
    monkeypatch.setattr(PrefixCache, "keep_only", lambda *_: None)
    report = check_architecture("llama")
    assert report.trains
    assert not report.serves
    for kind, error in zip(("float32", "bfloat16"), report.errors, strict=True):
        assert error.startswith(f"{kind}: the log-probability of a sampled token (nats) differs by")


@pytest.mark.slow
def test_what_only_16_bits_accept_is_an_error(monkeypatch: Patch) -> None:
    make = harness.small_engine

    def refused(name: str, **fields: Any) -> MlxEngine:
        if fields["dtype"] == mx.float32:
            raise ModelError(f"{name} cannot be served: of course not")
        return make(name, **fields)

    monkeypatch.setattr(harness, "small_engine", refused)
    report = check_architecture("llama")
    assert report.reasons == ("cannot be served: of course not",)
    assert report.errors == ("bfloat16: accepted, but refused in float32",)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("recurrent_gemma", "no small model can be built: AttributeError: .*"),
        ("olmo", r"no small model can be built: SystemExit: 1 \(To run olmo install .*\)"),
        ("phi3small", "refused: mlx-lm's code for it corrupts the memory of the process"),
    ],
)
def test_an_architecture_that_cannot_be_built_is_not_tried(name: str, reason: str) -> None:
    report = check_architecture(name)
    assert not report.tried
    assert len(report.reasons) == 1
    assert re.fullmatch(reason, report.reasons[0])


@pytest.mark.nightly
def test_what_trains_on_the_cpu_alone_is_said() -> None:
    report = check_architecture("rwkv7")
    assert report.trains
    assert report.cpu_only
    assert table_row(report).startswith("| rwkv7                 | yes (CPU) |")
    assert any("wkv7_kernel" in reason for reason in report.reasons)
