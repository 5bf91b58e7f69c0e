"""``legos bench`` prints a table to post, and the same figures as JSON."""

import json
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from legos.bench.engine_bench import EngineBench
from legos.bench.speed import Line, _generation
from legos.cli.process import main
from legos.records.limits import EngineLimits
from legos.records.names import POLICY
from legos.records.request import Request
from legos.wiring.model import model_place

NAMES = [
    *(
        f"{part}, {streams}"
        for streams in ("1 stream", "8 streams", "32 streams")
        for part in ("prefill", "decode")
    ),
    "adapter swap",
    "train, 8 answers",
    "train, 8 answers, peak",
]


@pytest.mark.parametrize("seconds", ["0", "-1", "inf", "nan"])
def test_a_time_that_is_no_time_is_refused(
    seconds: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "--model", "builtin", f"--seconds={seconds}"]) == 2
    assert "--seconds" in capsys.readouterr().err


def test_the_ratio_is_ours_to_theirs() -> None:
    line = Line(name="train", unit="MiB", legos=1.0, mlx_lm=4.0)
    assert line.as_dict() == {
        "name": "train",
        "unit": "MiB",
        "legos": 1.0,
        "mlx_lm": 4.0,
        "ratio": 0.25,
    }


def test_every_prompt_that_is_measured_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine keeps what it computed last, so a prompt that comes again would cost nothing."""
    measured: list[int] = []
    run = EngineBench.run

    def counted(self: EngineBench, requests: Sequence[Request], beats: Any = None) -> float:
        measured.extend(len(request.prompt_ids) for request in requests)
        return run(self, requests, beats)

    monkeypatch.setattr(EngineBench, "run", counted)
    place = Path(model_place("builtin"))
    with closing(EngineBench(place, EngineLimits(max_rows=2, prefix_bytes=0))) as made:
        made.engine.load_adapter(made.adapter(POLICY)).result()
        before = made.engine.stats()["prefill_tokens_total"]
        assert len(list(_generation(made, 2, 0.01))) == 2
        assert made.engine.stats()["prefill_tokens_total"] - before == sum(measured)


@pytest.mark.nightly
def test_every_line_is_measured_and_printed(capsys: pytest.CaptureFixture[str]) -> None:
    main(["bench", "--model", "builtin", "--seconds", "0.5"])
    head, rule, *rows = capsys.readouterr().out.splitlines()
    assert head.split() == [
        "|",
        "builtin",
        "|",
        "legos",
        "|",
        "mlx-lm",
        "|",
        "legos",
        "/",
        "mlx-lm",
        "|",
    ]
    assert set(rule) == {"|", "-"}
    table = [row for row in rows if row.startswith("|")]
    assert [row.split("|")[1].rpartition(",")[0].strip() for row in table] == NAMES
    assert any(row.startswith("mlx_lm") for row in rows)


@pytest.mark.slow
def test_the_json_has_the_figures(capsys: pytest.CaptureFixture[str]) -> None:
    main(["bench", "--model", "builtin", "--seconds", "0.1", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert [line["name"] for line in found["lines"]] == NAMES
    for line in found["lines"]:
        assert line["legos"] > 0.0
        assert line["mlx_lm"] > 0.0
        assert line["ratio"] == pytest.approx(line["legos"] / line["mlx_lm"])
    assert found["model"] == "builtin"
