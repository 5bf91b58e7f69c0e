"""Every architecture of mlx-lm, small and random: right in both types, or refused with the reason.

The page ``docs/reference/models.md`` says what legos can do with each, so that an
architecture which changes is seen.
"""

from pathlib import Path

import mlx.core as mx
import pytest
from architectures.families import FAMILIES, family_row
from architectures.harness import check_architecture
from architectures.table import HEAD, table_row

from legos.mlx.checks.small_models import architectures

OFTEN = ("gemma3_text", "llama", "qwen3", "qwen3_moe")  # in every full run of CI
PAGE = Path(__file__).parents[2] / "docs" / "reference" / "models.md"


def test_the_page_has_the_table_of_the_command() -> None:
    page = PAGE.read_text()
    start = page.index(HEAD) + len(HEAD)
    rows = page[start : page.index("\n\n", start)].splitlines()
    assert [row.split()[1] for row in rows] == architectures()


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow if name in OFTEN else pytest.mark.nightly)
        for name in architectures()
    ],
)
def test_an_architecture_is_right_or_refused(name: str) -> None:
    report = check_architecture(name)
    assert report.errors == ()
    if mx.default_device().type == mx.DeviceType.cpu:
        assert table_row(report) in PAGE.read_text(), report
    assert report.reasons or (report.serves and report.checkpoints and report.bfloat16)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow if name == "lfm2" else pytest.mark.nightly)
        for name in FAMILIES
    ],
)
def test_a_family_is_as_its_page_says(name: str) -> None:
    assert family_row(name) in PAGE.read_text()
