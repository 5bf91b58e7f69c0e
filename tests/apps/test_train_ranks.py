"""``legos train`` under ``torchrun``: a process is killed, Ctrl-C, and the same steps as alone."""

import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil
import pytest
from accounts import balanced_ledger
from metric_lines import read_steps
from scripted_server import serving

from legos import apply_lora, load_model
from legos.clients.engine import EngineClient
from legos.server.app import make_app
from legos.server.service import Service

pytestmark = [pytest.mark.nightly, pytest.mark.torch]
ALONE = (sys.executable, "-m", "legos", "train")
TWO = (
    *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"),
    *ALONE[1:],
)
ONE_THREAD = {"OMP_NUM_THREADS": "1"}  # as torchrun sets it, so that two cores are enough
SETTINGS = (
    *("--device", "torch", "--steps", "500", "--loop.evaluate-every", "0"),
    *("--play.tasks-per-step", "2", "--play.group-size", "4"),
    *("--training.min-samples-per-step", "8", "--training.kl-coef", "0.1"),
    *("--training.staleness-limit", "0", "--loop.step-concurrency", "1"),
)
STEPS = 2  # of each process group; the learning rate and AdamW's moments show in the second
COUNTS = ("policy_version", "samples_per_step", "tokens_trained", "reward_mean", "advantage_std")
MEANS = ("loss", "entropy", "kl_divergence", "grad_norm")


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    handle = load_model()
    apply_lora(handle)
    engine = handle.make_engine()
    client = EngineClient(engine, handle.tokenizer, use_threads=True)
    sizes = {"context": handle.context, "lora_scale": 1.0}
    service = Service(client, engine, handle.tokenizer, model="builtin", **sizes)
    with serving(make_app(service)) as address:
        yield address
    engine.close()
    handle.close()


def steps_of(run: Path) -> dict[int, dict[str, float | None]]:
    file = run / "metrics.jsonl"
    found = read_steps(file) if file.exists() else ()
    return {int(step["step"] or 0): dict(step) for step in found}


def rank_of(process: psutil.Process) -> str:
    try:
        return process.environ().get("RANK", "")
    except psutil.Error:
        return ""


def ended(command: Sequence[str | Path], run: Path, sent: signal.Signals, *, rank: str = "") -> str:
    """What is said by a run that gets a signal after some steps.

    Args:
        command: arguments of the run.
        run: its folder.
        sent: the signal.
        rank: the process of torchrun that gets it; "": the one that is started here.
    """
    before, log = max(steps_of(run), default=0), run.with_suffix(f".{sent.name}")
    with log.open("w") as file:
        launcher = psutil.Popen(
            [*map(str, command)], stdout=file, stderr=file, env={**os.environ, **ONE_THREAD}
        )
        try:
            while max(steps_of(run), default=0) < before + STEPS:
                assert launcher.poll() is None, log.read_text()
                time.sleep(0.1)
            workers = launcher.children()
            chosen = {rank_of(one): one for one in workers}[rank] if rank else launcher
            chosen.send_signal(sent)
            assert launcher.wait(60) != 0
        finally:
            if launcher.is_running():
                launcher.terminate()
    assert not any(worker.is_running() for worker in workers)
    return log.read_text()


def test_two_processes_train_as_one_after_a_killed_process(url: str, tmp_path: Path) -> None:
    two, one = tmp_path / "two", tmp_path / "one"
    told = ended((*TWO, *SETTINGS, "--server", url, "--out", two), two, signal.SIGKILL, rank="1")
    lost = "process 0 of 2 cannot go on, because process 1 has ended"
    assert lost in told or "stopped by SIGTERM" in told  # torchrun may end it before it needs it
    assert f"torchrun --standalone --nproc-per-node 2 -m legos train --resume {two}" in told
    balanced_ledger(two)
    shutil.copytree(two, one)

    told = ended((*TWO, "--resume", two), two, signal.SIGINT)
    assert "stopped by SIGINT" in told
    assert "with a checkpoint" in told
    ended((*ALONE, "--resume", one), one, signal.SIGINT)

    ledgers = [balanced_ledger(run) for run in (two, one)]
    assert all(ledger["trained"] for ledger in ledgers)
    found, expected = steps_of(two), steps_of(one)
    common = sorted(found.keys() & expected.keys())
    assert len(common) >= 2 * STEPS
    assert any(expected[step]["advantage_std"] for step in common[STEPS:])
    for step in common:
        for name in COUNTS:
            assert found[step][name] == expected[step][name], (step, name)
        for name in MEANS:
            assert found[step][name] == pytest.approx(expected[step][name], rel=1e-4), (step, name)
