"""A run whose every wait is drawn from a seed: slow, failing, stopped, killed, and resumed.

Everything that takes time in a run (a completion, a pass of the backend, a publish, an evaluation,
the write of a checkpoint) takes a drawn time of a virtual clock, and may fail. A schedule is a run
in sessions: each ends by itself, by a stop, by an injected error, or by a kill, which leaves the
files as they are at that moment; the next one resumes, until all steps are done.
"""

import asyncio
import random
import shutil
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple, cast
from unittest.mock import patch

from accounts import balanced_ledger
from metric_lines import read_steps
from run_world import Duel, Solo, step_settings
from slow_parts import (
    DEVICE_S,
    Nature,
    SlowBackend,
    SlowClient,
    SlowEvaluation,
    SlowPublisher,
    SlowWriter,
)
from virtual_time import in_virtual_time

from legos.config.schema import LoopConfig
from legos.credit import GRPOCredit, RAECredit
from legos.errors import ArenaError, CheckpointError, EngineError, TrainerError
from legos.loop.mix import Mix
from legos.loop.trainer import PolicyTrainer
from legos.run.folder import RunFolder
from legos.run.run import Run
from legos.track.jsonl import JsonlTracker

__all__ = ["STOP_S", "Account", "play_schedule", "seconds_to_stop"]

STEPS, SAMPLES = 4, 4  # of a run; of a step
SESSIONS = 12  # the last ones are not disturbed
STOP_S = 2.0  # a run ends so soon after a stop, beyond calls that run
ERRORS = (EngineError, TrainerError, CheckpointError, ArenaError)  # what is injected ends in


class Account(NamedTuple):
    """What happened in a schedule."""

    sessions: int
    stops: int
    kills: int
    errors: int
    failed_plays: int
    tokens: int


class Session:
    """One process of a run: everything is made anew, and what it knows comes from the folder."""

    def __init__(
        self, path: Path, nature: Nature, *, limit: int, players: int, mixed: bool, samples: int
    ) -> None:
        self.nature = nature
        self.stopping_s: float | None = None  # from the wish to stop until the end
        self.folder = RunFolder(path)
        self.publisher = SlowPublisher(nature)
        self.client = SlowClient(nature, self.publisher)
        self.evaluation = SlowEvaluation(nature)
        settings = step_settings(limit, samples=samples, tokens=3 * samples if mixed else None)
        self.trainer = PolicyTrainer(SlowBackend(nature), self.publisher, settings)
        duel = Duel(self.client, credit_assigner=RAECredit())
        solo = Solo(self.client, credit_assigner=GRPOCredit())
        self.run = Run(
            self.folder,
            Mix({duel: 0.5, solo: 0.5}) if mixed else duel,
            self.trainer,
            LoopConfig(
                steps=STEPS,
                step_concurrency=players,
                checkpoint_every=2,
                keep_checkpoints=2,
                evaluate_every=3,
                deterministic=limit == 0,
                plays_kept=0.5,
            ),
            episode_concurrency=4,
            evaluation=cast("Any", self.evaluation),
            count_tokens=self.count,
            engine_stats=dict,
            writer=SlowWriter(nature),
            clock=lambda: asyncio.get_running_loop().time() if _running() else 0.0,
        )

    async def count(self) -> int:
        return self.client.tokens + self.evaluation.tokens_generated

    async def go(self, *, stop_s: float | None, killed_s: float | None, left: Path) -> bool:
        """Run until something ends it; returns whether the run has finished.

        Args:
            stop_s: when the run is asked to stop; None: never.
            killed_s: when the folder is copied, as a kill would leave it; None: never.
            left: where the copy is put.
        """
        loop = asyncio.get_running_loop()
        others = list[asyncio.Task[None]]()

        async def stop(after_s: float) -> None:
            await asyncio.sleep(after_s)
            await self.run.stop()

        async def kill(after_s: float) -> None:
            await asyncio.sleep(after_s)
            shutil.copytree(self.folder.path, left)
            await self.run.stop()

        if stop_s is not None:
            others.append(loop.create_task(stop(stop_s)))
        if killed_s is not None:
            others.append(loop.create_task(kill(killed_s)))
        with (
            closing(JsonlTracker(self.folder.metrics)) as metrics,
            closing(JsonlTracker(self.folder.evaluations)) as evaluations,
        ):
            try:
                finished = await self.run.go(metrics, evaluations)
            finally:
                for other in others:
                    other.cancel()
                await asyncio.gather(*others, return_exceptions=True)
                assert asyncio.all_tasks() == {asyncio.current_task()}, "a task was left waiting"
        asked = min((s for s in (stop_s, killed_s) if s is not None), default=None)
        if not finished:
            assert asked is not None, "the run stopped, but nobody had asked"
            self.stopping_s = loop.time() - asked
            assert self.stopping_s <= STOP_S + 4 * DEVICE_S, "the run ended late"
        return finished


