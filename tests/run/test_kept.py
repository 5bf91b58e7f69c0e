"""Which plays a run keeps: whole tasks, failures, and the longest, best and worst of a step."""

import json
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from made_records import make_episode, make_turn
from msgspec.structs import replace

from legos.records.episode import Episode
from legos.records.group import Group
from legos.run.folder import RunFolder
from legos.run.kept import KeptPlays, kept_plays
from legos.run.stored import groups_from_json, groups_to_json


def play(task: str, reward: float = 0.0, length: int = 1, seed: int = 0) -> Episode:
    turn = make_turn(token_ids=[3] * length)
    return replace(make_episode({"p": reward}, task=task, turns={"p": (turn,)}), seed=seed)


def group(number: int, *episodes: Episode) -> Group:
    return Group(episodes=episodes, first_play=number, arena="arena")


def test_the_most_telling_plays_and_all_failures_are_kept() -> None:
    plays = [play(f"t{number}", reward=float(number % 5)) for number in range(8)]
    plays[1] = replace(plays[1], error="no")
    plays[3] = play("t3", reward=2.0, length=4)
    plays[6] = replace(plays[6], void=True, rewards={})
    assert kept_plays([group(0, *plays)], 0.0) == [plays[i] for i in (0, 1, 3, 4)]
    assert kept_plays([group(0, *plays)], 1.0) == plays
    assert kept_plays([], 0.5) == []


def test_the_plays_of_one_task_are_kept_together_and_tasks_change_with_the_rounds() -> None:
    rounds = [
        group(r, *(play(f"t{task}", seed=seed) for task in range(8) for seed in range(4)))
        for r in range(40)
    ]
    drawn: list[str] = []
    for each in rounds:
        kept = kept_plays([each], 0.25)
        counts = {e.task.id: sum(e.task.id == other.task.id for other in kept) for e in kept}
        telling = {kept[0].task.id} if counts[kept[0].task.id] < 4 else set()
        assert {counts[task] for task in counts.keys() - telling} <= {4}
        drawn += [task for task, count in counts.items() if count == 4]
    assert 0.15 < len(drawn) / (8 * 40) < 0.35
    assert {*drawn} == {f"t{task}" for task in range(8)}


@given(
    st.lists(
        st.tuples(st.integers(0, 5), st.integers(-2, 2), st.integers(1, 3), st.booleans()),
        min_size=1,
        max_size=12,
    ),
    st.integers(1, 11),
)
def test_a_step_keeps_the_same_after_its_groups_waited_in_a_checkpoint(
    made: list[tuple[int, int, int, bool]], split: int
) -> None:
    plays = [
        replace(
            play(f"t{task}", float(reward), length, seed),
            error="no" if failed else None,
            failure="failed" if failed else None,
        )
        for seed, (task, reward, length, failed) in enumerate(made)
    ]
    groups = [group(1, *plays[:split]), group(2, *plays[split:])]
    again = groups_from_json(json.loads(json.dumps(groups_to_json(groups, plays_kept=0.3))))
    assert kept_plays(again, 0.3) == kept_plays(groups, 0.3)


def test_a_run_without_disk_space_for_plays_keeps_none(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    kept = KeptPlays(folder, share=1.0, disk_gib=0.0)
    kept.add_step(1, [group(0, play("t"))], [])
    kept.add_evaluation(1, [play("t")])
    kept.pack()
    assert kept.share is None
    assert list(tmp_path.iterdir()) == []


def test_plays_stay_within_their_budget(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    kept = KeptPlays(folder, share=1.0, disk_gib=60_000 / 2**30)
    for step in range(1, 200):
        plays = [
            replace(play("t", seed=seed * step), notes=(str(hash((seed, step))),))
            for seed in range(9)
        ]
        kept.add_step(step, [group(step, *plays)], [])
        if kept.full:
            kept.pack()
        size = sum(path.stat().st_size for path in tmp_path.rglob("*.jsonl*"))
        assert size < 60_000 + 6_000  # the plays of one step more
    older = folder.plays.older()
    assert len(older) > 3
    assert older[0].first > 1
    assert folder.plays.last() == 9 * 199
