"""The pool keeps a bounded number of snapshots, spread over ages, with the strongest."""

import json

import numpy as np
from made_snapshots import adapter, take

from legos.league.pool import Pool


def filled(size: int, steps: int) -> Pool:
    pool = Pool(size)
    for step in range(steps):
        take(pool, adapter(step), 10 * step)
    return pool


def test_the_oldest_and_the_newest_stay_and_ages_stay_spread() -> None:
    for steps in range(5, 60):
        ages = [snapshot.step for snapshot in filled(5, steps).of("policy")]
        assert len(ages) == 5
        assert ages[0] == 0
        assert ages[-1] == 10 * (steps - 1)
        gaps = np.diff(ages)
        assert gaps[:-1].max() <= 4 * gaps[:-1].min()  # the newest gap is still growing


def test_the_best_by_its_rating_stays() -> None:
    pool = Pool(3)
    for step in range(20):
        take(pool, adapter(step), step, elo={"policy@7": -1.0, "policy@5": -2.0})
    assert [snapshot.step for snapshot in pool.of("policy")] == [0, 7, 19]


def test_a_pool_of_two_has_the_oldest_and_the_newest() -> None:
    pool = Pool(2)
    for step in range(9):
        take(pool, adapter(step), step, elo={"policy@1": 100.0, "policy@4": 200.0})
    assert [snapshot.step for snapshot in pool.of("policy")] == [0, 8]


def test_equal_weights_are_one_snapshot() -> None:
    pool = Pool(4)
    assert take(pool, adapter(1, value=3.0), 10) is not None
    assert take(pool, adapter(2, value=3.0), 20) is None
    assert [snapshot.step for snapshot in pool.of("policy")] == [10]


def test_an_evaluation_that_ends_later_adds_its_snapshot_in_order() -> None:
    pool = filled(8, 4)
    assert take(pool, adapter(9), 15) is not None
    assert [snapshot.step for snapshot in pool.of("policy")] == [0, 10, 15, 20, 30]
    assert take(pool, adapter(8), 20) is None  # which has one
    assert take(pool, adapter(9), 16) is None  # the same weights


def test_policies_have_snapshots_of_their_own() -> None:
    pool = Pool(2)
    for step in range(4):
        take(pool, adapter(step), step)
        take(pool, adapter(step, name="solver"), step)
    assert len(pool.of("policy")) == len(pool.of("solver")) == 2
    assert len({snapshot.live for snapshot in pool.members}) == 4
    assert pool.of("proposer") == []


def test_what_leaves_stays_live_until_it_is_forgotten() -> None:
    pool = filled(3, 4)
    [(gone, at)] = pool.leaving
    assert at == 30
    assert gone in pool.in_engines
    assert gone not in pool.members
    assert pool.forget(before=30) == []
    assert pool.forget(before=31) == [gone]
    assert gone not in pool.in_engines


def test_names_of_snapshots_that_have_left_are_told_from_those_of_others() -> None:
    pool = filled(3, 4)
    [(gone, _)] = pool.leaving
    kept = [snapshot.name for snapshot in pool.of("policy")]
    assert pool.present([gone.name, *kept, "random", "nim-1@400"]) == [*kept, "random", "nim-1@400"]


def test_the_state_comes_back_through_json() -> None:
    pool, other = filled(3, 6), Pool(3)
    other.restore(json.loads(json.dumps(pool.state())))
    assert other.members == pool.members
    assert other.leaving == pool.leaving