def _running() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


@patch("legos.run.run.CHECKPOINT_S", 200.0)
def play_schedule(seed: int, place: Path, *, samples: int = SAMPLES) -> Account:
    """Play one schedule to the end of its run, and check every session.

    Args:
        seed: determines, with the samples, everything that happens.
        place: an empty folder; what is in it afterwards belongs to the last session.
        samples: of one step.

    Raises:
        AssertionError: the run broke a promise.
    """
    draw = random.Random(seed)
    limit, players = draw.choice(((0, 1), (1, 1), (1, 2), (3, 2)))
    mixed = draw.random() < 0.5
    path, seen = place / "run-0", Account(0, 0, 0, 0, 0, 0)
    for number in range(SESSIONS + 1):
        calm = number >= SESSIONS // 2
        nature = Nature(f"{seed} {number}", calm=calm)
        session = Session(path, nature, limit=limit, players=players, mixed=mixed, samples=samples)
        stop_s = killed_s = None
        if not calm:
            at_s = draw.choice((draw.random(), 10 * draw.random()))
            stop_s, killed_s = draw.choice(((at_s, None), (None, at_s), (None, None)))
        left = place / f"run-{number + 1}"
        found = path.exists()
        ended, booked = _live(session, stop_s=stop_s, killed_s=killed_s, left=left)
        seen = Account(
            number + 1,
            seen.stops + (ended == "stopped" and killed_s is None),
            seen.kills + left.exists(),
            seen.errors + (ended == "error"),
            seen.failed_plays + session.client.refused,
            seen.tokens + session.client.tokens,
        )
        _check(session, ended, booked, limit=limit, found=found)
        if left.exists():
            path = left
        elif ended == "finished":
            return seen
    raise AssertionError(f"the run has not ended after {SESSIONS} sessions")


@patch("legos.run.run.CHECKPOINT_S", 200.0)
def seconds_to_stop(seed: int, place: Path) -> float | None:
    """Start a run, stop it at a random moment, and check what it leaves.

    Args:
        seed: determines everything that happens; nothing fails but plays.
        place: an empty folder.

    Returns:
        Seconds from the wish to stop until the run has ended; None: it had finished before.
    """
    draw = random.Random(seed)
    limit, players = draw.choice(((0, 1), (1, 1), (1, 2), (3, 2)))
    nature = Nature(f"stop {seed}", calm=True)
    mode: Any = {"limit": limit, "players": players, "mixed": seed % 2 == 0, "samples": SAMPLES}
    session = Session(place / "run", nature, **mode)
    ended, booked = _live(session, stop_s=3 * draw.random(), killed_s=None, left=place / "left")
    _check(session, ended, booked, limit=limit, found=False)
    return session.stopping_s


def _live(
    session: Session, *, stop_s: float | None, killed_s: float | None, left: Path
) -> tuple[str, int]:
    """Start or resume the run; returns how the session ended, and the tokens booked before it."""
    folder, booked = session.folder, 0
    begun = folder.resumed_run() if folder.path.exists() else folder.new_run("# settings")
    try:
        with begun as checkpoint:
            if checkpoint is not None:
                session.run.resume(checkpoint)
                booked = session.trainer.ledger.generated
            story = session.go(stop_s=stop_s, killed_s=killed_s, left=left)
            finished, _ = in_virtual_time(story)
    except ERRORS as error:
        if "injected" not in str(error):
            raise
        return "error", booked
    return "finished" if finished else "stopped", booked


def _check(session: Session, ended: str, booked: int, *, limit: int, found: bool) -> None:
    """Check the books and the files after a session.

    Args:
        session: what was played.
        ended: how it ended.
        booked: number of tokens in the ledger with which it began.
        limit: the staleness limit.
        found: whether its folder was there before it, left by a session that was killed.
    """
    if not any((session.folder.path / "checkpoints").glob("*")):
        # An error before the first checkpoint leaves nothing but what it found.
        assert ended == "error"
        assert found or not session.folder.path.exists()
        return
    lines = read_steps(session.folder.metrics)
    assert [line["step"] for line in lines] == list(range(1, len(lines) + 1))
    assert all(int(line["staleness_max"] or 0) <= limit for line in lines)
    assert ended != "finished" or len(lines) == STEPS
    ledger = balanced_ledger(session.folder.path)
    if ended != "error":  # its last checkpoint may be one that could not be written
        sampled = session.client.tokens + session.evaluation.tokens_generated
        assert ledger["generated"] == booked + sampled
