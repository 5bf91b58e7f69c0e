"""``legos eval``: evaluate an adapter of a run, from the run's folder alone."""

import asyncio
import sys
import time
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from legos.apps.adapters import loaded
from legos.apps.seated import load_seated
from legos.config.resolve import resolve
from legos.errors import ConfigError
from legos.records.count import Count
from legos.run.find import find_run, split_place
from legos.wiring.arena import make_mix, policies_of
from legos.wiring.evaluate import evaluation_of
from legos.wiring.named import adapters_beside, named_adapter
from legos.wiring.options import check_options
from legos.wiring.serving import put_on

T = TypeVar("T")

PLAYS = "loop.evaluation_plays"
OF_PLAYS = (PLAYS, "loop.evaluation_temperature")
"""Settings of plays; an arena that is evaluated exactly does not read them."""


def evaluate_run(
    run: str | Path,
    *,
    adapter: str | None = None,
    overrides: Mapping[str, object] | None = None,
) -> Mapping[str, Any]:
    """Evaluate an adapter of a run on the run's arena.

    Args:
        run: folder of the run, or its name in runs/, for its newest adapter; ``RUN@STEP``,
            ``RUN@best`` or ``RUN@vN`` for another one. Of a run with several policies, this is the
            adapter of the first, and the others are those of the same step.
        adapter: what ``named_adapter`` reads, evaluated in place of that adapter.
        overrides: dotted settings that replace those of the run.

    Returns:
        ``arena``, ``policy_version`` and the metrics of the arena; None where one is not defined.
        Of a mix, ``arenas``: name of each arena -> its metrics.

    Raises:
        CheckpointError: the run or the adapter is not found.
        AdapterError: the adapter is damaged or does not fit the model.
        ArenaError: the arena does not accept an option.
        ConfigError: an override is not valid, or has no effect in this arena.
    """
    folder = find_run(split_place(str(run))[0])
    config = resolve(run=folder.settings, overrides=overrides).config.for_evaluation()
    check_options(config)
    first, *others = policies_of(config.arenas)
    own = named_adapter(str(run), name=first)
    beside = adapters_beside(str(run), own.version, others)
    weights = own if adapter is None else named_adapter(adapter, name=first)
    limits, thinking = config.generation.limits(), config.generation.thinking
    with loaded(config.model, [weights, *beside], limits, thinking=thinking) as live:
        client = live.client()
        mix = make_mix(config, client)
        load_seated(mix.arenas.values(), partial(put_on, live.engine, model=live.name))
        evaluation = evaluation_of(config, mix, client)
        unread = [name for name in OF_PLAYS if name in (overrides or {})]
        if evaluation.exact and unread:
            raise ConfigError(
                f"{unread[0]} has no effect: {config.title} is evaluated exactly, from the "
                "policy's own probabilities; leave it out"
            )
        if not evaluation.exact:
            sys.stderr.write(f"playing {config.loop.evaluation_plays} plays of {config.title}\n")
        metrics = asyncio.run(reported(evaluation.metrics(), lambda: evaluation.count))
    return {"arena": metrics["arena"], "policy_version": weights.version, **metrics}


async def reported(
    work: Coroutine[Any, Any, T], count: Callable[[], Count], *, every_s: float = 10.0
) -> T:
    """Await a result, and report on standard error for how long, and what has been done.

    Args:
        work: what is awaited.
        count: returns the count of the plays or positions.
        every_s: seconds between two reports.
    """
    started, task = time.monotonic(), asyncio.ensure_future(work)
    while not (await asyncio.wait([task], timeout=every_s))[0]:
        parts = ["evaluating", count().text, f"{time.monotonic() - started:.0f} s so far"]
        sys.stderr.write(", ".join(filter(None, parts)) + "\n")
    return task.result()
