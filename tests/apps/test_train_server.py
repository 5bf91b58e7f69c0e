"""``legos train --server``: the whole run over HTTP, with the account of its tokens."""

import re
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

import pytest
from accounts import balanced_ledger
from metric_lines import read_metrics, read_steps
from scripted_server import serving
from short_runs import FEW, NIM
from tiny_folders import write_tiny_model

from legos import apply_lora, load_model
from legos.cli.process import main
from legos.clients.engine import EngineClient
from legos.clients.transport import server_name
from legos.device import LocalEngine, ModelHandle
from legos.server.app import make_app
from legos.server.options import ServerOptions
from legos.server.service import Service
from legos.wiring.engines import served_engine

RUN = Path("run")


@pytest.fixture(autouse=True)
def empty_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def model() -> Iterator[ModelHandle]:
    handle = load_model()
    apply_lora(handle)
    yield handle
    handle.close()


@pytest.fixture(scope="module")
def engine(model: ModelHandle) -> Iterator[LocalEngine]:
    made = model.make_engine()
    yield made
    made.close()


def served(
    model: ModelHandle, engine: LocalEngine, options: ServerOptions
) -> AbstractContextManager[str]:
    client = EngineClient(engine, model.tokenizer, use_threads=True)
    context = model.context
    service = Service(
        client,
        engine,
        model.tokenizer,
        model="builtin",
        context=context,
        lora_scale=1.0,
        options=options,
    )
    return serving(make_app(service))


@pytest.fixture(scope="module")
def url(model: ModelHandle, engine: LocalEngine) -> Iterator[str]:
    with served(model, engine, ServerOptions()) as address:
        yield address


def test_a_server_without_room_for_all_opponents_is_refused_before_the_first_step(
    model: ModelHandle, engine: LocalEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    engine.load_adapter(replace(model.base_adapter(), name="judge")).result()
    taken = len(engine.adapters().keys() - {"policy", "policy-evaluated"})
    with served(model, engine, ServerOptions(max_adapters=taken + 4)) as url:
        served_engine([url], model, api_key=None, policies=("policy",), rivals=2).close()
        opponents = ("--play.opponents", "self=0.5", "--play.opponents", "past=0.5")
        assert main(["train", "--server", url, "--out", str(RUN), *FEW, *opponents]) == 2
    engine.drop_adapter("judge").result()
    said = " ".join(capsys.readouterr().err.split())
    message = (
        rf"server 127\.0\.0\.1:\d+ may have {taken + 4} adapters \(--max-adapters\) and has "
        rf"{taken} of others, but this run needs 12: .* 10 opponents; .*--max-adapters {taken + 12}"
    )
    assert re.search(message, said), said
    assert not RUN.exists()


@pytest.mark.slow
def test_a_run_on_a_server_is_evaluated_balanced_and_resumed(
    url: str, engine: LocalEngine, model: ModelHandle
) -> None:
    before = engine.tokens_generated("policy").result()
    assert main(["train", "--server", url, "--out", str(RUN), "--steps", "3", *NIM]) == 0
    assert main(["train", "--resume", str(RUN), "--steps", "5"]) == 0
    steps = {int(step["step"] or 0): step for step in read_steps(RUN / "metrics.jsonl")}
    assert sorted(steps) == [1, 2, 3, 4, 5]
    figures = [line["step"] for line in read_metrics(RUN / "evaluations.jsonl")]
    assert figures == [0, 3, 5]
    ledger = balanced_ledger(RUN)
    sampled = engine.tokens_generated("policy").result() - before
    assert 0 < ledger["trained"] <= ledger["generated"] <= sampled
    assert engine.versions()["policy"] == steps[5]["policy_version"]
    assert 0 <= (steps[4]["loop/engine_idle_share"] or 0) < 1


@pytest.mark.nightly
def test_a_league_plays_on_a_server_and_leaves_the_policy_there(
    url: str, engine: LocalEngine
) -> None:
    shares = ("self=0.3", "past=0.3", "hard=0.2", "base=0.1", "random=0.1")
    opponents = [each for share in shares for each in ("--play.opponents", share)]
    league = ("--league.snapshot-every", "1", "--league.snapshots", "2", *opponents)
    place = ("--server", url, "--server", url, "--out", str(RUN), "--arena", "kuhn", *FEW)
    assert main(["train", *place, *league, "--steps", "4"]) == 0
    assert main(["train", "--resume", str(RUN), "--steps", "7"]) == 0
    steps = [step for step in read_steps(RUN / "metrics.jsonl") if step["step"]]
    assert {step["arena/failed"] for step in steps} == {0}
    met = {name for step in steps for name in step if name.startswith("league/plays_")}
    assert met == {f"league/plays_{name}" for name in ("past", "base", "random")}
    balanced_ledger(RUN)
    assert [*engine.versions()] == ["policy"]


def test_a_folder_of_adapters_is_refused(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--server", url, "--adapter-folder", ".", *NIM]) == 2
    assert "`legos serve` gets them over HTTP" in " ".join(capsys.readouterr().err.split())


def test_a_server_may_be_named_twice(url: str) -> None:
    servers = ("--server", url, "--server", f"{url}/v1")
    assert main(["train", *servers, "--out", str(RUN), "--steps", "1", *NIM]) == 0
    assert balanced_ledger(RUN)["trained"] > 0


def test_a_server_with_another_model_is_refused(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = write_tiny_model(tmp_path / "other")
    assert main(["train", "--server", url, "--model", str(other)]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert f"{server_name(url)} has another model than the trainer" in said
    assert not Path("runs").exists()


def test_a_server_that_does_not_answer_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--server", "http://127.0.0.1:9"]) == 2
    assert "no server answers at http://127.0.0.1:9/v1" in capsys.readouterr().err
