"""Leagues of a script: the training loop itself takes snapshots, and plays meet them."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from run_world import World

from legos.config.league import LeagueConfig
from legos.league.matchmaker import LeagueSeats
from legos.loop.loop import synchronous_training_loop, training_loop
from legos.loop.trainer import Metrics
from legos.records.group import Group


def test_a_script_meets_its_past_and_drops_what_has_left(tmp_path: Path) -> None:
    world = World(tmp_path, opponents={"self": 0.5, "past": 0.5}, league=LeagueConfig(snapshots=3))
    league = world.arena.matchmaker
    assert isinstance(league, LeagueSeats)
    league.every = 2
    met = Counter[str]()
    lines: list[Metrics] = []

    async def after_step(metrics: Metrics, groups: Sequence[Group]) -> None:
        lines.append(metrics)
        for episode in (one for group in groups for one in group.episodes):
            assert not episode.error  # the scripted client fails where an adapter is not live
            met.update(rollout.seat for rollout in episode.rollouts if rollout.policy is None)

    async def train() -> None:
        await training_loop(world.arena, world.trainer, 8, after_step=after_step, progress=False)
        await synchronous_training_loop(
            world.arena, world.trainer, 16, after_step=after_step, progress=False
        )

    asyncio.run(train())
    assert [one.step for one in league.pool.of("policy")][-1] == 16
    assert len(league.pool.of("policy")) == 3
    assert met.keys() > {"policy@0", "policy@2"}
    assert all(line["league/plays_past"] for line in lines)
    live = {*world.publisher.live} - {"policy"}
    assert live == {one.live for one in league.pool.in_engines}
    assert league.progress == 1.0
    assert len(league.table.members) > 3
