"""Each cell of the table of devices and engines is what ``legos train`` does with its options."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from legos.cli.process import main

PAGE = Path(__file__).parents[2] / "docs" / "run" / "devices.md"


def cells() -> Iterator[tuple[str, str, str]]:
    """Options, device and what the table says about them."""
    _, table = PAGE.read_text(encoding="utf-8").split("| options | generates |")
    head, _, *rows = table.split("\n\n")[0].splitlines()
    devices = re.findall("`--device ([a-z]+)`", head)
    for row in rows:
        options, _, *verdicts = (cell.strip() for cell in row.strip("|").split("|"))
        for device, verdict in zip(devices, verdicts, strict=True):
            yield options.strip("`"), device, verdict


CELLS = list(cells())


def test_the_table_has_every_device_and_engine() -> None:
    assert {device for _, device, _ in CELLS} == {"mlx", "torch"}
    text = " ".join(options for options, _, _ in CELLS)
    assert {"--engine", "--server", "--ray"} <= set(text.split())
    assert {verdict.partition(":")[0] for _, _, verdict in CELLS} == {"yes", "refused"}


@pytest.mark.parametrize(("options", "device", "verdict"), CELLS)
def test_a_run_is_accepted_or_refused_as_the_table_says(
    options: str, device: str, verdict: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main(["train", *shlex.split(options), "--device", device, "--dry-run"])
    said = capsys.readouterr().err
    assert (code == 0) == (verdict == "yes"), said
    for setting in re.findall("`(.+?)`", verdict):
        assert setting in said
