"""The index of plays: what is found, in which order, and that it follows the run."""

import sqlite3
from math import exp
from pathlib import Path
from typing import Any

import pytest
from made_records import make_episode, make_turn
from msgspec.structs import replace

from legos.records.episode import Episode
from legos.records.message import Message
from legos.run.folder import RunFolder
from legos.run.index.plays import PlayIndex


def play(
    number: int, said: str = "yes", *, seat: str = "bot", reward: float | None = None
) -> Episode:
    turn = make_turn(token_ids=[*range(number)])
    turn = replace(
        turn,
        completion=replace(turn.completion, text=said),
        messages=(Message("user", f"Question {number}?"),),
    )
    made = make_episode(
        {"first": float(number) if reward is None else reward, "second": -1.0},
        task=f"t{number % 3}",
        turns={"first": (turn,), "second": (replace(turn, reward=0.5),)},
        untrained=("second",),
    )
    first, second = made.rollouts
    return replace(made, rollouts=(first, replace(second, seat=seat)))


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    folder = RunFolder(tmp_path / "run")
    folder.path.mkdir()
    return folder


def write(folder: RunFolder, *numbers: int, full_at: int = 2_000) -> None:
    for number in numbers:
        folder.add_episodes(number, [play(number)], full_at=full_at)


def refuse_files(monkeypatch: pytest.MonkeyPatch, why: str) -> None:
    """Let SQLite open no file from now on, only tables in memory."""
    real = sqlite3.connect

    def refused(path: str, **options: Any) -> sqlite3.Connection:
        if path != ":memory:":
            raise sqlite3.OperationalError(why)
        return real(path, **options)

    monkeypatch.setattr(sqlite3, "connect", refused)


def test_plays_are_found_by_what_they_have(folder: RunFolder) -> None:
    write(folder, 1, 2, 3, 4, 5)
    failed = replace(play(6), error="ValueError: no Cards", failure="failed", rewards={})
    folder.add_episodes(6, [failed, replace(play(7), void=True, rewards={})])
    folder.add_episodes(6, [play(8, "No WAY", seat="policy@3", reward=2.5)], evaluation=True)
    index = PlayIndex(folder)
    assert index.refresh() == 8

    def found(**wanted: Any) -> list[int]:
        return [*index.search(**wanted).numbers]

    assert found() == [8, 7, 6, 5, 4, 3, 2, 1]
    assert found(task="t1", order="oldest") == [1, 4, 7]
    assert found(step=(2, 3)) == [3, 2]
    assert found(evaluation=True) == found(seat="policy@3") == [8]
    assert found(failure=True) == [7, 6]
    assert found(failure="void") == [7]
    assert found(failure=False, tokens=(8, None)) == [8, 5, 4]
    assert found(role="first", reward=3.0) == found(reward=3) == [3]
    assert found(role="second", reward=-0.5) == [8, 5, 4, 3, 2, 1]
    assert found(reward=-0.5) == []  # of trained seats
    assert found(reward=(2.5, 4.0), order="best") == [4, 3, 8]
    assert found(order="worst")[:2] == [1, 2]
    assert found(order="longest")[0] == 8
    assert found(text="no") == [8, 6]
    assert found(text="question 4?") == [4]
    assert found(text="nowhere") == []
    [newest] = index.search(page=slice(1)).plays
    assert (newest.number, newest.step, newest.evaluation, newest.task) == (8, 6, True, "t2")
    assert (newest.tokens, newest.turns, newest.failure) == (16, 2, None)
    assert [(each.role, each.seat, each.reward) for each in newest.seats] == [
        ("first", "policy", 2.5),
        ("second", "policy@3", -0.5),
    ]
    with pytest.raises(ValueError, match="order is 'odd'; expected one of newest"):
        index.search(order="odd")


def test_an_index_reads_only_what_is_new_and_follows_a_resumed_run(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    index, parsed = PlayIndex(folder), list[int]()
    add = PlayIndex._add
    monkeypatch.setattr(
        PlayIndex, "_add", lambda s, lines: parsed.extend(n for n, _ in lines) or add(s, lines)
    )
    assert index.refresh() == 0
    write(folder, *range(1, 6))
    assert index.refresh() == 5
    with folder.episodes.open("a") as file:
        file.write('{"half')
    assert index.refresh() == 5
    index.close()
    again = PlayIndex(folder)
    assert again.refresh() == 5
    assert parsed == [1, 2, 3, 4, 5]
    folder.plays.rewind(3, evaluated=0)
    write(folder, *range(4, 9))
    assert again.refresh() == 8
    assert [p.step for p in again.search(order="oldest").plays] == [1, 2, 3, 4, 5, 6, 7, 8]
    again.close()
    folder.plays.rewind(6, evaluated=0)
    folder.add_episodes(7, [play(9)], full_at=9**9)
    folder.add_episodes(7, [play(9)], full_at=9**9)
    other = PlayIndex(folder)
    assert other.refresh() == 8
    assert [p.tokens for p in other.search(page=slice(2)).plays] == [18, 18]


def test_damage_of_the_cache_or_of_a_line_costs_no_search(folder: RunFolder) -> None:
    write(folder, 1)
    with folder.episodes.open("a") as file:
        file.write("nonsense\n")
    write(folder, 3)
    index = PlayIndex(folder)
    assert (index.refresh(), index.damaged) == (3, [2])
    assert [*index.search().numbers] == [3, 1]
    index.close()
    [cache] = folder.path.parent.glob(".run.plays.sqlite3")
    cache.write_bytes(b"nonsense" * 1000)
    index = PlayIndex(folder)
    assert (index.refresh(), index.damaged) == (3, [2])
    index.close()
    assert {path.name for path in folder.path.iterdir()} <= {"episodes.jsonl", "episodes"}


def test_damage_behind_the_first_page_of_the_cache_costs_no_search(folder: RunFolder) -> None:
    write(folder, 1, 2, 3)
    index = PlayIndex(folder)
    index.refresh()
    index.close()
    [cache] = folder.path.parent.glob(".run.plays.sqlite3")
    whole = cache.read_bytes()
    damaged = whole[:4096] + b"\xff" * (len(whole) - 4096)
    assert len(damaged) > 4096
    cache.write_bytes(damaged)
    assert [*index.search().numbers] == [3, 2, 1]
    index.close()
    cache.write_bytes(damaged)
    assert index.refresh() == 3
    index.close()
    assert [*PlayIndex(folder).search().numbers] == [3, 2, 1]


def test_a_cache_that_another_process_holds_is_left_alone(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(folder, 1)
    other = PlayIndex(folder)
    other.refresh()
    refuse_files(monkeypatch, "database is locked")
    index = PlayIndex(folder)
    assert index.refresh() == 1
    assert list(folder.path.parent.glob(".run.plays.sqlite3"))
    index.close()
    other.close()


@pytest.mark.parametrize(
    ("intact", "damaged"),
    [
        ('"step":2', '"step":9223372036854775808'),
        ('"logprobs":[-', '"logprobs":[9'),
        ('"logprobs":[-', '"logprobs":[-1e308,-1e308,-'),
        ('"logprobs":[-', '"logprobs":[NaN,-'),
    ],
)
def test_a_line_with_a_number_out_of_range_costs_no_search(
    intact: str, damaged: str, folder: RunFolder
) -> None:
    for number in (1, 2, 3):
        one = play(number, said="a")
        first, second = one.rollouts
        [turn] = first.turns
        first = replace(first, turns=(replace(turn, move="a", choices=("a", "b")),))
        folder.add_episodes(number, [replace(one, rollouts=(first, second))])
    one, two, three = folder.episodes.read_text().splitlines()
    assert intact in two
    folder.episodes.write_text("\n".join([one, two.replace(intact, damaged), three, ""]))
    index = PlayIndex(folder)
    assert (index.refresh(), index.damaged) == (3, [2])
    assert [*index.search().numbers] == [3, 1]


def test_a_damaged_old_file_hides_no_newer_play(folder: RunFolder) -> None:
    write(folder, *range(1, 13))
    folder.plays.pack(1 << 20)
    first, *_ = folder.plays.older()
    first.path.write_bytes(first.path.read_bytes()[:-10])
    index = PlayIndex(folder)
    assert index.refresh() == 12
    assert index.damaged == [*range(1, first.last + 1)]
    assert [*index.search(order="oldest").numbers] == [*range(first.last + 1, 13)]
    index.close()


def test_a_damaged_newest_file_is_read_once(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(folder, 1, full_at=1)
    folder.plays.pack(1 << 20)
    [old] = folder.plays.older()
    old.path.write_bytes(old.path.read_bytes()[:-10])
    index = PlayIndex(folder)
    assert (index.refresh(), index.damaged) == (1, [1])
    index.close()
    monkeypatch.setattr(PlayIndex, "_again", None)
    index = PlayIndex(folder)
    assert index.refresh() == 1
    write(folder, 2)
    assert index.refresh() == 2
    index.close()


def test_plays_whose_file_was_removed_are_not_found(folder: RunFolder) -> None:
    write(folder, *range(1, 9))
    index = PlayIndex(folder)
    index.refresh()
    folder.plays.pack(0)
    index.refresh()
    [newest] = folder.plays.older()
    assert [*index.search(order="oldest").numbers] == [*range(newest.first, 9)]
    assert index.search(text="question", order="oldest").numbers[0] == newest.first


def test_a_run_in_a_place_that_cannot_be_written_is_indexed_in_memory(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(folder, 1, 2)
    refuse_files(monkeypatch, "unable to open database file")
    index = PlayIndex(folder)
    assert index.refresh() == 2
    assert [path.name for path in folder.path.parent.iterdir()] == ["run"]


def test_an_index_that_another_user_has_made_is_made_again_in_memory(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(folder, 1)
    of_another = PlayIndex(folder)
    assert of_another.refresh() == 1
    write(folder, 2)
    real = sqlite3.connect

    def readable(path: str, **options: Any) -> sqlite3.Connection:
        return real(path if path == ":memory:" else f"file:{path}?mode=ro", uri=True, **options)

    monkeypatch.setattr(sqlite3, "connect", readable)
    index = PlayIndex(folder)
    assert index.refresh() == 2
    assert [*index.search().numbers] == [2, 1]
    index.close()
    of_another.close()


def test_two_views_at_once_index_each_play_once(folder: RunFolder) -> None:
    one, two = PlayIndex(folder), PlayIndex(folder)
    for number in range(1, 9):
        write(folder, number)
        assert (one if number % 2 else two).refresh() == number
    assert one.refresh() == two.refresh() == 8
    assert [*one.search().numbers] == [*two.search().numbers] == [*range(8, 0, -1)]


def test_a_short_time_leaves_plays_to_the_next_call(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("legos.run.index.plays.BATCH", 2)
    write(folder, *range(1, 8), full_at=9**9)
    index = PlayIndex(folder)
    newest = [index.refresh(0.0) for _ in range(4)]
    assert newest == [2, 4, 6, 7]
    assert [*index.search(order="oldest").numbers] == [*range(1, 8)]


def test_lines_with_values_that_are_no_json_are_found(folder: RunFolder) -> None:
    write(folder, 1)
    line = folder.episodes.read_bytes()
    folder.episodes.write_bytes(line.replace(b'"first":1.0', b'"first":NaN'))
    index = PlayIndex(folder)
    index.refresh()
    assert (index.damaged, [*index.search().numbers]) == ([], [1])


def test_sampled_moves_are_counted_by_position_and_step(folder: RunFolder) -> None:
    choices, index = ("left", "right"), PlayIndex(folder)
    for step, moves in ((1, "left left right"), (2, "right")):
        for move in moves.split():
            one = play(2, move)
            [turn] = one.rollouts[0].turns
            moved = replace(turn, move=move, choices=choices)
            seats = (replace(one.rollouts[0], turns=(moved,)), one.rollouts[1])
            folder.add_episodes(step, [replace(one, rollouts=seats)])
            index.refresh()
    [position] = index.most_played_positions(9)
    assert (position.role, position.asked, position.num_moves) == ("first", "Question 2?", 4)
    assert {move: [step for step, _ in each] for move, each in position.moves.items()} == {
        "left": [1],
        "right": [1, 2],
    }


def test_moves_of_many_steps_are_counted_in_parts_of_the_run(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("legos.run.index.plays.PARTS", 4)
    one = play(2, "left")
    [turn] = one.rollouts[0].turns
    for step, logprob in ((0, -1.0), (3, -1.0), (4, -2.0), (5, -3.0), (12, -1.0)):
        said = replace(turn.completion, logprobs=(logprob, 0.0))
        moved = replace(turn, move="left", choices=("left", "right"), completion=said)
        seats = (replace(one.rollouts[0], turns=(moved,)), one.rollouts[1])
        folder.add_episodes(step, [replace(one, rollouts=seats)])
    index = PlayIndex(folder)
    index.refresh()
    [position] = index.most_played_positions(9)
    assert position.moves == {
        "left": [
            (3, pytest.approx(exp(-1))),
            (5, pytest.approx((exp(-2) + exp(-3)) / 2)),
            (12, pytest.approx(exp(-1))),
        ]
    }


def test_half_a_surrogate_pair_and_a_large_seed_are_indexed(folder: RunFolder) -> None:
    odd = play(1, "half \ud83d of a pair")
    folder.add_episodes(1, [replace(odd, task=replace(odd.task, seed=1 << 70))])
    index = PlayIndex(folder)
    index.refresh()
    [found] = index.search(text="half ? of").plays
    assert (found.answer, found.seed) == ("half ? of a pair", str(1 << 70))
